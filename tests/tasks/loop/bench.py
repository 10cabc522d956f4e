"""Workers on a fake cluster, one life after another; disks outlive them, and any step may crash.

A life ends when no work is left, or where the test makes it crash. Only the hand-over of restored
tasks waits for real time.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

from tests.fakes.broker import FakeBroker
from tests.fakes.clients import FakeClients, FakeReader, FakeSinkProducer, FakeTransactionalProducer
from tests.fakes.clock import FakeClock
from tidewheel import StreamsConfig, Topology
from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.state_stores.errors import InvalidStateStoreError, StoreCorruptedError
from tidewheel.streams.config import StreamsConfig as Config
from tidewheel.streams.worker.application.task_factory import TaskFactory, error_handlers
from tidewheel.streams.worker.application.wiring import shared_options
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan, plan_application
from tidewheel.tasks.kafka.ports import (
    Background,
    ChangelogReader,
    CommittedOffset,
    OnRecord,
    Positions,
)
from tidewheel.tasks.loop.stream_worker import StreamWorker
from tidewheel.tasks.loop.worker_ports import WorkerHooks, WorkerPorts
from tidewheel.tasks.processing.engine.output import OutputColumns
from tidewheel.tasks.processing.engine.record_batch import SourceRecords
from tidewheel.tasks.restore.run_ports import RunSettings
from tidewheel.tasks.restore.state_updater import RestoreEvent
from tidewheel.tasks.task.task import Task
from tidewheel.tasks.task.worker_settings import WorkerSettings

APP = "app"

#: More polls mean an endless loop.
_POLLS_MAX = 20_000


class Crash(BaseException): ...


class Fuse:
    """Counts the steps with an effect outside the process, and crashes at a given one."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.at: str | None = None
        self.steps: list[str] = []

    def step(self, name: str) -> None:
        self.steps.append(name)
        if name == self.at:
            raise Crash(name)
        if self.left is not None:
            if self.left == 0:
                raise Crash(name)
            self.left -= 1


class Disk:
    """The databases of all tasks, with all versions: a power cut may restore an older one."""

    def __init__(self, fuse: Fuse) -> None:
        self._fuse = fuse
        self.versions: dict[str, list[dict[str, dict[Any, bytes]]]] = {}
        self.corrupted: set[str] = set()
        #: Number of opens per database, and of open databases.
        self.opened: Counter[str] = Counter()
        self.open_now: Counter[str] = Counter()

    def open(self, path: Path, families: list[str]) -> "DiskDatabase":
        if path.name in self.corrupted:
            raise StoreCorruptedError(f"{path.name} is damaged")
        self.opened[path.name] += 1
        self.open_now[path.name] += 1
        return DiskDatabase(self, path.name, families)

    def wipe(self, task: Task) -> None:
        name = str(task.task_id).replace("/", "-")
        self.corrupted.discard(name)
        self.versions.pop(name, None)

    def lose(self, writes: int) -> None:
        for versions in self.versions.values():
            del versions[max(len(versions) - writes, 1) :]

    def write(self, name: str, version: dict[str, dict[Any, bytes]]) -> None:
        self._fuse.step("write")
        self.versions.setdefault(name, [{}]).append(version)
        self._fuse.step("written")


class DiskDatabase:
    def __init__(self, disk: Disk, name: str, families: Sequence[str]) -> None:
        self._disk = disk
        self._name = name
        self._families = list(families)
        self._closed = False

    def _now(self) -> dict[str, dict[Any, bytes]]:
        if self._closed:
            raise InvalidStateStoreError(f"{self._name} is closed")
        return self._disk.versions.get(self._name, [{}])[-1]

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        rows = self._now().get(family, {})
        return [rows.get(key) for key in keys]

    def iterate(
        self, family: str, lower: bytes | None, upper: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        rows = sorted(self._now().get(family, {}).items(), reverse=reverse)
        return iter(
            [
                row
                for row in rows
                if (lower is None or row[0] >= lower) and (upper is None or row[0] < upper)
            ]
        )

    def write(
        self,
        changes: Mapping[str, Sequence[tuple[bytes, bytes | None]]],
        positions: Mapping[str, bytes],
        *,
        delete_ranges: Mapping[str, tuple[bytes, bytes]] | None = None,
    ) -> None:
        version = deepcopy(self._now())
        for family, (first, end) in (delete_ranges or {}).items():
            content = version.setdefault(family, {})
            for key in [key for key in content if first <= key < end]:
                del content[key]
        for family, rows in changes.items():
            assert family in self._families
            content = version.setdefault(family, {})
            for key, value in rows:
                content.pop(key, None)
                if value is not None:
                    content[key] = value
        version.setdefault("positions", {}).update(positions)
        self._disk.write(self._name, version)

    def clear(self, family: str) -> None:
        version = deepcopy(self._now())
        version.pop(family, None)
        self._disk.write(self._name, version)

    def position(self, name: str) -> bytes | None:
        return self._now().get("positions", {}).get(name)

    def approximate_num_entries(self, family: str) -> int:
        return len(self._now().get(family, {}))

    def close(self) -> None:
        if not self._closed:
            self._disk.open_now[self._name] -= 1
        self._closed = True


class Producer(FakeTransactionalProducer):
    def __init__(self, broker: FakeBroker, transactional_id: str, fuse: Fuse) -> None:
        super().__init__(broker, transactional_id)
        self._fuse = fuse

    def init(self) -> None:
        self._fuse.step("init")
        super().init()
        self._fuse.step("initialised")

    def produce(self, columns: OutputColumns) -> None:
        self._fuse.step("produce")
        super().produce(columns)

    def produce_changelog(self, *arguments: Any, **options: Any) -> None:
        self._fuse.step("produce changelog")
        super().produce_changelog(*arguments, **options)

    def send_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        self._fuse.step("send offsets")
        super().send_offsets(group_id, offsets)

    def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, int]:
        try:
            self._fuse.step("commit")
        except Crash:
            with suppress(Exception):
                # The cluster has them, but not the order to commit.
                super().send_offsets(group_id, offsets)
            raise
        positions = super().commit(group_id, offsets)
        self._fuse.step("committed")
        return positions


