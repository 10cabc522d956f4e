"""Compares copies of a store's partition row by row, in the order of the disk. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tidewheel.state_stores.bulk_restore.content import StoredRow

#: As many differences of a pair of copies are listed.
_LISTED: Final = 10


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that two copies do not have alike.

    Attributes:
        row: The row, as the first copy has it, or as the second does where the first has none.
        what: `missing`, `too much` or `other value` in the second copy.
    """

    row: StoredRow
    what: str


@dataclass(slots=True)
class Comparison:
    """What comparing two copies found: rows of the first, how many differ, and some of those."""

    rows: int = 0
    different: int = 0
    listed: list[Difference] = field(default_factory=list[Difference])

    def note(self, row: StoredRow, what: str) -> None:
        """Note a difference."""
        self.different += 1
        if len(self.listed) < _LISTED:
            self.listed.append(Difference(row, what))


def compare(first: Iterable[StoredRow], second: Iterable[StoredRow]) -> Comparison:
    """Compare two copies of one store, both in the order of the disk.

    >>> a, b = StoredRow(b"a", b"1", 0, place=b"a"), StoredRow(b"b", b"1", 0, place=b"b")
    >>> found = compare([a, b], [b])
    >>> found.rows, found.different, [each.what for each in found.listed]
    (2, 1, ['missing'])
    """
    found = Comparison()
    theirs = iter(second)
    their = next(theirs, None)
    for row in first:
        found.rows += 1
        while their is not None and their.place < row.place:
            found.note(their, "too much")
            their = next(theirs, None)
        if their is None or their.place != row.place:
            found.note(row, "missing")
            continue
        if their != row:
            found.note(row, "other value")
        their = next(theirs, None)
    while their is not None:
        found.note(their, "too much")
        their = next(theirs, None)
    return found
