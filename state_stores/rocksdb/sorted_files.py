"""Sorted SST files: written row by row in key order, and read back including deletes.

RocksDB has no API to read a file's deletes, which merging runs needs. So this module reads the one
layout it writes: block-based table, format 5, no compression, full keys in the index. Python can't
verify the block checksums: readers of foreign files compare the file's digest first.

For the layout see RocksDB's `table/format.cc`.
"""

import mmap
import struct
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from rocksdict import BlockBasedOptions, ChecksumType, DBCompressionType, Options, SstFileWriter

from tidewheel.state_stores.errors import StateStoreError, StoreCorruptedError
from tidewheel.state_stores.layout.headers import CONTINUATION_BIT, read_varint
from tidewheel.state_stores.rocksdb.failures import failure

_FORMAT: Final = 5
_MAGIC: Final = 0x88E241B785F4CFF7
_FOOTER_BYTES: Final = 53
_FOOTER_END: Final = struct.Struct("<IQ")
_COUNT: Final = struct.Struct("<I")
#: Bytes after every key: row type (put or delete) and sequence number, here 0.
_KEY_TAIL: Final = 8
_DELETE: Final = 0
_PUT: Final = 1

_BLOCK_BYTES: Final = 4096
_FILTER_BITS: Final = 10

_UNSORTED: Final = "strict ascending order"


def write_sorted_file(path: Path, rows: Iterable[tuple[bytes, bytes | None]]) -> int:
    """Write rows (value None: a delete) in strictly ascending key order; return their number.

    The file is durable on return. Raises `StateStoreError`, also without any row.
    """
    count = 0
    try:
        writer = SstFileWriter(_options())
        writer.open(str(path))
        for count, (key, value) in enumerate(rows, 1):  # noqa: B007 - the last number is the count
            if value is None:
                del writer[key]
            else:
                writer[key] = value
        writer.finish()
    except Exception as error:
        if type(error) is not Exception:  # an error of `rows`, not of RocksDB
            raise
        action = f"write sorted file {path.name}"
        if _UNSORTED in str(error):
            raise StateStoreError(
                f"could not {action} in {path.parent}: row {count} does not follow the one before; rows need ascending "
                "keys, each key once"
            ) from error
        raise failure(error, path.parent, action) from error
    return count


def _options() -> Options:
    table = BlockBasedOptions()
    table.set_format_version(_FORMAT)
    table.set_checksum_type(ChecksumType.xxh3())
    table.set_block_size(_BLOCK_BYTES)
    table.set_index_block_restart_interval(1)
    table.set_bloom_filter(_FILTER_BITS, False)
    options = Options(raw_mode=True)
    options.set_compression_type(DBCompressionType.none())
    options.set_block_based_table_factory(table)
    return options


def read_sorted_file(path: Path) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield the rows of a file from `write_sorted_file`; raise `StoreCorruptedError` for others."""
    with _viewed(path) as view:
        for offset, size in _blocks(path, view):
            rows = _rows(path, bytes(view[offset : offset + size]))
            yield from rows


def bounds_of(path: Path) -> tuple[bytes, bytes]:
    """Return a file's smallest and largest key; raise `StoreCorruptedError` if damaged."""
    with _viewed(path) as view:
        blocks = _blocks(path, view)
        (first, first_size), (last, last_size) = blocks[0], blocks[-1]
        least = _rows(path, bytes(view[first : first + first_size]))[0][0]
        greatest = _rows(path, bytes(view[last : last + last_size]))[-1][0]
    return least, greatest


@contextmanager
def _viewed(path: Path) -> Generator[memoryview]:
    with (
        path.open("rb") as file,
        closing(_mapped(path, file.fileno())) as data,
        memoryview(data) as view,
    ):
        yield view


def _mapped(path: Path, descriptor: int) -> mmap.mmap:
    try:
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except ValueError as error:  # an empty file can't be mapped
        raise _damaged(path, "it is empty") from error


def _blocks(path: Path, data: memoryview) -> list[tuple[int, int]]:
    end = len(data)
    if end <= _FOOTER_BYTES:
        raise _damaged(path, "it is too short")
    version, magic = _FOOTER_END.unpack_from(data, end - _FOOTER_END.size)
    if magic != _MAGIC or version != _FORMAT:
        raise _damaged(path, "its end is not that of a sorted file of ours")
    try:
        footer = bytes(data[end - _FOOTER_BYTES :])
        _, position = read_varint(footer, 1)
        _, position = read_varint(footer, position)
        offset, position = read_varint(footer, position)
        size, _ = read_varint(footer, position)
        blocks = _index(bytes(data[offset : offset + size]))
    except (IndexError, struct.error, ValueError) as error:
        raise _damaged(path, "its index makes no sense") from error
    if not blocks or any(start + size > end for start, size in blocks):
        raise _damaged(path, "its index points past its end")
    return blocks


def _index(block: bytes) -> list[tuple[int, int]]:
    stop = _entries_end(block)
    position = 0
    places: list[tuple[int, int]] = []
    while position < stop:
        shared, position = read_varint(block, position)
        length, position = read_varint(block, position)
        if shared:
            raise ValueError("shared keys in an index")
        offset, position = read_varint(block, position + length)
        size, position = read_varint(block, position)
        places.append((offset, size))
    return places


def _rows(path: Path, block: bytes) -> list[tuple[bytes, bytes | None]]:
    rows: list[tuple[bytes, bytes | None]] = []
    key = b""
    position = 0
    try:
        stop = _entries_end(block)
        while position < stop:
            shared, added, length = block[position : position + 3]
            if (shared | added | length) < CONTINUATION_BIT:
                position += 3
            else:
                shared, position = read_varint(block, position)
                added, position = read_varint(block, position)
                length, position = read_varint(block, position)
            middle = position + added
            key = key[:shared] + block[position:middle]
            position = middle + length
            kind = key[-_KEY_TAIL]
            if kind == _PUT:
                rows.append((key[:-_KEY_TAIL], block[middle:position]))
            elif kind == _DELETE:
                rows.append((key[:-_KEY_TAIL], None))
            else:
                raise _damaged(path, f"it has a row of kind {kind}")
    except (IndexError, ValueError, struct.error) as error:
        raise _damaged(path, "a block makes no sense") from error
    if position != stop or not rows:
        raise _damaged(path, "a block has no clean end")
    return rows


def _entries_end(block: bytes) -> int:
    (restarts,) = _COUNT.unpack_from(block, len(block) - _COUNT.size)
    end: int = len(block) - _COUNT.size * (restarts + 1)
    if end < 0:
        raise ValueError("more restart points than a block can have")
    return end


def _damaged(path: Path, why: str) -> StoreCorruptedError:
    return StoreCorruptedError(
        f"{path} is not a sorted file that this version can read: {why}; delete it, the changelog is read instead"
    )
