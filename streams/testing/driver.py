"""`TopologyTestDriver`: runs a topology without a broker, with a worker's processing code.

As in Kafka Streams' TopologyTestDriver, topics have one partition, and records go one by one,
lowest timestamp first, through all topics with a commit after each. The test moves the wall clock.
"""

import tempfile
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.state_stores.ports import SerdePort
from tidewheel.state_stores.private_files import make_private_directory
from tidewheel.state_stores.stores.custom_store_host import user_object
from tidewheel.state_stores.stores.task_store import TaskStore
from tidewheel.state_stores.stores.windowed import fully_frozen
from tidewheel.streams.batch.local_tasks import LocalTasks
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.config.streams_config import checked_config
from tidewheel.streams.definitions.checks import check_flag, check_time_ms
from tidewheel.streams.definitions.names import check_name
from tidewheel.streams.definitions.record_table import RecordTable, html_table
from tidewheel.streams.durations import to_ms
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.serdes import SerdeLike, as_serde
from tidewheel.streams.testing.checks import checked_headers, rows
from tidewheel.streams.topology.topology import Topology, checked_topology
from tidewheel.streams.worker.topic_setup import spec_of
from tidewheel.tasks.batch.batch_task import BatchTask
from tidewheel.tasks.durations import Duration
from tidewheel.tasks.kafka.internal_topics import internal_prefix, plan_application
from tidewheel.tasks.processing.api.coroutines import wait_for
from tidewheel.tasks.processing.api.record import Headers
from tidewheel.tasks.processing.api.topology_spec import SinkSpec
from tidewheel.tasks.processing.engine.output import OutputColumns
from tidewheel.tasks.processing.engine.record_batch import SourceRecords
from tidewheel.tasks.restore.global_stores import GlobalStores
from tidewheel.tasks.task.partition_group import arrival_queue
from tidewheel.tasks.task.task import Task

K = TypeVar("K")
V = TypeVar("V")
_R = TypeVar("_R")

#: Largest batch of `pipe_batch`.
_UNLIMITED = 1 << 31


@fully_frozen
@dataclass(frozen=True, slots=True)
class TestRecord(Generic[K, V]):
    """Output record: key, value, timestamp (ms since the epoch) and headers as (name, bytes)."""

    __test__ = False  # for pytest: no test class, despite its name

    key: K
    value: V
    timestamp: int
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class _Raw:
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers


def _raws(columns: OutputColumns) -> Iterator[_Raw]:
    for index in range(len(columns)):
        headers = () if columns.headers is None else columns.headers[index]
        yield _Raw(columns.keys[index], columns.values[index], columns.timestamps[index], headers)


