"""Rows of a shard in a changelog that all shards of a partition write, and in its sorted runs."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Final

from tidewheel.rebalance.model import Shard
from tidewheel.state_stores.bulk_restore.merge import keep_rows
from tidewheel.state_stores.bulk_restore.run_files import BuiltRuns
from tidewheel.state_stores.layout.restore import StoreTime
from tidewheel.state_stores.layout.segments import SegmentLayout
from tidewheel.state_stores.spec import SEGMENTED_KINDS, StoreKind, StoreSpec
from tidewheel.tasks.key_ranges.key_ranges import key_hash, key_hashes
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

#: Bytes after the record's key in a changelog key: start and sequence number of a window, both ends
#: of a session (Kafka Streams' WindowKeySchema, SessionKeySchema).
_TAIL_BYTES: Final = {
    StoreKind.WINDOW: 12,
    StoreKind.TIMESTAMPED_WINDOW: 12,
    StoreKind.SESSION: 16,
}


def rows_of(shard: Shard, spec: StoreSpec, run: SourceRecords) -> Sequence[int]:
    """Return the rows of changelog records that hold a shard's keys, in order.

    >>> run = SourceRecords("app-counts-changelog", 0, [7, 8], [b"alice", b"bob"], [b"1", b"2"], [0, 0], None)
    >>> from tidewheel import Serdes
    >>> spec = StoreSpec(
    ...     name="counts", kind=StoreKind.KEY_VALUE, key_serde=Serdes.string(), value_serde=Serdes.string()
    ... )
    >>> rows_of(Shard(0, 2), spec, run), rows_of(Shard(1, 2), spec, run)
    ([0], [1])
    """
    tail = _TAIL_BYTES.get(spec.kind, 0)
    keys = [key[:-tail] if tail and key else key for key in run.raw_keys]
    first, end = shard.first_hash, shard.end_hash
    hashes = key_hashes(keys, run.offsets)
    return [row for row, hash_ in enumerate(hashes) if first <= hash_ < end]


def own_runs(runs: BuiltRuns, spec: StoreSpec, shard: Shard) -> BuiltRuns:
    """Return runs of a partition with a shard's rows only; replaces their files.

    Raises:
        SnapshotRefused: The rows of a file differ from its run.
        StoreCorruptedError: A file can't be read.
    """
    if shard.is_whole:
        return runs
    is_own = row_test(shard, spec)
    parts = [keep_rows(file, spec, is_own) for file in runs.files]
    return BuiltRuns(
        tuple(file for part in parts for file in part.files),
        # Not the time of all rows: by those of a shard that is ahead, this one's would expire.
        reduce(StoreTime.later, (part.time for part in parts), StoreTime()),
    )


def row_test(shard: Shard, spec: StoreSpec) -> Callable[[bytes], bool]:
    """Return the test of a row's disk key: True if the row is the shard's.

    >>> from tidewheel import Serdes
    >>> spec = StoreSpec(
    ...     name="counts", kind=StoreKind.KEY_VALUE, key_serde=Serdes.string(), value_serde=Serdes.string()
    ... )
    >>> is_own = row_test(Shard(0, 2), spec)
    >>> is_own(b"alice"), is_own(b"bob")
    (True, False)
    """
    first, end = shard.first_hash, shard.end_hash
    if spec.kind not in SEGMENTED_KINDS:
        return lambda disk_key: first <= key_hash(disk_key, 0) < end
    key_of = SegmentLayout.of(spec).key_of
    return lambda disk_key: first <= key_hash(key_of(disk_key), 0) < end
