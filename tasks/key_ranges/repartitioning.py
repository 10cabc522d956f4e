"""Repartitioning of one task: when its key ranges may change. Pure.

Ranges change only without queued or running records, so distribution pauses first. A pause starts
only when all queues are short: one slow key must not stop all others. A range slower than its input
never gets a short queue by itself, so it receives slightly fewer rows than it finishes.
"""

from collections.abc import Iterable
from typing import Final

from tidewheel.tasks.key_ranges.key_ranges import KeyRanges

#: A queue is short if it takes no longer (seconds), or has one record.
_SHORT_S: Final = 0.05
#: Seconds of a pause, doubled each time, and its maximum.
_HELD_S: Final = 0.2
_HELD_MAX_S: Final = 1.0
#: Seconds between pauses, doubled each time.
_PAUSE_S: Final = 2.0
_PAUSE_MAX_S: Final = 60.0
#: Full queues shrink by this part of a row for each distributed row.
_LESS: Final = 1 / 4
#: Rows per range that short queues may have, so no range idles.
_ROWS_MIN: Final = 8


class Repartitioning:
    """Requested change of one task's ranges; `part` of the usual queue length is allowed now."""

    def __init__(self) -> None:
        self.wish: KeyRanges | None = None
        self.part = 1.0
        self._held_since_s: float | None = None
        self._failed = 0
        self._not_before_s = 0.0

    @property
    def holds(self) -> bool:
        return self._held_since_s is not None

    def ask(self, cut: KeyRanges | None) -> None:
        self.wish = cut
        if cut is None:
            self._held_since_s = None
            self.part = 1.0

    def is_due(self, backlogs: Iterable[tuple[int, float]], *, quiet: bool, now_s: float) -> bool:
        """Return True if the ranges can change now; else start or end a pause.

        `backlogs`: unfinished rows and seconds per row of each range. `quiet`: there are none.
        """
        if self.wish is None or quiet:
            return quiet and self.wish is not None
        if self._held_since_s is None:
            if now_s >= self._not_before_s and all(_is_short(*each) for each in backlogs):
                self._held_since_s = now_s
        elif now_s - self._held_since_s >= min(_HELD_S * 2**self._failed, _HELD_MAX_S):
            self._held_since_s = None
            self._not_before_s = now_s + min(_PAUSE_S * 2**self._failed, _PAUSE_MAX_S)
            self._failed = min(self._failed + 1, 10)
        return False

    def take(self) -> KeyRanges:
        assert self.wish is not None, "it is due"
        wish = self.wish
        self.ask(None)
        self._failed, self._not_before_s = 0, 0.0
        return wish

    def given(self, rows: int, waiting: int, *, full: bool) -> None:
        if full and self.wish is not None:
            self.part *= max(1 - _LESS * rows / max(waiting, 1), 1 / 2)

    def rows_max(self, limit: int, waiting: int, ranges: int) -> int:
        if self.part == 1.0:
            return limit
        return min(limit, max(waiting // _ROWS_MIN, ranges))

    def is_full(
        self, backlogs: Iterable[tuple[int, float]], waiting: int, used: float, ranges: int
    ) -> bool:
        """Return True if no more rows may be queued; `used` is relative to the usual length.

        While all queues are short, a few rows may exceed a reduced length.
        """
        few = self.part < 1.0 and waiting < _ROWS_MIN * ranges
        if few and all(_is_short(*each) for each in backlogs):
            return used >= 1.0
        return used >= self.part


def _is_short(rows: int, row_s: float) -> bool:
    return rows <= 1 or rows * row_s <= _SHORT_S
