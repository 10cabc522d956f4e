"""Changelogs of every kind of store on a real broker, and the result of their replay."""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaError, Message, Producer
from hypothesis import strategies as st

from tests.integration.cluster import Cluster, Received, until
from tests.state_stores.bulk_restore.logs import (
    SPECS,
    Logged,
    logs,
    noted,
    replayed,
    row_key,
)
from tidewheel import StreamsConfig
from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.state_stores.buffers.timed_buffer import read_store_time
from tidewheel.state_stores.bulk_restore.content import StoredRow, stored_rows
from tidewheel.state_stores.layout.segments import SegmentLayout
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.rocksdb.shared_resources import SharedResources
from tidewheel.state_stores.rocksdb.task_database import TaskDatabase
from tidewheel.state_stores.spec import SEGMENTED_KINDS, StoreKind, StoreSpec
from tidewheel.streams.bulk.stores import BulkStore

PARTITIONS: Final = 2

_FOR_EVER_MS: Final = 1 << 62

#: Average number of drawn records.
_VARIED: Final = 7

#: Expires rows at time 0.
_LATE_ROW: Final = 510_000

#: The client replaces timestamp 0 by the current time.
_FIRST_MS: Final = 1


@dataclass(frozen=True, slots=True)
class Piece:
    records: Mapping[tuple[str, int], list[Logged]]
    committed: bool


def name_of(kind: str) -> str:
    return kind.replace(" ", "-")


def is_empty(kind: str, partition: int) -> bool:
    return partition == PARTITIONS - 1 and bool(tuple(SPECS).index(kind) % 2)


def histories(kinds: Sequence[str]) -> st.SearchStrategy[tuple[list[Piece], list[Piece]]]:
    """Make transactions before and after a snapshot.

    Each non-empty partition ends with an aborted transaction and its marker.
    """
    committed, aborted = partial(_pieces, kinds, True), partial(_pieces, kinds, False)
    before = st.tuples(committed(_begun), aborted(_undone)).map(list)
    after = st.tuples(aborted(_undone), committed(_gone_on), aborted(_undone)).map(list)
    return st.tuples(before, after)


def is_varied(history: tuple[list[Piece], list[Piece]]) -> bool:
    """hypothesis begins without any record."""
    records = [
        record for pieces in history for piece in pieces for record in piece.records.values()
    ]
    return sum(map(len, records)) > _VARIED * len(records)


def _pieces(
    kinds: Sequence[str], committed: bool, certain: Callable[[StoreSpec], list[Logged]]
) -> st.SearchStrategy[Piece]:
    records = {
        (kind, partition): logs(SPECS[kind]).map(partial(_behind, certain(SPECS[kind])))
        for kind in kinds
        for partition in range(PARTITIONS)
        if not is_empty(kind, partition)
    }
    return st.builds(Piece, st.fixed_dictionaries(records), st.just(committed))


def _behind(certain: list[Logged], drawn: list[Logged]) -> list[Logged]:
    return certain + drawn


def _begun(spec: StoreSpec) -> list[Logged]:
    early, late = (0, 0), (_LATE_ROW, 1_200 if spec.kind is StoreKind.VERSIONED else 200)
    return [
        _logged(spec, b"old", b"0", *early),
        _logged(spec, b"twice", b"1", *late),
        _logged(spec, b"twice", b"2", *late),
        _logged(spec, b"deleted", b"3", *late),
        _logged(spec, b"deleted", None, *late),
        _logged(spec, b"kept", b"4", *late),
        _logged(spec, b"deleted later", b"5", *late),
    ]


def _gone_on(spec: StoreSpec) -> list[Logged]:
    late = (_LATE_ROW, 1_210 if spec.kind is StoreKind.VERSIONED else 210)
    return [
        _logged(spec, b"deleted later", None, *late),
        _logged(spec, b"twice", b"6", *late),
        _logged(spec, b"new", b"7", *late),
    ]


def _undone(spec: StoreSpec) -> list[Logged]:
    """Return records that would show if they counted."""
    far = (10 * _LATE_ROW, 1_000_000)
    return [
        _logged(spec, b"kept", b"wrong", _LATE_ROW, 220),
        _logged(spec, b"twice", None, _LATE_ROW, 220),
        _logged(spec, b"never", b"wrong", *far),
    ]


def _logged(
    spec: StoreSpec, key: bytes, value: bytes | None, row_ms: int, timestamp: int
) -> Logged:
    return Logged(0, row_key(spec, key, row_ms), value, timestamp)


