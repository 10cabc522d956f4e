"""Global stores of one process: all partitions of their topics.

One thread applies records: the updater's in a worker, the caller's in the test driver. Rows and
their position are written together, so a crash leaves both or neither. Other threads read the
database (`GlobalStoreView`), so a query sees whole batches.

A table's rows are written unchanged after a deserialisation check. A restore passes records to
users' processors again.
"""

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.state_stores.errors import StoreCorruptedError, StreamsError
from tidewheel.state_stores.layout.envelope import unwrap_value
from tidewheel.state_stores.layout.position import Position
from tidewheel.state_stores.layout.restore import fold, position_name
from tidewheel.state_stores.layout.stored_values import StoredValues
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.stores.key_value_store import CommittedKeyValueStore
from tidewheel.tasks.errors import GlobalStoreDamagedError
from tidewheel.tasks.processing.api.app_configs import NO_CONFIGS, AppConfigs
from tidewheel.tasks.processing.api.coroutines import close_loop
from tidewheel.tasks.processing.api.handlers import FAILURES, ErrorContext
from tidewheel.tasks.processing.api.processor import PunctuationType
from tidewheel.tasks.processing.api.record import Record, RecordMetadata
from tidewheel.tasks.processing.api.supplied import checked_processor
from tidewheel.tasks.processing.api.topology_spec import GlobalStoreSpec, node_locations
from tidewheel.tasks.processing.engine.drops import Drop
from tidewheel.tasks.processing.engine.error_policy import (
    ErrorHandlers,
    ErrorPolicy,
    input_failure,
    node_failure,
)
from tidewheel.tasks.processing.engine.output import OutputColumns
from tidewheel.tasks.processing.engine.processor_node import ProcessorNode
from tidewheel.tasks.processing.engine.punctuation import Schedule
from tidewheel.tasks.processing.engine.record_batch import (
    RecordBatch,
    SourceRecords,
    first_none,
    has_none,
)
from tidewheel.tasks.processing.engine.source import SourceNode
from tidewheel.tasks.task.state_manager import StateManager, StateSettings

_log = logging.getLogger(__name__)

#: Task id of global stores in messages and for exception handlers.
GLOBAL: Final = "global"
#: Advice in the error for stored keys that reads can't find.
_READ_AGAIN: Final = (
    "delete the directory `global` of the application's state, and the topic is read again, or keep the order with "
    "sort_keys=False of the key serde (docs/adr/0014-equal-keys-have-equal-bytes.md)"
)

_UNHANDLED: Final = (
    "The processing_exception_handler is not asked about processors of global stores; set "
    "processing_exception_handler_global_enabled=True to have it asked"
)

#: Bytes of committed entries that a global store with a user's processor caches.
_READ_CACHE_BYTES: Final = 8 * 1024 * 1024


class GlobalCounters:
    __slots__ = ("applied", "dropped", "skipped")

    def __init__(self) -> None:
        self.applied = 0
        self.dropped = 0
        self.skipped = 0


class GlobalStateManager(StateManager):
    """Databases of the global stores. Positions are offsets of their topics, not of changelogs."""

    def __init__(
        self,
        stores: Sequence[GlobalStoreSpec],
        partitions: Mapping[str, int],
        *,
        application_id: str,
        open_persistent: Callable[[list[str]], Database],
        open_in_memory: Callable[[list[str]], Database],
        now: Callable[[], int],
    ) -> None:
        super().__init__(
            TaskId(-1, -1),
            tuple(store.store for store in stores),
            StateSettings(
                application_id=application_id,
                cache_enabled=False,
                read_cache_bytes_per_store=_READ_CACHE_BYTES,
            ),
            open_persistent=open_persistent,
            open_in_memory=open_in_memory,
            now=now,
        )
        self._topics = {store.store.name: store.topic for store in stores}
        #: Store of each partition of a global topic.
        self.changelogs = {
            TopicPartition(topic, partition): store
            for store, topic in self._topics.items()
            for partition in range(partitions[topic])
        }

    def serde_topic(self, store: str) -> str:
        return self._topics[store]

    def position_of(self, partition: TopicPartition) -> Position | None:
        database = self.database(self.changelogs[partition])
        return Position.decode(database.position(position_name(*partition)))

    def forget(self, store: str) -> None:
        partitions = [partition for partition, name in self.changelogs.items() if name == store]
        self.database(store).write({}, {position_name(*partition): b"" for partition in partitions})
        self.stores[store].buffer.discard()
        self.database(store).clear(store)

    def open_databases(self, store: str) -> list[Database]:
        database = self._databases.get(self.specs[store].persistent)
        return [] if database is None else [database]


