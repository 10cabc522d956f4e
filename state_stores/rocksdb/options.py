"""RocksDB settings of all databases of a process. Pure.

Defaults are Kafka Streams', but memory is limited per process, because each rebalance changes the
number of databases.
"""

import inspect
import re
from dataclasses import dataclass, fields
from typing import Final, Literal, get_args

_MIB: Final = 1024 * 1024

CompactionStyle = Literal["universal", "level"]
Compression = Literal["none", "lz4", "zstd", "snappy"]

_LEAST: Final = {
    "block_cache_bytes": 0,
    "write_buffer_bytes": 64 * 1024,
    "family_write_buffer_bytes": 64 * 1024,
    "family_write_buffers": 2,
    "block_bytes": 1024,
    "bloom_filter_bits_per_key": 0,
    "background_threads": 1,
    "write_stall_timeout_ms": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RocksDBOptions:
    """Memory, disk and file descriptor settings of databases.

    Attributes:
        block_cache_bytes: Cache of uncompressed blocks, one per process. Indexes and filters (about
            1.5 MiB per million keys) are outside, which makes single reads 17 times as fast.
        write_buffer_bytes: Limit of memtables of all databases of the process; beyond it, the
            database being written flushes. After a kill, about this much is restored again.
        family_write_buffer_bytes: Maximum memtable of one store, reduced until all fit into
            `write_buffer_bytes`.
        family_write_buffers: Memtables of one store, including those being flushed. Writes wait
            when all are full.
        compaction: "universal" rewrites less, but can need twice the disk for a while; "level"
            needs more CPU.
        compression: Compression of files. "lz4" saves disk for text values; reads that missed the
            block cache were a third slower.
        block_bytes: Size of an uncompressed block, the unit of a disk read.
        bloom_filter_bits_per_key: Skips files without the key; 10 bits let 1 % through, 0 switches
            off this filter and the memtables' filter.
        max_open_files: File descriptors per database; None shares half of the process's limit among
            the expected databases.
        background_threads: Parallel flushes and compactions in the whole process.
        write_stall_timeout_ms: Time to retry a write while flushes can't keep up; then it fails.

    >>> RocksDBOptions(compression="lz4").block_cache_bytes // 1024**2
    64
    """

    block_cache_bytes: int = 64 * _MIB
    write_buffer_bytes: int = 64 * _MIB
    family_write_buffer_bytes: int = 16 * _MIB
    family_write_buffers: int = 4
    compaction: CompactionStyle = "universal"
    compression: Compression = "none"
    block_bytes: int = 4096
    bloom_filter_bits_per_key: int = 10
    max_open_files: int | None = None
    background_threads: int = 2
    write_stall_timeout_ms: int = 30_000

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if option.name in _LEAST:
                _check_number(option.name, value, least=_LEAST[option.name])
        if self.max_open_files is not None:
            _check_number("max_open_files", self.max_open_files, least=MIN_OPEN_FILES)
        _check_choice("compaction", self.compaction, get_args(CompactionStyle))
        _check_choice("compression", self.compression, get_args(Compression))


def meanings() -> dict[str, str]:
    """Return each option's description from the docstring above.

    >>> meanings()["background_threads"]
    'Parallel flushes and compactions in the whole process.'
    """
    _, _, section = inspect.cleandoc(RocksDBOptions.__doc__ or "").partition("\nAttributes:\n")
    entries: list[tuple[str, str]] = re.findall(
        r"^    (\w+): (.*(?:\n     .*)*)", section, re.MULTILINE
    )
    return {
        name: re.sub(r" Default [^.]*\.$", "", " ".join(text.split())) for name, text in entries
    }


#: RocksDB's own minimum of file descriptors per database.
MIN_OPEN_FILES: Final = 20


def _check_number(name: str, value: object, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"rocksdb option {name} must be a whole number >= {least}, got {value!r}")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        names = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"rocksdb option {name} must be one of {names}, got {value!r}")