class Sinks(FakeSinkProducer):
    def __init__(self, broker: FakeBroker, fuse: Fuse) -> None:
        super().__init__(broker)
        self._fuse = fuse

    def produce(self, columns: OutputColumns) -> None:
        self._fuse.step("send")
        super().produce(columns)

    def flush(self) -> Any:
        self._fuse.step("flush")
        return super().flush()


class Source(FakeReader):
    def __init__(self, bench: "Bench", worker: Callable[[], StreamWorker]) -> None:
        super().__init__(bench.broker)
        self._bench = bench
        self._worker = worker
        #: Consecutive polls without records or work.
        self.idle = 0
        self.polls = 0
        #: Never reset by a test.
        self.turns = 0

    def poll(self, max_records: int, timeout_s: float) -> list[SourceRecords]:
        self.polls += 1
        self.turns += 1
        assert self.polls < _POLLS_MAX, "the worker goes round in circles"
        runs = super().poll(max_records, timeout_s)
        self._bench.clock.advance(1 if runs else 10)
        worker = self._worker()
        busy = runs or any(task.busy for task in worker.tasks.values()) or self.paused
        if busy and not runs:
            time.sleep(0.0002)  # key ranges work in other threads
        restoring = any(task.life.cycle.state != "RUNNING" for task in worker.tasks.values())
        self.idle = 0 if busy or restoring else self.idle + 1
        for hook in list(self._bench.at_poll):
            hook(worker, self)
        if self._bench.slice_records is not None:
            worker._slices.records = self._bench.slice_records
            worker._slices._sizes.clear()
        if self.idle > self._bench.idle_polls:
            worker.stop()
        return runs


class Later(Future[Positions]):
    """Work that finishes when `is_time` returns True, or when the loop waits for it."""

    def __init__(self, work: Callable[[], Positions], is_time: Callable[[], bool]) -> None:
        super().__init__()
        self._work = work
        self._is_time = is_time

    def done(self) -> bool:
        if not super().done() and self._is_time():
            self._do()
        return super().done()

    def result(self, timeout: float | None = None) -> Positions:
        if not super().done():
            self._do()
        return super().result(timeout)

    def _do(self) -> None:
        try:
            self.set_result(self._work())
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            self.set_exception(error)