class GlobalStoreView(CommittedKeyValueStore[Any, Any]):
    """Read-only view of a global store's committed rows, for tasks and queries of any thread.

    Damaged rows raise `GlobalStoreDamagedError`, because the reading task is not at fault.
    """

    def __init__(self, manager: GlobalStateManager, name: str) -> None:
        super().__init__(
            manager.specs[name], manager.serde_topic(name), lambda: manager.open_databases(name)
        )

    def _get(self, key: bytes) -> Any:
        with _watched(self.name):
            return super()._get(key)

    def _iterate(
        self, lower: bytes | None, upper: bytes | None, *, reverse: bool
    ) -> Iterator[tuple[bytes, Any]]:
        with _watched(self.name):
            yield from super()._iterate(lower, upper, reverse=reverse)

    def key_bytes(self, key: Any) -> bytes:
        return self._key_bytes(key)

    def plain_values(self, keys: Sequence[bytes]) -> list[Any]:
        """Return the values of serialised keys without timestamps; None where absent."""
        with _watched(self.name):
            (database,) = self._opened()
            stored_values = database.get_many(self.name, keys)
            decode = StoredValues(self._spec.value_serde, self.name).deserialize
            topic = self._topic
            return [
                None if data is None else decode(topic, unwrap_value(data)[0])
                for data in stored_values
            ]

    def _refuse(self, *_arguments: Any) -> NoReturn:
        raise StreamsError(
            f"store {self.name} is global: processors of tasks read it, only its own topic changes it; write a record to "
            f"topic {self._topic} instead"
        )

    put = put_all = put_if_absent = delete = __setitem__ = __delitem__ = _refuse


@contextmanager
def _watched(store: str) -> Generator[None]:
    try:
        yield
    except StoreCorruptedError as error:
        raise GlobalStoreDamagedError(f"global store {store}: {error}") from error


