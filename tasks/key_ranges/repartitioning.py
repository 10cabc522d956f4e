"""Repartitioning of one task: when its key ranges may change. Pure.

Ranges change only without queued or running records, so distribution pauses first. A pause starts
only when all queues are short: one slow key must not stop all others. A range slower than its input
never gets a short queue by itself, so it receives slightly fewer rows than it finishes.
"""

from collections.abc import Iterable
from typing import Final

from tidewheel.tasks.key_ranges.key_ranges import KeyRanges

#: A range's queue is short if it needs at most this many seconds, or has one record.
_SHORT_S: Final = 0.05
#: Maximum seconds that distribution pauses to let queues run empty; doubled each time they don't.
_DRAIN_S: Final = 0.2
_DRAIN_MAX_S: Final = 1.0
#: Seconds between two such pauses; doubled likewise.
_PAUSE_S: Final = 2.0
_PAUSE_MAX_S: Final = 60.0
#: While a change of ranges waits, each distributed row lowers the allowed length of full queues by
#: this part of a row.
_LIMIT_DECREASE: Final = 1 / 4
#: Mean rows per range down to which that length falls while all queues are short. With fewer rows,
#: ranges would idle.
_ROWS_MIN: Final = 8


class Repartitioning:
    """Requested change of a task's ranges; until then, queues fill only to `part` of the limit."""

    def __init__(self) -> None:
        self.requested: KeyRanges | None = None
        self.part = 1.0
        self._paused_since_s: float | None = None
        self._failed = 0
        self._not_before_s = 0.0

    @property
    def is_paused(self) -> bool:
        return self._paused_since_s is not None

    def request(self, ranges: KeyRanges | None) -> None:
        self.requested = ranges
        if ranges is None:
            self._paused_since_s = None
            self.part = 1.0

    def is_due(self, backlogs: Iterable[tuple[int, float]], *, quiet: bool, now_s: float) -> bool:
        """Return True if the ranges can change now; else start or end a pause of distribution.

        `backlogs`: unfinished rows and seconds per row of each range. `quiet`: no range has rows.
        """
        if self.requested is None or quiet:
            return quiet and self.requested is not None
        if self._paused_since_s is None:
            if now_s >= self._not_before_s and all(_is_short(*backlog) for backlog in backlogs):
                self._paused_since_s = now_s
        elif now_s - self._paused_since_s >= min(_DRAIN_S * 2**self._failed, _DRAIN_MAX_S):
            self._paused_since_s = None
            self._not_before_s = now_s + min(_PAUSE_S * 2**self._failed, _PAUSE_MAX_S)
            self._failed = min(self._failed + 1, 10)
        return False

    def pop(self) -> KeyRanges:
        assert self.requested is not None, "it is due"
        requested = self.requested
        self.request(None)
        self._failed, self._not_before_s = 0, 0.0
        return requested

    def record_rows(self, rows: int, waiting: int, *, full: bool) -> None:
        if full and self.requested is not None:
            self.part *= max(1 - _LIMIT_DECREASE * rows / max(waiting, 1), 1 / 2)

    def rows_max(self, limit: int, waiting: int, ranges: int) -> int:
        if self.part == 1.0:
            return limit
        return min(limit, max(waiting // _ROWS_MIN, ranges))

    def is_full(
        self, backlogs: Iterable[tuple[int, float]], waiting: int, used: float, ranges: int
    ) -> bool:
        """Return True if no more rows may queue; `used`: the queues' part of their usual limit."""
        few = self.part < 1.0 and waiting < _ROWS_MIN * ranges
        if few and all(_is_short(*backlog) for backlog in backlogs):
            return used >= 1.0
        return used >= self.part


def _is_short(rows: int, row_s: float) -> bool:
    return rows <= 1 or rows * row_s <= _SHORT_S
