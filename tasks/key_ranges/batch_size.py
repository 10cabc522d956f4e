"""How many records a key range does before it looks up: a unit of its work. Pure.

Usually a unit aims at a few milliseconds, which is what a commit waits for, and slow records are done one by one. A function that
takes a **batch** is called once per unit, and a call may cost the same for one value as for a thousand; so units grow
until they take a while, and beyond where that makes a record much cheaper. That also sets the slices of a task in one
piece that has such a function (`tasks/loop/slices.py`).
"""

from typing import Final

#: A unit aims at this long: so long a commit may have to wait for it.
UNIT_S: Final = 0.005
_UNIT_RECORDS_MAX: Final = 10_000
#: Records that take longer than this each are slow: they are done one by one, and sealed more often.
_SLOW_S: Final = 0.001
#: Weight of the newest unit in the mean time of a record.
_NEWEST: Final = 0.25
#: A unit with a call for a whole batch aims at this long, as a slice of a task in one piece does.
_BATCH_S: Final = 0.02
#: And begins with so many.
_BATCH_RECORDS: Final = 64
#: One that takes longer stays so, or grows, if in half as many records each took longer by as much: 3/4 is what pays.
_PAYS: Final = 3 / 4


class Pace:
    """Sets the size of units by the time that those before took.

    Attributes:
        records: How many records the next unit has at most.
        slow: Whether what a unit does may take long enough to be handed over before the next one begins.
        mean_s: How long a record takes, about.
    """

    def __init__(self) -> None:
        self.records = 1
        self.slow = False
        self.mean_s = 0.0

    def note(self, done: int, elapsed_s: float) -> None:
        """Fit the next unit to the time that this one took: at most twice as long, but shorter at once."""
        mean_s = self._mean(done, elapsed_s)
        self.slow = mean_s >= _SLOW_S or self.mean_s >= _SLOW_S
        fitting = int(UNIT_S / mean_s) + 1
        most = 1 if self.slow else min(self.records * 2, _UNIT_RECORDS_MAX)
        self.records = max(1, min(fitting, most))

    def _mean(self, done: int, elapsed_s: float) -> float:
        mean_s = max(elapsed_s, 1e-7) / max(done, 1)
        self.mean_s += _NEWEST * (mean_s - self.mean_s)
        return mean_s


class BatchPace(Pace):
    """The same for graphs with a function that takes a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.records = _BATCH_RECORDS
        #: Seconds per record in units of 1, 2-3, 4-7, … records, by the number of bits.
        self._means: dict[int, float] = {}

    def note(self, done: int, elapsed_s: float) -> None:
        """Grow while units are short, and as long as it makes records much cheaper."""
        mean_s = self._mean(done, elapsed_s)
        self.slow = elapsed_s >= UNIT_S
        size = done.bit_length()
        self._means[size] = mean_s
        if elapsed_s < _BATCH_S or self._pays(size, mean_s):
            self.records = max(self.records, min(2 * done, _UNIT_RECORDS_MAX))
        else:
            self.records = max(min(self.records, done) // 2, 1)

    def _pays(self, size: int, mean_s: float) -> bool:
        """Return whether units of this size, or those twice as large, do a record in much less time than smaller ones."""
        smaller_s, larger_s = self._means.get(size - 1), self._means.get(size + 1)
        if size == 1:
            return larger_s is None or larger_s < _PAYS * mean_s
        if larger_s is not None and larger_s < _PAYS * mean_s:
            return True
        return smaller_s is not None and mean_s < _PAYS * smaller_s
