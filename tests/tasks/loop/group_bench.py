"""Workers of one group on a fake cluster, one thread each; the test gives the group's orders.

A test waits for conditions, with generous deadlines.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from tests.fakes.broker import FakeBroker
from tests.fakes.clients import FakeChangelogReader, FakeClients, FakeReader
from tests.tasks.loop.bench import APP, Disk, DiskDatabase, Fuse, Producer, Sinks
from tidewheel import StreamsConfig, Topology
from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.rebalance.protocol.orders import (
    AnyOrder,
    AnyReport,
    CopyReady,
    MayClose,
    ReleaseTask,
    RunTask,
    TaskReleased,
    TaskRunning,
    UseTransactionalId,
    WantTransactionalId,
    WorkerStatus,
)
from tidewheel.state_stores.errors import DiskFullError, StateStoreError, StoreCorruptedError
from tidewheel.streams.worker.application.task_factory import TaskFactory, error_handlers
from tidewheel.streams.worker.application.wiring import shared_options
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan, plan_application
from tidewheel.tasks.loop.stream_worker import StreamWorker
from tidewheel.tasks.loop.worker_ports import WorkerHooks, WorkerPorts
from tidewheel.tasks.processing.engine.record_batch import SourceRecords
from tidewheel.tasks.restore.run_ports import RunSettings
from tidewheel.tasks.restore.state_updater import RestoreEvent, StandbyUpdateEvent
from tidewheel.tasks.task.task import Task
from tidewheel.tasks.task.worker_settings import WorkerSettings

#: Deadline of every wait.
PATIENCE_S = 20.0

R = TypeVar("R", bound=AnyReport)


class RealClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()


class FakeMembership:
    def __init__(self, name: str) -> None:
        self.name = name
        self.changed = threading.Condition()
        self.orders: list[AnyOrder] = []
        self.reports: list[AnyReport] = []
        self.lease_s = float("inf")
        self.turns = 0
        self.call_ns = 0
        self.wake: Callable[[], None] = lambda: None
        #: True grants further transactional ids immediately.
        self.gives_ids = True

    def receive_orders(self) -> list[AnyOrder]:
        with self.changed:
            orders, self.orders = self.orders, []
            return orders

    def send(self, report: AnyReport) -> None:
        with self.changed:
            self.reports.append(report)
            if isinstance(report, WantTransactionalId) and self.gives_ids:
                self.orders.append(
                    UseTransactionalId(
                        number=report.number, transactional_id=f"{APP}-{self.name}-{report.number}"
                    )
                )
            self.changed.notify_all()

    def progress(self) -> None:
        self.turns += 1

    def show_call(self, since_ns: int) -> None:
        self.call_ns = since_ns

    def lease_left_s(self) -> float:
        return self.lease_s

    def give(self, *orders: AnyOrder) -> None:
        with self.changed:
            self.orders.extend(orders)
        self.wake()

    def all_of(self, kind: type[R]) -> list[R]:
        with self.changed:
            return [each for each in self.reports if isinstance(each, kind)]

    def forget(self) -> None:
        with self.changed:
            self.reports.clear()


class CountingReader(FakeChangelogReader):
    def __init__(self, host: "Host") -> None:
        super().__init__(host.group.broker)
        self._host = host

    def poll(self, max_records: int, timeout_s: float) -> list[SourceRecords]:
        if self._host.blocked.is_set():
            time.sleep(0.001)
            return []
        runs = super().poll(min(max_records, self._host.poll_records), timeout_s)
        for run in runs:
            self._host.read.update((run.topic, run.partition, offset) for offset in run.offsets)
        if not runs:
            time.sleep(0.001)
        return runs


class IdleReader(FakeReader):
    def poll(self, max_records: int, timeout_s: float) -> list[SourceRecords]:
        runs = super().poll(max_records, timeout_s)
        if not runs:
            time.sleep(min(timeout_s, 0.001))
        return runs


class HostDisk(Disk):
    """Disk of one host: like RocksDB, it opens no database twice.

    Attributes:
        damaged: Tasks whose database is damaged at the next write, until it is wiped.
        full: Tasks whose database accepts no write.
        broken: Tasks whose database cannot be opened.
    """

    def __init__(self, fuse: Fuse) -> None:
        super().__init__(fuse)
        self.damaged: set[str] = set()
        self.full: set[str] = set()
        self.broken: set[str] = set()

    def open(self, path: Path, families: list[str]) -> DiskDatabase:
        assert not self.open_now[path.name], f"{path.name} is open already"
        if path.name in self.broken:
            raise StateStoreError(f"the disk of {path.name} is full")
        return super().open(path, families)

    def write(self, name: str, version: dict[str, dict[Any, bytes]]) -> None:
        if name in self.damaged:
            raise StoreCorruptedError(f"{name} is damaged")
        if name in self.full:
            raise DiskFullError(f"the disk of {name} is full")
        super().write(name, version)

    def wipe(self, task: Task) -> None:
        self.damaged.discard(str(task.task_id))
        super().wipe(task)


class Host:
    def __init__(self, group: "GroupBench", name: str, **settings: Any) -> None:
        self.group = group
        self.name = name
        self.fuse = Fuse()
        self.disk = HostDisk(self.fuse)
        #: Directory of custom stores; the databases are on `disk`.
        self.directory = Path()
        self.member = FakeMembership(name)
        #: How often each changelog record was read here: (topic, partition, offset).
        self.read: Counter[tuple[str, int, int]] = Counter()
        self.poll_records = 1_000_000
        #: While set, no changelog is read here.
        self.blocked = threading.Event()
        self.events: list[RestoreEvent] = []
        self.updates: list[StandbyUpdateEvent] = []
        self.running: list[bool] = []
        self.sources: list[IdleReader] = []
        self.error: BaseException | None = None
        self.settings = settings
        self.start()

    def start(self) -> None:
        self.worker = self._make_worker()
        self.member.wake = self.worker.wake
        self._thread = threading.Thread(target=self._run, name=f"host-{self.name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.worker.run()
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.error = error
        with self.member.changed:
            self.member.changed.notify_all()

    def _make_source(self) -> IdleReader:
        self.sources.append(IdleReader(self.group.broker))
        return self.sources[-1]

    def _make_worker(self) -> StreamWorker:
        group = self.group
        config, broker = group.config, group.broker

        class Topics:
            @staticmethod
            def partition_count(topic: str) -> int:
                return len(broker.topics[topic].logs)

            @staticmethod
            def message_bytes_max(topic: str) -> int:
                return int(broker.topics[topic].config["max.message.bytes"])

            @staticmethod
            def message_bytes_max_now(topic: str) -> int:
                return int(broker.topics[topic].config["max.message.bytes"])

        at_least_once = config.processing_guarantee == "at_least_once"
        return StreamWorker(
            group.plan,
            frozenset(),
            WorkerSettings(
                **{
                    "transactional_id": f"{APP}-{self.name}-0",
                    "topology_hash": bytes(8),
                    **shared_options(config, WorkerSettings),
                    "handlers": error_handlers(config),
                    "status_interval_ms": 20,
                    **self.settings,
                }
            ),
            WorkerPorts(
                make_source=self._make_source,
                make_input_reader=FakeClients(broker).input_reader,
                make_producer=lambda each: Producer(broker, each, self.fuse),
                make_sink_producer=(lambda: Sinks(broker, self.fuse)) if at_least_once else None,
                make_reader=lambda: CountingReader(self),
                admin=FakeClients(broker).admin(),
                topics=Topics(),
                clock=RealClock(),
                runs=group.runs,
            ),
            WorkerHooks(
                make_task=TaskFactory(
                    plan=group.plan,
                    config=config,
                    directory=lambda task_id: self.directory / str(task_id),
                    open_database=self.disk.open,
                    now_ms=RealClock().now_ms,
                    threads=self.settings.get("threads", 1),
                    factor=self.settings.get("threads", 1),
                ),
                wipe=self.disk.wipe,
                on_restore=self.events.append,
                on_standby_update=self.updates.append,
                on_running=self.running.append,
                housekeep=lambda: None,
            ),
            membership=self.member,
        )

    # -- what tests wait for ---------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], Any], what: str = "") -> Any:
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            found = condition()
            if found:
                return found
            if self.error is not None:
                raise self.error
            assert time.monotonic() < deadline_s, f"{self.name}: {what}: {self.member.reports[-5:]}"
            with self.member.changed:
                self.member.changed.wait(0.005)

    def said(self, kind: type[R], **values: Any) -> R:

        def look() -> R | None:
            for each in self.member.all_of(kind):
                if all(getattr(each, name) == value for name, value in values.items()):
                    return each
            return None

        found: R = self.until(look, f"waiting for {kind.__name__} {values}")
        return found

    def run_task(self, task: str, epoch: int, released: TaskReleased | None = None) -> TaskRunning:
        self.member.give(granted(task, epoch, released))
        return self.said(TaskRunning, task=task, task_epoch=epoch)

    def release(self, task: str, epoch: int, keep: int = 0) -> TaskReleased:
        self.member.give(ReleaseTask(task=task, task_epoch=epoch, keep=keep))
        return self.said(TaskReleased, task=task, task_epoch=epoch)

    def ready(self, task: str, epoch: int, *, end: int | None = None) -> CopyReady:

        def look() -> CopyReady | None:
            for each in reversed(self.member.all_of(CopyReady)):
                if each.task == task and each.learn_epoch == epoch:
                    at = sum(each.positions.values())
                    return each if end is None or at >= end else None
            return None

        found: CopyReady = self.until(look, f"waiting for a copy of {task}")
        return found

    def status(self, task: str) -> Any:

        def look() -> Any:
            for report in reversed(self.member.all_of(WorkerStatus)):
                for row in report.tasks:
                    if row.task == task:
                        return row
            return None

        return self.until(look, f"waiting for the status of {task}")

    def rows(self, store: str, task: str) -> dict[bytes, bytes]:
        return dict(self.disk.versions.get(task, [{}])[-1].get(store, {}))

    def close(self) -> None:
        self.member.give(MayClose())
        self.join()

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"{self.name} does not end"

    def kill(self) -> None:
        self.fuse.left = 0
        self.worker.stop()
        self.join()


class GroupBench:
    def __init__(
        self,
        topology: Topology,
        topics: Mapping[str, int],
        *,
        cache_bytes: int = 0,
        guarantee: Any = "exactly_once",
        **settings: Any,
    ) -> None:
        self.broker = FakeBroker()
        self.config: Any = StreamsConfig(
            application_id=APP,
            bootstrap_servers="unused:9092",
            statestore_cache_max_bytes=cache_bytes,
            processing_guarantee=guarantee,
            **{"commit_interval_ms": 20, **settings},
        )
        for name, partitions in topics.items():
            self.broker.create_topic(name, partitions)
        self.plan: ApplicationPlan = plan_application(topology.spec(self.config), APP, dict(topics))
        for topic in (*self.plan.repartition_topics, *self.plan.changelog_topics):
            self.broker.create_topic(topic.name, topic.partitions, topic.config)
        self.hosts: list[Host] = []
        #: Maker of sorted runs for later hosts; None lets them read every changelog.
        self.runs: RunSettings | None = None

    def host(self, name: str, **settings: Any) -> Host:
        self.hosts.append(Host(self, name, **settings))
        return self.hosts[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.hosts:
            host.worker.stop()
        for host in self.hosts:
            host.join()

    def send(self, key: str, value: str = "x", *, topic: str = "in", partition: int = -1) -> None:
        self.broker.send(topic, value.encode(), key.encode(), timestamp=1_000, partition=partition)

    def committed(self, partition: int = 0, topic: str = "in") -> int:
        found = self.broker.groups[APP].get(TopicPartition(topic, partition))
        return 0 if found is None else found.offset

    def end(self, partition: int = 0, topic: str = "in") -> int:
        return self.broker.topics[topic].logs[partition].last_stable_offset

    def outputs(self, topic: str = "out") -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for each in self.broker.records(topic):
            found.setdefault((each.key or b"").decode(), []).append(
                int.from_bytes(each.value or b"", "big")
            )
        return found


def granted(task: str, epoch: int, released: TaskReleased | None = None) -> RunTask:
    if released is None:
        return RunTask(task=task, task_epoch=epoch)
    return RunTask(
        task=task,
        task_epoch=epoch,
        input=released.input,
        changelog_end=released.changelog_end,
    )


__all__ = ["APP", "FakeMembership", "GroupBench", "Host", "TaskId", "granted"]