def many_records(kinds: Sequence[str], count: int, *, seed: int = 7) -> Piece:
    chance = random.Random(seed)
    made: dict[tuple[str, int], list[Logged]] = {}
    for kind in kinds:
        spec = SPECS[kind]
        layout = SegmentLayout.of(spec) if spec.kind in SEGMENTED_KINDS else None
        for partition in range(PARTITIONS):
            records: list[Logged] = []
            for offset in range(count):
                key = b"key-%d" % chance.randrange(max(count // 5, 1))
                if layout is not None:
                    key += bytes(layout.tail - 1) + bytes([chance.randrange(4)])
                value = None if chance.random() < 0.2 else chance.randbytes(20)
                records.append(Logged(offset, key, value, offset))
            made[kind, partition] = records
    return Piece(made, committed=True)


def stores_of(application_id: str, kinds: Sequence[str]) -> dict[str, BulkStore]:
    return {
        name_of(kind): BulkStore(
            spec=replace(SPECS[kind], name=name_of(kind)),
            topic=f"{application_id}-{name_of(kind)}-changelog",
            subtopology=0,
            partitions=PARTITIONS,
        )
        for kind in kinds
    }


def _knows_time(spec: StoreSpec) -> bool:
    return spec.kind is StoreKind.VERSIONED or spec.ttl_ms is not None


def _expires(spec: StoreSpec) -> bool:
    return spec.kind in SEGMENTED_KINDS


class Changelogs:
    def __init__(
        self, cluster: Cluster, application_id: str, kinds: Sequence[str] = tuple(SPECS)
    ) -> None:
        self._cluster = cluster
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "transactional.id": f"{application_id}-writer",
            }
        )
        self._producer.init_transactions(60)
        self.kinds = kinds
        #: Number of written records in committed transactions.
        self._written: Counter[tuple[str, int]] = Counter()
        #: Records read since the last write.
        self._read: dict[str, list[Received]] = {}
        self.stores = stores_of(application_id, kinds)
        for store in self.stores.values():
            # Old timestamps make the broker compact within seconds. Stores with a time or versions
            # are not compacted, because two readings would differ.
            lag_ms = _FOR_EVER_MS if _knows_time(store.spec) else 0
            cluster.create(
                {store.topic: PARTITIONS},
                cleanup_policy="compact,delete" if _expires(store.spec) else "compact",
                min_compaction_lag_ms=str(lag_ms),
            )

    def write(self, written: Sequence[Piece]) -> None:
        self._read.clear()
        last: dict[TopicPartition, int] = {}

        def delivered(error: KafkaError | None, message: Message) -> None:
            assert error is None, error
            where = TopicPartition(message.topic() or "", message.partition() or 0)
            last[where] = message.offset() or 0

        for piece in written:
            self._producer.begin_transaction()
            for (kind, partition), records in piece.records.items():
                topic = self.stores[name_of(kind)].topic
                # A compacted topic rejects records without a key.
                keyed = [each for each in records if each.key is not None]
                self._written[kind, partition] += len(keyed) * piece.committed
                for each in keyed:
                    self._producer.produce(
                        topic,
                        each.value,
                        each.key,
                        partition,
                        timestamp=each.timestamp + _FIRST_MS,
                        on_delivery=delivered,
                    )
                    self._producer.poll(0)
            self._producer.flush(60)
            if piece.committed:
                self._producer.commit_transaction(60)
            else:
                self._producer.abort_transaction(60)
        # The broker responds before it writes the markers that readers need.
        until(
            lambda: all(
                end > last[where] + 1
                for where, end in self._cluster.admin.stable_offsets(list(last)).items()
            ),
            "the markers are written",
        )

    def age(self) -> None:
        compacted = [kind for kind in self.kinds if not _knows_time(SPECS[kind])]

        def is_compacted() -> bool:
            self._read.clear()
            return all(len(self.read(kind, 0)) < self._written[kind, 0] for kind in compacted)

        until(is_compacted, "the broker has compacted the changelogs")
        expiring = [
            self.stores[name_of(kind)].changelog(partition)
            for kind in self.kinds
            for partition in range(PARTITIONS)
            if _expires(SPECS[kind]) and not is_empty(kind, partition)
        ]
        self._cluster.admin.delete_records(dict.fromkeys(expiring, 1))
        self._read.clear()

    def read(self, kind: str, partition: int) -> list[Logged]:
        if kind not in self._read:
            self._read[kind] = self._cluster.read(self.stores[name_of(kind)].topic)
        return [
            Logged(each.offset, each.key, each.value, each.timestamp)
            for each in self._read[kind]
            if each.partition == partition
        ]

    def ends(self) -> dict[TopicPartition, int]:
        """Return the end of each changelog's partition."""
        return {
            partition: end
            for store in self.stores.values()
            for partition, end in self._cluster.log_ends(store.topic).items()
        }

    def replayed(self, kind: str, partition: int, end: int | None = None) -> list[StoredRow]:
        """Return the rows after a replay of a partition, up to an offset if one is given."""
        records = self.read(kind, partition)
        database, time = replayed(
            SPECS[kind], [each for each in records if end is None or each.offset < end]
        )
        assert noted(database) == time
        return rows_in(SPECS[kind], database)


def rows_in(spec: StoreSpec, database: Database) -> list[StoredRow]:
    observed_ms, _ = read_store_time(database, spec.name)
    return list(stored_rows(spec, database.iterate(spec.name, None, None), observed_ms))


def assert_restored(
    changelogs: Changelogs,
    config: StreamsConfig,
    ends: Mapping[TopicPartition, int] | None = None,
) -> None:
    """Check that the stores equal a replay of their changelogs, up to `ends` if given."""
    resources = SharedResources.create(config.rocksdb)
    families = [store.name for store in changelogs.stores.values()]
    slot = Path(config.state_dir) / config.application_id / "0"
    for partition in range(PARTITIONS):
        path = slot / str(TaskId(0, partition))
        database = TaskDatabase.open(path, families, config.rocksdb, resources)
        try:
            for kind in changelogs.kinds:
                store = changelogs.stores[name_of(kind)]
                end = None if ends is None else ends[store.changelog(partition)]
                expected = changelogs.replayed(kind, partition, end)
                assert rows_in(store.spec, database) == expected, kind
        finally:
            database.close()