class GlobalStores:
    """Global stores of one process. Only one thread may call `apply` and `commit`."""

    def __init__(
        self,
        stores: Sequence[GlobalStoreSpec],
        partitions: Mapping[str, int],
        handlers: ErrorHandlers,
        *,
        application_id: str,
        state_dir: Path,
        open_persistent: Callable[[list[str]], Database],
        open_in_memory: Callable[[list[str]], Database],
        now_ms: Callable[[], int],
        app_configs: AppConfigs = NO_CONFIGS,
    ) -> None:
        self.specs = {spec.topic: spec for spec in stores}
        self.counters = GlobalCounters()
        self.manager = GlobalStateManager(
            stores,
            partitions,
            application_id=application_id,
            open_persistent=open_persistent,
            open_in_memory=open_in_memory,
            now=lambda: max(self._timestamp, 0),
        )
        self.views = {
            spec.store.name: GlobalStoreView(self.manager, spec.store.name) for spec in stores
        }
        self.application_id = application_id
        self.state_dir = state_dir
        self.app_configs = app_configs
        self.now_ms = now_ms
        # No dead letters: they would need a producer; Kafka Streams writes none either (KIP-1034).
        self._has_handler = handlers.processing_global
        self._policy = ErrorPolicy(
            replace(handlers, dead_letter_topic=None),
            _not_written,
            locations=node_locations(
                node for spec in stores for node in (spec.source, spec.processor)
            ),
        )
        self._timestamp = -1
        self._sources = {
            spec.topic: SourceNode(spec.source, self._corrupt, self._dropped) for spec in stores
        }
        self._processors: dict[str, ProcessorNode] = {}

    # -- life --------------------------------------------------------------------------------------

    def open(self) -> None:
        self.manager.open()

    def start(self) -> None:
        """Initialise users' processors, before the restore.

        Raises:
            StoredRowError: A key's serialised form differs from its stored row's key.
        """
        self.manager.reject_unsorted_keys(_READ_AGAIN)
        for spec in self.specs.values():
            if not spec.table:
                processor = checked_processor(spec.processor.supplier(), spec.processor)
                node = ProcessorNode(processor, _Host(self, spec.processor.name), {spec.store.name})
                node.connect(partial(_forwarded, spec.processor.name))
                node.init(_GlobalNodeContext(self, spec.processor.name))
                self._processors[spec.topic] = node

    def stop(self) -> None:
        """Close users' processors in their thread; views remain readable. Idempotent."""
        with ExitStack() as closing:
            closing.callback(close_loop)
            for node in self._processors.values():
                closing.callback(node.close)
            self._processors = {}

    def close(self) -> None:
        self.manager.close()

    def figures(self) -> dict[str, float]:
        return {
            "update-total": float(self.counters.applied),
            "dropped-records-total": float(self.counters.dropped),
            "skipped-records-total": float(self.counters.skipped),
        }

    # -- records -----------------------------------------------------------------------------------

    def apply(self, records: SourceRecords, *, known_ms: int, position: bool = True) -> None:
        """Apply consecutive records of one partition; write rows and position together.

        Args:
            known_ms: Wall-clock ms when the store last had all records before these. Stored with
                the position: a restart checks if tombstones could be missing since.
            position: False during a table's restore, which stores no position until complete.
                Processor stores always get one, because a record must not reach a processor twice.
        """
        spec = self.specs[records.topic]
        partition = TopicPartition(records.topic, records.partition)
        positions = {partition: records.offsets[-1] + 1} if position or not spec.table else {}
        # -1: no partition time, so each record keeps its own timestamp.
        batch = self._sources[records.topic].decode(records, -1)
        with _watched(spec.store.name):
            if spec.table:
                rows = self._rows(spec, records, batch)
                # Write a test's own changes (`TopologyTestDriver`) first. Then drop cached rows:
                # `write_restored` bypasses the cache, which would keep old values.
                self.commit(known_ms=known_ms)
                self.manager.stores[spec.store.name].buffer.discard()
                self.manager.write_restored({spec.store.name: rows}, positions, now_ms=known_ms)
            else:
                if len(batch):
                    self._processors[records.topic].process(batch)
                self.commit(positions, known_ms=known_ms)
        self.counters.applied += len(batch)
        self._policy.drops.report()

    def _rows(
        self, spec: GlobalStoreSpec, records: SourceRecords, batch: RecordBatch
    ) -> list[tuple[bytes, bytes | None]]:
        """Return a table's row changes: values as in the topic, keys serialised as by lookups."""
        if has_none(batch.keys):
            before = batch
            batch = batch.select([key is not None for key in batch.keys])
            first = before.metadata_of(first_none(before.keys))
            node = self._sources[records.topic].spec.name
            self._dropped(node, len(before) - len(batch), "null key of a table", first)
        keys = batch.key_bytes
        if keys is None:
            keys, indices = self._serialized(spec, records, batch)
            batch = batch.take(indices)
        values = [records.raw_values[row] for row in batch.rows]
        return fold(spec.store, keys, values, batch.timestamps)

    def _serialized(
        self, spec: GlobalStoreSpec, records: SourceRecords, batch: RecordBatch
    ) -> tuple[list[bytes | None], list[int]]:
        keys: list[bytes | None] = []
        indices: list[int] = []
        for index, key in enumerate(batch.keys):
            try:
                keys.append(spec.store.key_serde.serialize(spec.topic, key))
            except FAILURES as error:
                self._corrupt(records, batch.rows[index], error)
            else:
                indices.append(index)
        return keys, indices

    def commit(
        self, positions: Mapping[TopicPartition, int] | None = None, *, known_ms: int
    ) -> None:
        drained = self.manager.drain()
        if drained or positions:
            self.manager.apply(drained, positions or {}, now_ms=known_ms)

    # -- callbacks of sources and nodes ----------------------------------------------------------

    def at_record(self, timestamp: int) -> None:
        self._timestamp = timestamp

    def failed(self, node: str, batch: RecordBatch, index: int, error: Exception) -> None:
        context, record = node_failure(batch, index, node=node, task_id=GLOBAL)
        if not self._has_handler:
            raise self._policy.unhandled(context, error, _UNHANDLED) from error
        self._skip(context, record, error)

    def _corrupt(self, records: SourceRecords, row: int, error: Exception) -> None:
        node = self.specs[records.topic].source.name
        context, record = input_failure(records, row, node=node, task_id=GLOBAL)
        self._skip(context, record, error)

    def _skip(self, context: ErrorContext, record: Record[Any, Any], error: Exception) -> None:
        self._policy.apply(context, record, error, raw=(context.raw_key, context.raw_value))
        self.counters.skipped += 1

    def _dropped(self, node: str, count: int, reason: str, first: RecordMetadata | None) -> None:
        self.counters.dropped += count
        self.record_drop(node, count, reason, first)

    def record_drop(self, node: str, count: int, reason: str, first: RecordMetadata | None) -> None:
        self._policy.drops.add(node, reason, Drop(count, first))


