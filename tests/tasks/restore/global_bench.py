"""Global stores of successive processes on one fake cluster and one disk."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.fakes.broker import FakeBroker
from tests.fakes.clients import FakeClients
from tests.fakes.clock import FakeClock
from tests.tasks.loop.bench import Crash, Disk, Fuse
from tidewheel import Processor, Record, Stores, StreamsBuilder
from tidewheel.state_stores.in_memory import InMemoryDatabase
from tidewheel.state_stores.stores.key_value_store import ValueAndTimestamp
from tidewheel.tasks.calls.call_watch import Limits
from tidewheel.tasks.processing.engine.error_policy import ErrorHandlers
from tidewheel.tasks.restore.global_stores import GlobalStores
from tidewheel.tasks.restore.global_updater import GlobalUpdater
from tidewheel.tasks.restore.state_updater import RestoreEvent

TOPIC = "rates"
PARTITIONS = 3
PATIENCE_S = 20.0


class CountRecords(Processor[str, str, None, None]):
    """Counts the records of each key; a repeated record shows in the count."""

    def process(self, record: Record[str, str]) -> None:
        store = self.context.get_state_store("store")
        store.put(record.key, (store.get(record.key) or 0) + 1)


def table(builder: StreamsBuilder) -> None:
    builder.global_table(TOPIC, key_serde=str, value_serde=str, store="store")


def counts(
    builder: StreamsBuilder, processor: type[Processor[str, str, None, None]] = CountRecords
) -> None:
    store = Stores.key_value("store", key_serde=str, value_serde=int)
    builder.add_global_store(store, TOPIC, processor, key_serde=str, value_serde=str)


class Process:
    """Successive processes on one cluster and one disk."""

    def __init__(self, use: Callable[[StreamsBuilder], Any] = table, **handlers: Any) -> None:
        builder = StreamsBuilder()
        use(builder)
        self.specs = builder.build().spec().global_stores
        self.handlers = ErrorHandlers(**handlers)
        self.fuse = Fuse()
        self.disk = Disk(self.fuse)
        self.clock = FakeClock()
        self.broker = FakeBroker()
        self.broker.create_topic(TOPIC, PARTITIONS)
        self.clients = FakeClients(self.broker)
        self.events: list[RestoreEvent] = []
        self.wiped = 0
        self.limits = Limits(30.0, 300.0)

    def send(self, key: str | None, value: str | None, timestamp: int = 5, **more: Any) -> None:
        self.broker.send(
            TOPIC,
            None if value is None else value.encode(),
            None if key is None else key.encode(),
            timestamp=timestamp,
            **more,
        )

    def wipe(self) -> None:
        self.wiped += 1
        self.disk.corrupted.clear()
        self.disk.versions.clear()

    @contextmanager
    def life(self, *, crash_after: int | None = None) -> Iterator["Life"]:
        """Run a process's global stores; a crash after `steps` ends it silently."""
        self.events.clear()
        self.fuse.left = crash_after
        life = Life(self)
        try:
            life.updater.start()
            yield life
        except Crash:
            pass
        finally:
            self.fuse.left = None
            life.updater.close()

    def restored(self) -> int:
        """Return how many records the last life read before it was ready."""
        return sum(event.restored for event in self.events if event.kind == "end")


class Life:
    def __init__(self, process: Process) -> None:
        self.stores = GlobalStores(
            process.specs,
            {TOPIC: PARTITIONS},
            process.handlers,
            application_id="app",
            state_dir=Path("global"),
            open_persistent=lambda families: process.disk.open(Path("global"), families),
            open_in_memory=InMemoryDatabase,
            now_ms=process.clock.now_ms,
        )
        self.updater = GlobalUpdater(
            self.stores,
            admin=process.clients.admin(),
            make_reader=process.clients.global_reader,
            clock=process.clock,
            wipe=process.wipe,
            on_event=process.events.append,
            limits=process.limits,
        )
        self.view = self.stores.views["store"]

    def wait(self) -> None:
        assert self.updater.wait(threading.Event())

    def rows(self) -> dict[str, Any]:
        return {
            key: value.value if isinstance(value, ValueAndTimestamp) else value
            for key, value in self.view.all()
        }

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for the thread; raise the error that ended it."""
        pause = threading.Event()
        for _ in range(int(PATIENCE_S * 500)):
            if condition():
                return
            self.updater.check()
            pause.wait(0.002)
        raise AssertionError("it never happened")
