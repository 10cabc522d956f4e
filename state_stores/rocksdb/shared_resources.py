"""Resources shared by all databases of a process: block cache, memtable budget, descriptors.

Only this module creates native options, and always all of them: otherwise rocksdict would load
settings from the directory.
"""

import resource
from dataclasses import dataclass
from typing import Final

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompactionStyle,
    DBCompressionType,
    Options,
    WriteBufferManager,
)

from tidewheel.state_stores.errors import StateStoreError
from tidewheel.state_stores.rocksdb.options import MIN_OPEN_FILES, RocksDBOptions

#: Allocation unit of memtables. With RocksDB's 1 MiB, a hundred almost empty databases would fill
#: the memtable budget and flush at every write.
_ARENA_BYTES: Final = 64 * 1024

_LEAST_FAMILY_BUFFER_BYTES: Final = 1024 * 1024

#: Share of a memtable for its bloom filter: 10 bits for a row of 64 bytes. With 2 million keys it
#: cut a read from 2.6 to 1.5 µs.
_WRITE_BUFFER_FILTER: Final = 0.02
_LEAST_WRITE_BUFFER_FILTER: Final = 0.01
#: Largest share of the memtable budget for filters, which even empty memtables allocate.
_FILTERS_OF_BUDGET: Final = 1 / 8

#: Smaller memtables get no filter: a filter takes a whole allocation unit, even if empty.
_LEAST_FILTERED_BYTES: Final = _LEAST_FAMILY_BUFFER_BYTES

_LOG_FILES_MAX: Final = 3
_LOG_FILE_BYTES: Final = 1024 * 1024
_MANIFEST_BYTES: Final = 4 * 1024 * 1024
_MANIFEST_PREALLOCATION_BYTES: Final = 64 * 1024
_SYNC_EVERY_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedResources:
    block_cache: Cache
    write_buffers: WriteBufferManager
    max_open_files: int
    family_write_buffer_bytes: int
    databases: int

    @classmethod
    def create(cls, options: RocksDBOptions, *, databases: int = 1) -> "SharedResources":
        """Create cache and memtable budget; raise the soft limit of open files to the hard one.

        Raises:
            StateStoreError: `max_open_files` is not set, and the limit of open files is too low.
        """
        databases = max(1, databases)
        limit = raise_file_limit()
        return cls(
            block_cache=Cache(options.block_cache_bytes),
            # allow_stall would block writers inside the call, with the GIL held.
            write_buffers=WriteBufferManager(options.write_buffer_bytes, False),
            max_open_files=options.max_open_files or open_files_each(limit, databases),
            family_write_buffer_bytes=min(
                options.family_write_buffer_bytes,
                max(_LEAST_FAMILY_BUFFER_BYTES, options.write_buffer_bytes // databases),
            ),
            databases=databases,
        )

    def database_options(self, options: RocksDBOptions, *, filtered: int = 0) -> Options:
        """Return the native options of a database or a family.

        `filtered`: number of the database's families whose memtables get bloom filters; 0: none.
        """
        native = Options(raw_mode=True)
        native.create_if_missing(True)
        native.create_missing_column_families(True)
        # All families flush together: no position can be on disk without its data.
        native.set_atomic_flush(True)
        native.set_paranoid_checks(True)
        self._set_memory(native, options)
        if part := self._write_buffer_filter(options, filtered):
            native.set_memtable_whole_key_filtering(True)
            native.set_memtable_prefix_bloom_ratio(part)
        self._set_files(native, options)
        return native

    def _set_memory(self, native: Options, options: RocksDBOptions) -> None:
        native.set_write_buffer_manager(self.write_buffers)
        native.set_write_buffer_size(self.family_write_buffer_bytes)
        native.set_max_write_buffer_number(options.family_write_buffers)
        native.set_arena_block_size(_ARENA_BYTES)
        table = BlockBasedOptions()
        table.set_block_cache(self.block_cache)
        table.set_block_size(options.block_bytes)
        # Files of older format versions have slower filters.
        table.set_format_version(5)
        if options.bloom_filter_bits_per_key:
            table.set_bloom_filter(options.bloom_filter_bits_per_key, False)
        native.set_block_based_table_factory(table)

    def _write_buffer_filter(self, options: RocksDBOptions, families: int) -> float:
        size = self.family_write_buffer_bytes
        if not families or not options.bloom_filter_bits_per_key or size < _LEAST_FILTERED_BYTES:
            return 0
        filter_share = (
            options.write_buffer_bytes * _FILTERS_OF_BUDGET / (self.databases * families * size)
        )
        return (
            0
            if filter_share < _LEAST_WRITE_BUFFER_FILTER
            else min(_WRITE_BUFFER_FILTER, filter_share)
        )

    def _set_files(self, native: Options, options: RocksDBOptions) -> None:
        native.set_compaction_style(
            DBCompactionStyle.universal()
            if options.compaction == "universal"
            else DBCompactionStyle.level()
        )
        native.set_compression_type(getattr(DBCompressionType, options.compression)())
        native.set_max_open_files(self.max_open_files)
        native.increase_parallelism(options.background_threads)
        native.set_bytes_per_sync(_SYNC_EVERY_BYTES)
        native.set_skip_stats_update_on_db_open(True)
        native.set_stats_dump_period_sec(0)
        native.set_stats_persist_period_sec(0)
        native.set_keep_log_file_num(_LOG_FILES_MAX)
        native.set_max_log_file_size(_LOG_FILE_BYTES)
        native.set_max_manifest_file_size(_MANIFEST_BYTES)
        native.set_manifest_preallocation_size(_MANIFEST_PREALLOCATION_BYTES)


def raise_file_limit() -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft in {hard, resource.RLIM_INFINITY}:
        return _finite(soft)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # macOS rejects "unlimited"; the old limit still applies
        return _finite(soft)
    return _finite(hard)


def _finite(limit: int) -> int:
    most = 1_000_000
    return most if limit == resource.RLIM_INFINITY else min(limit, most)


def open_files_each(limit: int, databases: int) -> int:
    """Return the file descriptors of one database; half of the limit is for Kafka and the user.

    >>> open_files_each(65_536, 100)
    327
    """
    per_database = limit // 2 // databases
    if per_database < MIN_OPEN_FILES:
        raise StateStoreError(
            f"{databases} databases need at least {2 * databases * MIN_OPEN_FILES} open files, the limit of this "
            f"process is {limit}; raise it before the start: `ulimit -n {4 * databases * MIN_OPEN_FILES}` "
            "(or LimitNOFILE= in its systemd unit)"
        )
    return per_database