class TopologyTestDriver:
    """Runs a topology in this process, on in-memory topics; a context manager.

    >>> from tidewheel import Serdes, StreamsBuilder
    >>> from tidewheel.testing import TopologyTestDriver
    >>> builder = StreamsBuilder()
    >>> _ = builder.stream("in", key_serde=str, value_serde=str).map_values(str.upper).to("out", key_serde=str, value_serde=str)
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     source = driver.create_input_topic("in", key_serde=Serdes.string(), value_serde=Serdes.string())
    ...     output = driver.create_output_topic("out", key_serde=Serdes.string(), value_serde=Serdes.string())
    ...     source.pipe_input("k", "hello")
    ...     output.read_value()
    'HELLO'

    State is in a temporary folder unless the driver's argument `state_dir` names one; that of the
    config does not count. Without a config, results are not cached (`statestore_cache_max_bytes` is 0), so every update is visible. Each record emits
    all due results of closed windows and unmatched join records, unless the config sets
    `emit_interval_ms`.
    """

    def __init__(
        self,
        topology: Topology,
        config: StreamsConfig | None = None,
        *,
        initial_wall_clock_ms: int = 0,
        record_by_record: bool = False,
        state_dir: str | Path | None = None,
    ) -> None:
        """Create the tasks and initialise their processors.

        Args:
            state_dir: Folder in which state is kept for the next driver.
            record_by_record: Run every sub-topology record by record, even if batches are possible.
        """
        self._stack = ExitStack()
        self._closed = False
        self._state_dir = None if state_dir is None else Path(state_dir)
        self._tasks: list[Task] = []
        self._batch_tasks: dict[TaskId, BatchTask] = {}
        what = "initial_wall_clock_ms"
        self._now_ms = check_time_ms(
            initial_wall_clock_ms, what, "TopologyTestDriver", error=StreamsError
        )
        check_flag(record_by_record, "record_by_record", "TopologyTestDriver", error=StreamsError)
        if config is None:
            config = StreamsConfig(
                application_id="topology-test-driver",
                bootstrap_servers="unused:9092",
                statestore_cache_max_bytes=0,
            )
        self._config = checked_config(config, "TopologyTestDriver")
        if "emit_interval_ms" not in self._config.model_fields_set:
            self._config = self._config.replace(emit_interval_ms=0)
        spec = spec_of(checked_topology(topology, "TopologyTestDriver"), self._config)
        topics = {
            topic: 1
            for subtopology in spec.subtopologies
            for source in subtopology.sources
            if not source.internal
            for topic in source.topics
        }
        topics |= {store.topic: 1 for store in spec.global_stores}
        self._plan = plan_application(spec, self._config.application_id, topics)
        self._outputs: dict[str, deque[_Raw]] = {}
        self._find_outputs()
        self._offsets: dict[str, int] = {}
        self._global_stores: GlobalStores | None = None
        with ExitStack() as undo:
            undo.callback(self.close)
            self._start_tasks(record_by_record=record_by_record)
            undo.pop_all()
        self._consumers = {
            partition.topic: task for task in self._tasks for partition in task.inputs
        }

    def _start_tasks(self, *, record_by_record: bool) -> None:
        local = LocalTasks(
            self._plan,
            self._config,
            directory=self._directory(),
            now_ms=lambda: self._now_ms,
            partition_count=lambda _topic: 1,
            record_by_record=record_by_record,
        )
        self._stack.enter_context(local)
        self._global_stores = local.global_stores
        # One arrival queue for all tasks, unless a task that waits for an input would block others.
        shared = None if self._config.max_task_idle_ms > 0 else arrival_queue()
        for subtopology in sorted(self._plan.subtopologies):
            batch_task = local.start(TaskId(subtopology, 0))
            self._stack.callback(batch_task.close)
            task = batch_task.task
            task.group.order_by_arrival(arrival_queue() if shared is None else shared)
            self._tasks.append(task)
            self._batch_tasks[task.task_id] = batch_task
        for task in self._tasks:
            self._commit(task)

    def _directory(self) -> Path:
        if self._state_dir is not None:
            path = self._state_dir / self._config.application_id
            make_private_directory(path)
            return path
        return Path(
            self._stack.enter_context(tempfile.TemporaryDirectory(prefix="tidewheel-driver-"))
        )

    def create_input_topic(
        self,
        name: str,
        *,
        key_serde: SerdeLike[K],
        value_serde: SerdeLike[V],
        start_timestamp_ms: int | None = None,
        auto_advance_ms: Duration = 0,
    ) -> "TestInputTopic[K, V]":
        """Return an input topic; raise `StreamsError` if the topology does not read it.

        Args:
            start_timestamp_ms: Timestamp of the first record without one; None: the wall clock.
            auto_advance_ms: Time added for each further record, >= 0; may be a `timedelta` or a text.
        """
        self.check_open()
        advance_ms = to_ms(auto_advance_ms, "auto_advance_ms", error=StreamsError)
        if start_timestamp_ms is not None:
            check_time_ms(start_timestamp_ms, "start_timestamp_ms", repr(name), error=StreamsError)
        if not self._is_global(check_name(name, "topic", "create_input_topic")):
            self._consumer(name)
        return TestInputTopic(self, name, (key_serde, value_serde), start_timestamp_ms, advance_ms)

    def create_output_topic(
        self, name: str, *, key_serde: SerdeLike[K], value_serde: SerdeLike[V]
    ) -> "TestOutputTopic[K, V]":
        """Return an output topic.

        Reading raises `StreamsError` if no sink can write to it.
        """
        self.check_open()
        check_name(name, "topic", "create_output_topic")
        records = self._outputs.setdefault(name, deque())
        return TestOutputTopic(self, records, name, (key_serde, value_serde))

    def _find_outputs(self) -> None:
        """Collect the topics that tests may read: any, if a user function chooses topics."""
        config, prefix = self._config, internal_prefix(self._config.application_id)
        handlers: tuple[object, ...] = (
            config.deserialization_exception_handler,
            config.processing_exception_handler,
            config.production_exception_handler,
        )
        self._writes_anywhere = any(map(callable, handlers))
        self._written: set[str] = set()
        if config.dead_letter_queue_topic is not None:
            self._written.add(config.dead_letter_queue_topic)
        for plan in self._plan.subtopologies.values():
            for node in plan.spec.nodes:
                if isinstance(node, SinkSpec) and isinstance(node.topic, str):
                    self._written.add(f"{prefix}{node.topic}" if node.internal else node.topic)
                elif isinstance(node, SinkSpec):
                    self._writes_anywhere = True

    def check_output(self, topic: str) -> None:
        """Raise `StreamsError` for a topic without a writer, as Kafka Streams' driver does."""
        self.check_open()
        if self._writes_anywhere or topic in self._written:
            return
        raise StreamsError(
            f"{topic} is not a topic that the topology writes to (its sink topics: "
            f"{', '.join(sorted(self._written)) or 'none'})"
        )

    def _consumer(self, topic: str) -> Task:
        task = self._consumers.get(topic)
        if task is not None:
            return task
        for candidate in self._tasks:
            for source in candidate.plan.spec.sources:
                if source.pattern is not None and source.pattern.fullmatch(topic):
                    candidate.life.inputs.add(TopicPartition(topic, 0), source)
                    self._consumers[topic] = candidate
                    return candidate
        specs = () if self._global_stores is None else self._global_stores.specs
        topics = ", ".join(sorted((*self._consumers, *specs))) or "none"
        raise StreamsError(
            f"{topic} is not a source topic of the topology (its source topics: {topics})"
        )

    def pipe(self, topic: str, records: list[_Raw], *, together: bool = True) -> None:
        """Process raw records of one topic and all resulting records.

        `together` uses the largest possible batches, also after repartition topics, with a commit
        after each. Otherwise records go one by one, as in Kafka Streams' driver.
        """
        self.check_open()
        if self._global_stores is not None:
            self._global_stores.commit(known_ms=self._now_ms)  # changes that the test itself made
        if self._is_global(topic):
            self._apply_global(topic, records)
        else:
            self._enqueue(topic, records)
        self._settle(_UNLIMITED if together else 1)

    def _is_global(self, topic: str) -> bool:
        return self._global_stores is not None and topic in self._global_stores.specs

    def _apply_global(self, topic: str, records: list[_Raw]) -> None:
        assert self._global_stores is not None
        self._global_stores.apply(self._consumed(topic, records), known_ms=self._now_ms)

    def check_open(self) -> None:
        """Raise `StreamsError` if the driver is closed."""
        if self._closed:
            raise StreamsError("the driver is closed; make a new one")

    def _enqueue(self, topic: str, records: list[_Raw]) -> None:
        self._consumer(topic).group.add(self._consumed(topic, records))

    def _consumed(self, topic: str, records: list[_Raw]) -> SourceRecords:
        first = self._offsets.get(topic, 0)
        self._offsets[topic] = first + len(records)
        with_headers = any(record.headers for record in records)
        return SourceRecords(
            topic,
            0,
            range(first, first + len(records)),
            [record.key for record in records],
            [record.value for record in records],
            [record.timestamp for record in records],
            [record.headers for record in records] if with_headers else None,
        )

    def _settle(self, limit: int = _UNLIMITED) -> None:
        while True:
            while (task := self._next_task()) is not None:
                task.process(limit)
                self._commit(task)
            for task in self._tasks:
                self._commit(task)
            if self._next_task() is None:
                return

    def _next_task(self) -> Task | None:
        """Return the oldest queued record's task; None without one, or if the task awaits input."""
        for task in self._tasks:
            queue = task.group.queue
            assert queue is not None, "the order is by arrival"
            if not queue:
                continue
            owner = self._consumers[queue.peek().partition.topic]
            # All input is already piped: tasks wait only for `max_task_idle_ms`.
            owner.group.update_lags(dict.fromkeys(owner.inputs, 0))
            if owner.ready(self._now_ms):
                return owner
        return None

    def _commit(self, task: Task) -> None:
        published: dict[str, list[_Raw]] = {}
        for columns in self._batch_tasks[task.task_id].commit():
            published.setdefault(columns.topic, []).extend(_raws(columns))
        self._written |= published.keys()
        for topic, raws in published.items():
            self._outputs.setdefault(topic, deque()).extend(raws)
            if topic in self._consumers:
                self._enqueue(topic, raws)
            elif self._is_global(topic):
                self._apply_global(topic, raws)

    @property
    def wall_clock_ms(self) -> int:
        """Return the driver's wall clock (ms since the epoch)."""
        return self._now_ms

    def advance_wall_clock_time(self, duration: Duration) -> None:
        """Advance the wall clock (ms, timedelta or text; 0 allowed) and run due punctuations."""
        self.check_open()
        self._now_ms += to_ms(duration, error=StreamsError)
        for task in self._tasks:
            task.punctuate_wall_clock(self._now_ms)
            self._commit(task)
        self._settle(1)

    def get_state_store(self, name: str) -> Any:
        """Return a store for reading and writing; for a table, its timestamped store.

        Raises `StreamsError` if there is no such store.
        """
        self.check_open()
        stores = self.get_all_state_stores()
        if str(name) not in stores:  # users may be untyped
            raise StreamsError(
                f"there is no store {name} (stores: {', '.join(sorted(stores)) or 'none'})"
            )
        return stores[str(name)]

    def get_all_state_stores(self) -> Mapping[str, Any]:
        """Return all stores by name."""
        stores = {
            name: user_object(store)
            for task in self._tasks
            for name, store in task.stores.stores.items()
        }
        return stores | ({} if self._global_stores is None else self._global_stores.manager.stores)

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return the metrics of each task, by task id."""
        return {str(task.task_id): task.figures.metrics() for task in self._tasks}

    def wait_for(self, coroutine: Coroutine[Any, Any, _R]) -> _R:
        """Run a coroutine on the loop of the driver's coroutine functions; return its result.

        For clients of these functions, which a program opens in `KafkaStreams.on_start`.

        >>> from tidewheel import StreamsBuilder
        >>> class Prices:
        ...     async def open(self): self.prices = {"tea": 3}  # such as httpx.AsyncClient()
        ...     async def find(self, name): return self.prices[name]
        >>> prices, builder = Prices(), StreamsBuilder()
        >>> builder.stream("in", key_serde=str, value_serde=str).map_values(prices.find).to("out", value_serde=int)
        >>> with TopologyTestDriver(builder.build()) as driver:
        ...     driver.wait_for(prices.open())
        ...     driver.create_input_topic("in", key_serde=str, value_serde=str).pipe_input("k", "tea")
        ...     driver.create_output_topic("out", key_serde=str, value_serde=int).read_value()
        3
        """
        result: _R = wait_for(coroutine)
        return result

    def close(self) -> None:
        """Close processors and stores and remove temporary state; idempotent."""
        self._closed = True
        stores = [store for task in self._tasks for store in task.stores.stores.values()]
        self._stack.close()
        for store in stores:
            if isinstance(store, TaskStore):
                store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class TestInputTopic(Generic[K, V]):
    """Pipes records into a source topic; made by `create_input_topic`.

    >>> from tidewheel import StreamsBuilder
    >>> builder = StreamsBuilder()
    >>> builder.stream("in", key_serde=str, value_serde=int).to("out")
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     source = driver.create_input_topic("in", key_serde=str, value_serde=int, start_timestamp_ms=100, auto_advance_ms=1)
    ...     source.pipe_input("a", 1, headers=[("trace", b"1")])
    ...     source.pipe_key_values([("b", 2), ("c", 3)])
    ...     source.advance_time(1_000)
    ...     source.pipe_input("d", 4)
    ...     source.pipe_batch([("e", 5, 7), ("f", None, 8)])
    ...     output = driver.create_output_topic("out", key_serde=str, value_serde=int)
    ...     [(record.key, record.timestamp) for record in output.read_records()]
    [('a', 100), ('b', 101), ('c', 102), ('d', 1103), ('e', 7), ('f', 8)]
    """

    __test__ = False

    def __init__(
        self,
        driver: TopologyTestDriver,
        name: str,
        serdes: tuple[SerdeLike[K], SerdeLike[V]],
        start_timestamp_ms: int | None,
        auto_advance_ms: int,
    ) -> None:
        self._driver = driver
        self.name = name
        self._key_serde: SerdePort = as_serde(serdes[0]).for_keys()
        self._value_serde: SerdePort = as_serde(serdes[1])
        self._next_ms = start_timestamp_ms
        self._advance_ms = auto_advance_ms

    def pipe_input(
        self, key: K | None, value: V | None, timestamp: int | None = None, headers: Headers = ()
    ) -> None:
        """Pipe and process one record; without `timestamp` it gets the topic's next timestamp."""
        self._driver.pipe(self.name, [self._raw(key, value, timestamp, headers)], together=False)

    def pipe_key_values(self, pairs: Iterable[tuple[K | None, V | None]]) -> None:
        """Pipe (key, value) pairs one by one."""
        for key, value in rows(pairs, "pipe_key_values", "key", "value"):
            self.pipe_input(key, value)

    def pipe_batch(self, records: Iterable[tuple[K | None, V | None, int]]) -> None:
        """Pipe (key, value, timestamp) records as one batch with one commit.

        Resulting records in a repartition topic are also processed as one batch.
        """
        pairs = rows(records, "pipe_batch", "key", "value", "timestamp")
        raws = [self._raw(key, value, timestamp, ()) for key, value, timestamp in pairs]
        if raws:
            self._driver.pipe(self.name, raws)

    def advance_time(self, duration: Duration) -> None:
        """Add `duration` to the timestamp that the next record gets if none is passed."""
        self._driver.check_open()
        self._next_ms = self._now_ms() + to_ms(duration, error=StreamsError)

    def _now_ms(self) -> int:
        return self._driver.wall_clock_ms if self._next_ms is None else self._next_ms

    def _raw(self, key: K | None, value: V | None, timestamp: int | None, headers: Headers) -> _Raw:
        if timestamp is not None and type(timestamp) is not int:
            raise StreamsError(f"timestamp={timestamp!r}: a timestamp is int ms since the epoch")
        if timestamp is None:
            timestamp = self._now_ms()
            if self._next_ms is not None or self._advance_ms:
                self._next_ms = timestamp + self._advance_ms
        return _Raw(
            None if key is None else self._key_serde.serialize(self.name, key),
            None if value is None else self._value_serde.serialize(self.name, value),
            timestamp,
            checked_headers(headers),
        )


