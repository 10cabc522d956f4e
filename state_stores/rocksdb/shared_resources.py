"""What all databases of a process share: one block cache, one write-buffer budget, the file descriptors.

Native options are made here and nowhere else, and always in full: RocksDB keeps settings of a family only as long as
it is open, and rocksdict would otherwise load what the files in the directory say (with an 8 MiB cache, and with
pickled values if `rocksdict-config.json` says so).
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

#: Memory is taken from the write-buffer budget in pieces of this size. RocksDB's own choice is 1 MiB, of which a
#: hundred almost empty databases would use up any budget and then flush at every write; no slower than that.
_ARENA_BYTES: Final = 64 * 1024

#: A family's write buffer is not cut below this, however many databases there are.
_LEAST_FAMILY_BUFFER_BYTES: Final = 1024 * 1024

#: Size of the filter before a write buffer, as a part of it: 10 bits for a row that takes 64 bytes there. With 2 million keys it took
#: a read from 2.6 to 1.5 µs, because a key that is in a file is no longer looked for in up to four skip lists; larger ones gained nothing.
_WRITE_BUFFER_FILTER: Final = 0.02
#: A smaller part lets too many keys through.
_LEAST_WRITE_BUFFER_FILTER: Final = 0.01
#: An empty write buffer has its filter already. All of them together take no more than this part of the budget, or there are none.
_FILTERS_OF_BUDGET: Final = 1 / 8

#: Smaller write buffers have none: an empty one would take a whole piece of the budget for it.
_LEAST_FILTERED_BYTES: Final = _LEAST_FAMILY_BUFFER_BYTES

_KEPT_LOG_FILES: Final = 3
_LOG_FILE_BYTES: Final = 1024 * 1024
_MANIFEST_BYTES: Final = 4 * 1024 * 1024
_MANIFEST_PREALLOCATION_BYTES: Final = 64 * 1024
_SYNC_EVERY_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedResources:
    """Made once per process by `create` and passed to every `TaskDatabase.open`.

    Attributes:
        block_cache: Blocks read from files.
        write_buffers: The budget of data not yet in files.
        max_open_files: File descriptors per database.
        family_write_buffer_bytes: Size of one family's write buffer.
        databases: How many databases the process may have open at once.
    """

    block_cache: Cache
    write_buffers: WriteBufferManager
    max_open_files: int
    family_write_buffer_bytes: int
    databases: int

    @classmethod
    def create(cls, options: RocksDBOptions, *, databases: int = 1) -> "SharedResources":
        """Make the cache and the budget, and raise the soft limit of open files to the hard one.

        Args:
            options: The user's settings.
            databases: How many databases the process may have open at once.

        Raises:
            StateStoreError: The limit of open files is too low for that many databases.
        """
        databases = max(1, databases)
        limit = raise_file_limit()
        return cls(
            block_cache=Cache(options.block_cache_bytes),
            # allow_stall would hold writers back inside the call, with the GIL held.
            write_buffers=WriteBufferManager(options.write_buffer_bytes, False),
            max_open_files=options.max_open_files or open_files_each(limit, databases),
            family_write_buffer_bytes=min(
                options.family_write_buffer_bytes,
                max(_LEAST_FAMILY_BUFFER_BYTES, options.write_buffer_bytes // databases),
            ),
            databases=databases,
        )

    def database_options(self, options: RocksDBOptions, *, filtered: int = 0) -> Options:
        """Return the native options of a database; also those of each of its families.

        Args:
            options: The user's settings.
            filtered: For a family of which single keys are read, how many such ones each database has: their write buffers
                get filters if there is room for all of them; 0 for one that is read otherwise.
        """
        native = Options(raw_mode=True)
        native.create_if_missing(True)
        native.create_missing_column_families(True)
        # All families are flushed together: no position can be on disk without the data it speaks of.
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
        # The newest layout this library writes by default in 0.3.29; older ones have slower filters.
        table.set_format_version(5)
        if options.bloom_filter_bits_per_key:
            table.set_bloom_filter(options.bloom_filter_bits_per_key, False)
        native.set_block_based_table_factory(table)

    def _write_buffer_filter(self, options: RocksDBOptions, families: int) -> float:
        """Return the part of a write buffer that its filter takes, 0 for none."""
        size = self.family_write_buffer_bytes
        if not families or not options.bloom_filter_bits_per_key or size < _LEAST_FILTERED_BYTES:
            return 0
        room = options.write_buffer_bytes * _FILTERS_OF_BUDGET / (self.databases * families * size)
        return 0 if room < _LEAST_WRITE_BUFFER_FILTER else min(_WRITE_BUFFER_FILTER, room)

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
        # Statistics and logs of a hundred databases cost more than they tell.
        native.set_skip_stats_update_on_db_open(True)
        native.set_stats_dump_period_sec(0)
        native.set_stats_persist_period_sec(0)
        native.set_keep_log_file_num(_KEPT_LOG_FILES)
        native.set_max_log_file_size(_LOG_FILE_BYTES)
        native.set_max_manifest_file_size(_MANIFEST_BYTES)
        native.set_manifest_preallocation_size(_MANIFEST_PREALLOCATION_BYTES)


def raise_file_limit() -> int:
    """Raise this process's soft limit of open files to the hard limit, and return what holds now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft in {hard, resource.RLIM_INFINITY}:
        return _finite(soft)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # macOS refuses "unlimited": what was allowed before still holds
        return _finite(soft)
    return _finite(hard)


def _finite(limit: int) -> int:
    """Return a limit as a number that can be divided."""
    most = 1_000_000
    return most if limit == resource.RLIM_INFINITY else min(limit, most)


def open_files_each(limit: int, databases: int) -> int:
    """Return the file descriptors of one database: half of the limit is for Kafka connections and the user.

    Raises:
        StateStoreError: Not even the least RocksDB works with is left.

    >>> open_files_each(65_536, 100)
    327
    """
    each = limit // 2 // databases
    if each < MIN_OPEN_FILES:
        raise StateStoreError(
            f"{databases} databases need at least {2 * databases * MIN_OPEN_FILES} open files, the limit of this "
            f"process is {limit}; raise it before the start: `ulimit -n {4 * databases * MIN_OPEN_FILES}` "
            "(or LimitNOFILE= in its systemd unit)"
        )
    return each
