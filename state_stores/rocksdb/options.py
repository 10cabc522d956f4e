"""Memory, compaction and file settings of all databases of a process, as one value. Pure.

The defaults are Kafka Streams' where it has one (universal compaction, no compression, 16 MiB write buffers, 4 KiB
blocks, a bloom filter), with one difference: memory is counted per process, not per store, because a process has as
many databases as it has tasks and that number changes at every rebalance. What was measured on the way is told at
each option (20-byte keys, 26-byte values, 100,000 to 1 million keys, two cores).
"""

import inspect
import re
from dataclasses import dataclass, fields
from typing import Final, Literal, get_args

_MIB: Final = 1024 * 1024

CompactionStyle = Literal["universal", "level"]
Compression = Literal["none", "lz4", "zstd", "snappy"]

#: The least each whole-number option takes.
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
    """How databases use memory, disk and file descriptors.

    Attributes:
        block_cache_bytes: Decompressed blocks kept for reads, shared by all databases of the process. Indexes and
            filters are held beside it (about 1.5 MiB per million keys): inside it they were evicted by data blocks
            once it was full, and single reads fell from 300,000 to 18,000 per second. Default 64 MiB.
        write_buffer_bytes: Written data not yet in files, all databases of the process together; when it is passed,
            the database that is being written flushes. It also bounds what a killed process has to replay.
            Default 64 MiB.
        family_write_buffer_bytes: Written data of one store not yet in a file, at most. Four times more made writes
            half as fast (a deeper skip list), less only made more files. With many databases the real size is
            smaller, so that all of them fit into `write_buffer_bytes`. Default 16 MiB.
        family_write_buffers: Write buffers of one store, the one being filled and those being flushed. When all are
            full, writes wait. Default 4.
        compaction: "universal" rewrites data less often and may for a while need twice the disk; "level" needs less
            disk and more processor. Default "universal".
        compression: How files are compressed. "lz4" saves disk for values that are text; with it, reads that miss the block cache were
            a third slower. Default "none".
        block_bytes: Size of a block before compression: what a read that misses the cache decodes. Default 4 KiB.
        bloom_filter_bits_per_key: Spares reading files that don't have a key; 10 bits let 1 % through, 0 switches
            the filter off, and that before the write buffers as well. Default 10.
        max_open_files: File descriptors per database; None shares half of the process's limit among the databases
            that are expected. Default None.
        background_threads: Flushes and compactions at once, in the whole process. Default 2.
        write_stall_timeout_ms: How long a write is tried again while flushes can't keep up, before it fails.
            Default 30 seconds.

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
    """Return what each option means, from the docstring above, without the sentence on its default.

    >>> meanings()["background_threads"]
    'Flushes and compactions at once, in the whole process.'
    """
    _, _, section = inspect.cleandoc(RocksDBOptions.__doc__ or "").partition("\nAttributes:\n")
    entries: list[tuple[str, str]] = re.findall(
        r"^    (\w+): (.*(?:\n     .*)*)", section, re.MULTILINE
    )
    return {
        name: re.sub(r" Default [^.]*\.$", "", " ".join(text.split())) for name, text in entries
    }


#: RocksDB itself works with no fewer file descriptors per database.
MIN_OPEN_FILES: Final = 20


def _check_number(name: str, value: object, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"rocksdb option {name} must be a whole number >= {least}, got {value!r}")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        known = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"rocksdb option {name} must be one of {known}, got {value!r}")
