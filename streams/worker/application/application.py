"""What all threads of one application share: the program, its settings, its state."""

import time
from collections.abc import Callable

import msgspec

from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.worker.application.application_state import ApplicationState
from tidewheel.streams.worker.application.memory import ProcessMemory
from tidewheel.streams.worker.application.run_options import RunOptions
from tidewheel.tasks.ports import Clock
from tidewheel.tasks.processing.api.topology_spec import TopologySpec
from tidewheel.tasks.restore.run_ports import RunMaker
from tidewheel.tasks.restore.state_updater import RestoreEvent, StandbyUpdateEvent


class SystemClock:
    """The real clocks of this machine."""

    def now_ms(self) -> int:
        """Return ms since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Return seconds that never jump."""
        return time.monotonic()


class Application(msgspec.Struct, frozen=True, kw_only=True):
    """What runs, and how.

    Attributes:
        spec: The topology.
        topology_hash: Tells this topology from others, in commits and in the group.
        config: Settings.
        options: The place of this process among others.
        state: What the application is doing.
        clock: Time.
        memory: What all databases of the process share.
        on_restore: Told how restoring goes on, by the restoring thread.
        on_standby_update: Told how copies go on, by the same thread.
        runs: Makes sorted runs for stores that are far behind; None reads everything in the workers.
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

    @property
    def is_fixed(self) -> bool:
        """Return whether tasks are placed by the user instead of a group (N13)."""
        options = self.options
        return options.fixed or options.tasks is not None or self.config.task_assignor == "fixed"

    @property
    def transaction_timeout_ms(self) -> int:
        """Return after how long without a word the brokers end a transaction of ours by themselves."""
        return self.config.worker_hang_timeout_ms + 30_000
