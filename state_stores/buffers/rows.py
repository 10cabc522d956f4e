"""Puts and deletes as two columns, without an object per row."""

from collections.abc import Iterator, Sequence
from typing import Final, cast, overload

Row = tuple[bytes, bytes | None]

_JOINED: Final = 256


def column_bytes(column: Sequence[bytes | None]) -> int:
    """Return the total bytes of all values; None counts 0.

    Joining them takes a tenth of the time of one `len` per value.

    >>> column_bytes([b"ab", None, b"c"])
    3
    """
    total = 0
    for start in range(0, len(column), _JOINED):
        piece = column[start : start + _JOINED]
        try:
            total += len(b"".join(cast("Sequence[bytes]", piece)))
        except TypeError:  # the piece contains None
            total += sum(map(len, filter(None, piece)))
    return total


class SortedRows(Sequence[Row]):
    """Rows in key order: keys and values (None deletes); a sequence of pairs.

    >>> list(SortedRows([b"a", b"b"], [b"1", None]))
    [(b'a', b'1'), (b'b', None)]
    """

    __slots__ = ("keys", "values")

    def __init__(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        self.keys = keys
        self.values = values

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Row]:
        return zip(self.keys, self.values, strict=True)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> "SortedRows": ...
    def __getitem__(self, index: int | slice) -> "Row | SortedRows":
        if isinstance(index, slice):
            return SortedRows(self.keys[index], self.values[index])
        return self.keys[index], self.values[index]