class _GlobalNodeContext:
    def __init__(self, stores: GlobalStores, node: str) -> None:
        self._stores = stores
        self.node_name = node
        self.task_id = GLOBAL
        self.emit_interval_ms = 0

    def now_ms(self) -> int:
        return self._stores.now_ms()

    def internal_topic(self, name: str) -> str:
        return f"{self._stores.application_id}-{name}"

    def store(self, name: str) -> Any:
        return self._stores.manager.stores[name]

    def failed(self, batch: RecordBatch, index: int, error: Exception) -> None:
        self._stores.failed(self.node_name, batch, index, error)

    def dropped(self, count: int, reason: str, batch: RecordBatch, first: int) -> None:
        self._stores.counters.dropped += count
        self._stores.record_drop(self.node_name, count, reason, batch.metadata_of(first))

    def expired(self, reason: str, batch: RecordBatch, index: int) -> None:
        self._stores.record_drop(self.node_name, 1, reason, batch.metadata_of(index))

    @property
    def late_letter(self) -> None:
        return None


class _Host:
    def __init__(self, stores: GlobalStores, node: str) -> None:
        self._stores = stores
        self._node = node
        self.application_id = stores.application_id
        self.state_dir = stores.state_dir
        self.app_configs = stores.app_configs
        self.global_stores: Mapping[str, Any] = {}

    @property
    def stream_time_ms(self) -> int:
        raise self._unknown("stream time")

    def metrics(self) -> dict[str, float]:
        return self._stores.figures()

    def now_ms(self) -> int:
        return self._stores.now_ms()

    def request_commit(self) -> None: ...

    def add_schedule(self, schedule: Schedule, clock: PunctuationType) -> None:  # noqa: ARG002 - the protocol's signature
        raise self._unknown("schedule")

    def at_record(self, timestamp: int) -> None:
        self._stores.at_record(timestamp)

    def _unknown(self, missing: str) -> StreamsError:
        return StreamsError(
            f"{self._node} fills a global store: it runs in no task and has no {missing}; use a processor of a stream for that"
        )


def _forwarded(node: str, _batch: RecordBatch, _child: str | None) -> NoReturn:
    raise StreamsError(
        f"{node} fills a global store and has no children, so it can't forward; write to its store only"
    )


def _not_written(columns: OutputColumns) -> None:
    _log.warning("a dead letter of global topic %s is not written", columns.source_topic)
