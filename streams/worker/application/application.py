"""Application: program, settings and state that all threads share."""

import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.worker.application.application_state import ApplicationState
from tidewheel.streams.worker.application.memory import ProcessMemory
from tidewheel.streams.worker.application.run_options import RunOptions
from tidewheel.tasks.figures import Family
from tidewheel.tasks.kafka.ports import Clock
from tidewheel.tasks.key_ranges.shared_loop import WorkerLoop
from tidewheel.tasks.processing.api.topology_spec import TopologySpec
from tidewheel.tasks.processing.engine.traced_graph import BatchTracer
from tidewheel.tasks.restore.run_ports import RunMaker
from tidewheel.tasks.restore.state_updater import RestoreEvent, StandbyUpdateEvent


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()


class Announced:
    """Address of this process in its group; the HTTP server sets it before the start."""

    def __init__(self) -> None:
        self.endpoint: str | None = None


class Measuring:
    """Tells workers to collect figures that cost something; set before the start."""

    def __init__(self) -> None:
        self.is_wanted = False


class Telemetry(Protocol):
    """Reports of a process to a telemetry system; the calls never raise."""

    @property
    def tracer(self) -> BatchTracer: ...

    def begin(self, read: Callable[[], list[Family]]) -> None: ...

    def committed(self, slot: int, took_s: float) -> None: ...

    def restored(self, event: RestoreEvent, took_s: float) -> None: ...

    def close(self) -> None: ...


class Application(msgspec.Struct, frozen=True, kw_only=True):
    """Program, settings and shared state of a running application.

    Attributes:
        topology_hash: Identifies the topology in commits and in the group.
        on_restore: Called by the restoring thread, like `on_standby_update`.
        runs: Builds sorted files for stores that are far behind.
        event_loop: Runs the coroutines of all workers of the process.
    """

    spec: TopologySpec
    topology_hash: bytes
    config: StreamsConfig
    options: RunOptions
    state: ApplicationState
    clock: Clock
    memory: ProcessMemory
    on_restore: Callable[[RestoreEvent], None]
    on_standby_update: Callable[[StandbyUpdateEvent], None] = lambda _: None
    runs: RunMaker | None = None
    event_loop: WorkerLoop = msgspec.field(default_factory=WorkerLoop)
    announced: Announced = msgspec.field(default_factory=Announced)
    telemetry: Telemetry | None = None
    measuring: Measuring = msgspec.field(default_factory=Measuring)

    @property
    def endpoint(self) -> str | None:
        """Return the `host:port` at which other members reach this process."""
        return self.announced.endpoint or self.config.application_server

    @property
    def is_fixed(self) -> bool:
        """Return True if the user, not a group, assigns the tasks."""
        options = self.options
        return options.uses_no_group or self.config.task_assignor == "fixed"

    @property
    def transaction_timeout_ms(self) -> int:
        return self.config.worker_hang_timeout_ms + 30_000