class TestOutputTopic(Generic[K, V]):
    """Reads the records of an output topic, each once; made by `create_output_topic`.

    >>> from tidewheel import StreamsBuilder
    >>> builder = StreamsBuilder()
    >>> builder.stream("in", key_serde=str, value_serde=int).to("out")
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     driver.create_input_topic("in", key_serde=str, value_serde=int).pipe_key_values([("a", 1), ("b", 2), ("c", 3)])
    ...     output = driver.create_output_topic("out", key_serde=str, value_serde=int)
    ...     output.queue_size, output.read_value(), output.read_key_value(), output.read_key_values(), output.is_empty
    (3, 1, ('b', 2), [('c', 3)], True)
    """

    __test__ = False

    def __init__(
        self,
        driver: TopologyTestDriver,
        records: deque[_Raw],
        name: str,
        serdes: tuple[SerdeLike[K], SerdeLike[V]],
    ) -> None:
        self._driver = driver
        self._records = records
        self.name = name
        self._key_serde: SerdePort = as_serde(serdes[0]).for_keys()
        self._value_serde: SerdePort = as_serde(serdes[1])

    def read_record(self) -> TestRecord[K, V]:
        """Return the next record; raise LookupError if there is none."""
        self._driver.check_output(self.name)
        if not self._records:
            raise LookupError(f"topic {self.name} has no more records")
        return self._record(self._records.popleft())

    def _record(self, raw: _Raw) -> TestRecord[K, V]:
        key = None if raw.key is None else self._key_serde.deserialize(self.name, raw.key)
        value = None if raw.value is None else self._value_serde.deserialize(self.name, raw.value)
        return TestRecord(cast("K", key), cast("V", value), raw.timestamp, raw.headers)

    def read_records(self) -> list[TestRecord[K, V]]:
        """Return all remaining records, which a notebook shows as a table."""
        return RecordTable(self._drain())

    def read_key_value(self) -> tuple[K, V]:
        """Return (key, value) of the next record; raise LookupError if there is none."""
        record = self.read_record()
        return record.key, record.value

    def read_key_values(self) -> list[tuple[K, V]]:
        """Return (key, value) of all remaining records, which a notebook shows as a table."""
        return RecordTable((record.key, record.value) for record in self._drain())

    def _repr_html_(self) -> str:
        """Return a table of the remaining records, for notebooks; none is read."""
        self._driver.check_output(self.name)
        return html_table(list(map(self._record, self._records)))

    def read_value(self) -> V:
        """Return the value of the next record; raise LookupError if there is none."""
        return self.read_record().value

    @property
    def is_empty(self) -> bool:
        """Return True if no record is left."""
        self._driver.check_output(self.name)
        return not self._records

    @property
    def queue_size(self) -> int:
        """Return the number of remaining records."""
        self._driver.check_output(self.name)
        return len(self._records)

    def _drain(self) -> Iterator[TestRecord[K, V]]:
        self._driver.check_output(self.name)
        while self._records:
            yield self.read_record()
