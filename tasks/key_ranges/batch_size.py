"""Batch size: limits how many records a key range processes per unit of work. Pure.

A function of a **batch** may cost the same for one value as for a thousand, so its units grow.
"""

from typing import Final

#: Target seconds of a unit of work: a commit waits for it.
UNIT_S: Final = 0.005
_UNIT_RECORDS_MAX: Final = 10_000
#: Records that take longer (seconds) are processed singly.
_SLOW_S: Final = 0.001
#: Weight of the newest unit in the moving average.
_NEWEST: Final = 0.25
#: Target seconds of a unit if a user's function takes the whole batch.
_BATCH_S: Final = 0.02
_BATCH_RECORDS: Final = 64
#: Target seconds of a unit in which calls overlap: the first and the last ones of a unit overlap
#: with fewer, so short units would waste time.
_OVERLAPPED_S: Final = 0.1
#: A larger unit pays off if a record costs less than this part of its cost at half the size.
_CHEAPER_SHARE: Final = 3 / 4


class UnitSize:
    """Number of `records` in the next unit of work, from the duration of earlier units.

    If `slow`, the range seals (hands over finished work for a commit) more often.
    """

    def __init__(self) -> None:
        self.records = 1
        self.slow = False
        self.mean_s = 0.0

    def adapt(self, done: int, elapsed_s: float) -> None:
        """Adapt the size to a finished unit: grow at most twofold, shrink immediately."""
        mean_s = self._mean(done, elapsed_s)
        self.slow = mean_s >= _SLOW_S or self.mean_s >= _SLOW_S
        fitting = int(UNIT_S / mean_s) + 1
        most = 1 if self.slow else min(self.records * 2, _UNIT_RECORDS_MAX)
        self.records = max(1, min(fitting, most))

    def _mean(self, done: int, elapsed_s: float) -> float:
        mean_s = max(elapsed_s, 1e-7) / max(done, 1)
        self.mean_s += _NEWEST * (mean_s - self.mean_s)
        return mean_s


class OverlappedUnitSize(UnitSize):
    """Size of units in which calls of a coroutine function overlap, at most `calls` of them."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self._calls = calls
        self.records = calls

    def adapt(self, done: int, elapsed_s: float) -> None:
        mean_s = self._mean(done, elapsed_s)
        self.slow = elapsed_s >= UNIT_S
        fitting = int(_OVERLAPPED_S / mean_s) + 1
        most = min(max(2 * done, self.records), _UNIT_RECORDS_MAX)
        self.records = max(self._calls, min(fitting, most))


class BatchUnitSize(UnitSize):
    def __init__(self) -> None:
        super().__init__()
        self.records = _BATCH_RECORDS
        #: Seconds per record in units of 1, 2-3, 4-7, … records, by the number of bits.
        self._means: dict[int, float] = {}

    def adapt(self, done: int, elapsed_s: float) -> None:
        mean_s = self._mean(done, elapsed_s)
        self.slow = elapsed_s >= UNIT_S
        size = done.bit_length()
        self._means[size] = mean_s
        if elapsed_s < _BATCH_S or self._is_cheaper(size, mean_s):
            self.records = max(self.records, min(2 * done, _UNIT_RECORDS_MAX))
        else:
            self.records = max(min(self.records, done) // 2, 1)

    def _is_cheaper(self, size: int, mean_s: float) -> bool:
        smaller_s, larger_s = self._means.get(size - 1), self._means.get(size + 1)
        if size == 1:
            return larger_s is None or larger_s < _CHEAPER_SHARE * mean_s
        if larger_s is not None and larger_s < _CHEAPER_SHARE * mean_s:
            return True
        return smaller_s is not None and mean_s < _CHEAPER_SHARE * smaller_s
