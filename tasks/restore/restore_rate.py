"""How fast restoring goes, and how long it will take. Pure: it is told the time."""

from collections import deque
from typing import Final

#: The rate is that of the last so many seconds.
_WINDOW_S: Final = 10.0
#: Notes closer together than this are one.
_STEP_S: Final = 0.25
#: A rate lies between two notes.
_NOTES_MIN: Final = 2


class RestoreRate:
    """A rate over the last ten seconds.

    >>> rate = RestoreRate()
    >>> rate.note(0, 100.0)
    >>> rate.note(5_000, 102.0)
    >>> rate.per_second, rate.seconds_for(10_000)
    (2500.0, 4.0)
    """

    __slots__ = ("_notes",)

    def __init__(self) -> None:
        #: (total, when), the oldest first.
        self._notes: deque[tuple[int, float]] = deque()

    def note(self, total: int, now_s: float) -> None:
        """Note how many there are by now, in all; a smaller number than before begins anew."""
        notes = self._notes
        if notes and total < notes[-1][0]:
            notes.clear()
        if len(notes) > 1 and now_s - notes[-2][1] < _STEP_S:
            notes.pop()
        notes.append((total, now_s))
        while len(notes) > _NOTES_MIN and now_s - notes[1][1] >= _WINDOW_S:
            notes.popleft()

    @property
    def per_second(self) -> float:
        """Return the rate as of the last note; 0 before there are two."""
        notes = list(self._notes)  # of one moment: another thread may ask
        if len(notes) < _NOTES_MIN:
            return 0.0
        (first, begin_s), (last, end_s) = notes[0], notes[-1]
        return (last - first) / (end_s - begin_s) if end_s > begin_s else 0.0

    def seconds_for(self, remaining: int) -> float | None:
        """Return how long the rest takes at this rate; None if that can't be told."""
        rate = self.per_second
        if remaining <= 0:
            return 0.0
        return remaining / rate if rate > 0 else None


def said_of(restored: int, remaining: int, rate: RestoreRate) -> str:
    """Return how far a restore is, for people.

    >>> said_of(5_000, 10_000, RestoreRate())
    'restoring: 5,000 records so far, 10,000 to go'
    """
    text = f"restoring: {restored:,} records so far, {remaining:,} to go"
    left_s = rate.seconds_for(remaining)
    if left_s is None:
        return text
    return f"{text}, {rate.per_second:,.0f} records/s, about {left_s:,.0f} s left"
