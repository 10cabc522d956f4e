"""Split of a commit's changes into RocksDB write batches. Pure.

Rows are sorted by key, because RocksDB inserts sorted rows four times as fast (with the sort: 1.7
times), and writes hold the GIL.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, repeat
from operator import add, itemgetter
from typing import NamedTuple

from tidewheel.state_stores.buffers.rows import SortedRows, column_bytes

Rows = Sequence[tuple[bytes, bytes | None]]

#: Overhead of a write batch entry in bytes: tag, family and two lengths.
_ENTRY_BYTES = 12

_key = itemgetter(0)


class Piece(NamedTuple):
    family: str
    rows: SortedRows


def split_writes(changes: Mapping[str, Rows], limit_bytes: int) -> Iterator[list[Piece]]:
    """Yield the pieces of each write batch: at most `limit_bytes`, or a single larger row.

    Rows with the same key keep their order.

    >>> [[list(piece.rows) for piece in write] for write in split_writes({"a": [(b"2", b"y"), (b"1", b"x")], "b": []}, 1)]
    [[[(b'1', b'x')]], [[(b'2', b'y')]]]
    """
    pieces: list[Piece] = []
    free_bytes = limit_bytes
    for family, unsorted in changes.items():
        rows = unsorted if isinstance(unsorted, SortedRows) else _sorted(unsorted)
        whole = _size(rows)
        if whole <= free_bytes:
            if len(rows):
                pieces.append(Piece(family, rows))
                free_bytes -= whole
            continue
        ends = list(accumulate(_sizes(rows), initial=0))
        start = 0
        while start < len(rows):
            stop = bisect_left(ends, ends[start] + free_bytes + 1) - 1
            if stop <= start:
                if pieces:
                    yield pieces
                    pieces, free_bytes = [], limit_bytes
                    continue
                stop = start + 1
            pieces.append(Piece(family, rows if stop - start == len(rows) else rows[start:stop]))
            free_bytes -= ends[stop] - ends[start]
            start = stop
    if pieces:
        yield pieces


def _sorted(rows: Rows) -> SortedRows:
    ordered = sorted(rows, key=_key)
    return SortedRows([key for key, _ in ordered], [value for _, value in ordered])


def _size(rows: SortedRows) -> int:
    entries = len(rows) * _ENTRY_BYTES
    return column_bytes(rows.keys) + column_bytes(rows.values) + entries


def _sizes(rows: SortedRows) -> Iterator[int]:
    values = map(len, [value or b"" for value in rows.values])
    return map(add, map(add, map(len, rows.keys), values), repeat(_ENTRY_BYTES))
