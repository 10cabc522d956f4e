"""Flatness of memory: the slope of samples after the warm-up (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass

#: Growth per minute below this share is flat: less than the noise over ten minutes.
FLAT_SHARE_PER_MINUTE = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Flatness:
    """Result of the samples after the warm-up.

    Attributes:
        slope_mib_per_minute: By least squares.
        middle_mib: Their median.
        largest_mib: Maximum of all samples, warm-up included.
    """

    slope_mib_per_minute: float
    middle_mib: float
    largest_mib: float

    @property
    def is_flat(self) -> bool:
        """True if growth is within noise; shrinking counts as flat."""
        return self.slope_mib_per_minute <= FLAT_SHARE_PER_MINUTE * self.middle_mib


def flatness(samples: Sequence[tuple[float, float]], warm_up_s: float) -> Flatness:
    """Return the flatness of samples (seconds, MiB).

    Raises:
        ValueError: Fewer than two samples remain after the warm-up.

    >>> flatness([(0.0, 10.0), (60.0, 100.0), (120.0, 103.0), (180.0, 106.0)], 60).slope_mib_per_minute
    3.0
    """
    kept = [(at_s, mib) for at_s, mib in samples if at_s >= warm_up_s]
    if len(kept) < 2:
        raise ValueError(f"{len(kept)} samples after {warm_up_s:.0f} s: too few for a slope")
    middle_s = sum(at_s for at_s, _ in kept) / len(kept)
    mean_mib = sum(mib for _, mib in kept) / len(kept)
    spread = sum((at_s - middle_s) ** 2 for at_s, _ in kept)
    together = sum((at_s - middle_s) * (mib - mean_mib) for at_s, mib in kept)
    return Flatness(
        slope_mib_per_minute=round(together / spread * 60, 3),
        middle_mib=sorted(mib for _, mib in kept)[len(kept) // 2],
        largest_mib=max(mib for _, mib in samples),
    )