class Bench:
    def __init__(
        self,
        topology: Topology,
        topics: Mapping[str, int],
        *,
        cache_bytes: int = 0,
        guarantee: Any = "exactly_once",
        **settings: Any,
    ) -> None:
        self.fuse = Fuse()
        self.clock = FakeClock()
        self.broker = FakeBroker()
        self.disk = Disk(self.fuse)
        #: Directory of custom stores; the databases are on `disk`.
        self.directory = Path()
        self.clients = FakeClients(self.broker)
        self.config: Config = StreamsConfig(
            application_id=APP,
            bootstrap_servers="unused:9092",
            statestore_cache_max_bytes=cache_bytes,
            processing_guarantee=guarantee,
            **{
                name: value
                for name, value in settings.items()
                if name in StreamsConfig.model_fields
            },
        )
        self.worker_settings = {
            name: value
            for name, value in settings.items()
            if name not in StreamsConfig.model_fields
        }
        for name, partitions in topics.items():
            self.broker.create_topic(name, partitions)
        self.plan: ApplicationPlan = plan_application(topology.spec(self.config), APP, dict(topics))
        for topic in (*self.plan.repartition_topics, *self.plan.changelog_topics):
            self.broker.create_topic(topic.name, topic.partitions, topic.config)
        self.idle_polls = 30
        #: Rounds of the loop per commit.
        self.commit_turns = 2
        #: Runner of broker calls in another thread; None uses `commit_turns`.
        self.background: Background | None = None
        #: Largest slice in records; None leaves it to the worker.
        self.slice_records: int | None = None
        #: Called at every poll with the worker and its source.
        self.at_poll: list[Callable[[StreamWorker, Source], None]] = []
        self.events: list[RestoreEvent] = []
        self.running: list[bool] = []
        self.worker: StreamWorker | None = None
        self.source: Source | None = None
        self.make_reader: Callable[[], ChangelogReader] = self.clients.changelog_reader
        #: Maker of sorted runs; None lets workers read every changelog.
        self.runs: RunSettings | None = None
        #: Receives each record before it is processed.
        self.on_record: OnRecord | None = None

    def make_worker(
        self,
        assigned: frozenset[TaskId] | None = None,
        transactional_id: str = "app-fixed-0",
        **changes: Any,
    ) -> StreamWorker:
        settings = {**self.worker_settings, **changes}
        threads: int = settings.get("threads", 1)
        factory = TaskFactory(
            plan=self.plan,
            config=self.config,
            directory=lambda task_id: self.directory / str(task_id).replace("/", "-"),
            open_database=self.disk.open,
            now_ms=self.clock.now_ms,
            threads=threads,
            factor=threads,
        )

        def make_source() -> Source:
            self.source = Source(self, lambda: worker)
            return self.source

        class Topics:
            @staticmethod
            def partition_count(topic: str) -> int:
                return len(self.broker.topics[topic].logs)

            @staticmethod
            def message_bytes_max(topic: str) -> int:
                return int(self.broker.topics[topic].config["max.message.bytes"])

            @staticmethod
            def message_bytes_max_now(topic: str) -> int:
                return int(self.broker.topics[topic].config["max.message.bytes"])

        at_least_once = self.config.processing_guarantee == "at_least_once"
        worker = StreamWorker(
            self.plan,
            frozenset(self.plan.tasks) if assigned is None else assigned,
            WorkerSettings(
                **{
                    "transactional_id": transactional_id,
                    "topology_hash": bytes(8),
                    **shared_options(self.config, WorkerSettings),
                    "handlers": error_handlers(self.config),
                    **settings,
                }
            ),
            WorkerPorts(
                make_source=make_source,
                make_input_reader=self.clients.input_reader,
                make_producer=lambda each: Producer(self.broker, each, self.fuse),
                make_sink_producer=(lambda: Sinks(self.broker, self.fuse))
                if at_least_once
                else None,
                make_reader=self.make_reader,
                admin=self.clients.admin(),
                topics=Topics(),
                clock=self.clock,
                runs=self.runs,
                on_record=self.on_record,
                background=self.background or self._later,
            ),
            WorkerHooks(
                make_task=factory,
                wipe=self.disk.wipe,
                on_restore=self.events.append,
                on_running=self.running.append,
                housekeep=lambda: None,
            ),
        )
        return worker

    def _later(self, work: Callable[[], Positions]) -> Later:
        source = self.source
        assert source is not None
        until_turns = source.turns + self.commit_turns
        return Later(work, lambda: source.turns >= until_turns)

    def live(
        self, *, crash_after: int | None = None, crash_at: str | None = None, **changes: Any
    ) -> bool:
        self.fuse.left, self.fuse.at = crash_after, crash_at
        self.fuse.steps.clear()
        self.events.clear()
        self.running.clear()
        self.worker = self.make_worker(**changes)
        try:
            self.worker.run()
        except Crash:
            return False
        finally:
            self.fuse.left = self.fuse.at = None
        return True

    def send(
        self,
        topic: str,
        key: str | None,
        value: str | None,
        timestamp: int = 1_000,
        partition: int = -1,
    ) -> None:
        self.broker.send(
            topic,
            None if value is None else value.encode(),
            None if key is None else key.encode(),
            timestamp=timestamp,
            partition=partition,
        )

    def outputs(self, topic: str) -> list[tuple[str | None, bytes | None]]:
        return [
            (None if each.key is None else each.key.decode(), each.value)
            for each in self.broker.records(topic)
        ]

    def rows(self, store: str) -> dict[bytes, bytes]:
        content: dict[bytes, bytes] = {}
        for versions in self.disk.versions.values():
            rows = versions[-1].get(store, {})
            assert not content.keys() & rows.keys(), "a key is in one task only"
            content.update(rows)
        return content

    @property
    def committed(self) -> dict[TopicPartition, int]:
        return {each: found.offset for each, found in self.broker.groups[APP].items()}
