"""Rows of a shard in a changelog that all shards of a partition write. Pure."""

from collections.abc import Sequence
from typing import Final

from tidewheel.rebalance.model import Shard
from tidewheel.state_stores.spec import StoreKind, StoreSpec
from tidewheel.tasks.key_ranges.key_ranges import key_hashes
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
