"""Puts and deletes as two columns: what a commit writes, without an object per row."""

from collections.abc import Iterator, Sequence
from typing import overload

Row = tuple[bytes, bytes | None]


class SortedRows(Sequence[Row]):
    """Rows in key order: keys, and values (None deletes). Reads like a sequence of pairs.

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
