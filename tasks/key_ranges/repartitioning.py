"""When the keys of a task may be cut into other ranges: while little is in hand, so that nobody waits long for it. Pure.

A cut needs that nothing is in hand, so for a moment nothing is handed out. If that moment lasted as long as the longest queue, one
slow key would stop all others. So it begins only when all queues are short, and if they are not done soon it is over, and
comes again later. Queues that are full, because one range is slower than its records come, do not become short by
themselves; for them a little less is handed out than is done.
"""

from collections.abc import Iterable
from typing import Final

from tidewheel.tasks.key_ranges.key_ranges import KeyRanges

#: What waits in a range is short if it takes no longer than this, or is a single record.
_SHORT_S: Final = 0.05
#: So long nothing is handed out at the first try, and at most at a later one: each waits twice as long as the one before.
_HELD_S: Final = 0.2
_HELD_MAX_S: Final = 1.0
#: Ten times as long as the try things go on before the next one, and longer each time.
_PAUSE_S: Final = 2.0
_PAUSE_MAX_S: Final = 60.0
#: For each row that is handed out to full queues so much of a row less may wait.
_LESS: Final = 1 / 4
#: So many rows per range may wait in any case: none of them idles for want of them.
_ROWS_MIN: Final = 8


class Repartitioning:
    """Another cut of one task's keys that is wished for.

    Attributes:
        wish: How they are to be cut; None for no wish.
        part: The part of what else may wait in the ranges that may now.
    """

    def __init__(self) -> None:
        self.wish: KeyRanges | None = None
        self.part = 1.0
        self._held_since_s: float | None = None
        self._failed = 0
        self._not_before_s = 0.0

    @property
    def holds(self) -> bool:
        """Return whether nothing is to be handed out at the moment."""
        return self._held_since_s is not None

    def ask(self, cut: KeyRanges | None) -> None:
        """Wish for a cut, or for none any more."""
        self.wish = cut
        if cut is None:
            self._held_since_s = None
            self.part = 1.0

    def is_due(self, backlogs: Iterable[tuple[int, float]], *, quiet: bool, now_s: float) -> bool:
        """Return whether the cut can be made now; else begin or end to hold back what is to be handed out.

        Args:
            backlogs: Per range how many rows wait or are in hand, and how many seconds one takes.
            quiet: Whether nothing waits or is in hand.
            now_s: The time.
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
        """Return the wish: it is granted."""
        assert self.wish is not None, "it is due"
        wish = self.wish
        self.ask(None)
        self._failed, self._not_before_s = 0, 0.0
        return wish

    def given(self, rows: int, waiting: int, *, full: bool) -> None:
        """Note that rows were handed out, so many wait now, and whether no more may."""
        if full and self.wish is not None:
            self.part *= max(1 - _LESS * rows / max(waiting, 1), 1 / 2)

    def rows_max(self, limit: int, waiting: int, ranges: int) -> int:
        """Return how many rows may be handed out at once: no long runs where queues are to become short."""
        if self.part == 1.0:
            return limit
        return min(limit, max(waiting // _ROWS_MIN, ranges))

    def is_full(
        self, backlogs: Iterable[tuple[int, float]], waiting: int, used: float, ranges: int
    ) -> bool:
        """Return whether no more may wait, where `used` is the used part of what may wait at other times.

        Some rows may wait in any case, but not where they would wait in one range, whose queue is to become short.
        """
        few = self.part < 1.0 and waiting < _ROWS_MIN * ranges
        if few and all(_is_short(*each) for each in backlogs):
            return used >= 1.0
        return used >= self.part


def _is_short(rows: int, row_s: float) -> bool:
    return rows <= 1 or rows * row_s <= _SHORT_S
