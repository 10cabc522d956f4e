"""Dependencies of a worker: settings, clients, and factories of its tasks."""

from collections.abc import Callable
from typing import Protocol

import msgspec

from tidewheel.rebalance.model import TaskId
from tidewheel.rebalance.protocol.orders import AnyOrder, AnyReport
from tidewheel.rebalance.protocol.task_status import RunningCall
from tidewheel.tasks.commit.committer import run_in_thread
from tidewheel.tasks.commit.output_collector import OutputCollector, TopicInfo
from tidewheel.tasks.kafka.ports import (
    Admin,
    Background,
    ChangelogReader,
    Clock,
    OnRecord,
    ProducerOfId,
    RecordSource,
    SinkProducer,
)
from tidewheel.tasks.key_ranges.shared_loop import WorkerLoop
from tidewheel.tasks.processing.engine.error_policy import ErrorPolicy
from tidewheel.tasks.restore.run_ports import RunSettings
from tidewheel.tasks.restore.state_updater import RestoreEvent, StandbyUpdateEvent
from tidewheel.tasks.task.state_manager import StateManager
from tidewheel.tasks.task.task import Task
from tidewheel.tasks.task.worker_settings import InputCheck


class Membership(Protocol):
    """The worker's connection to its member in the watchdog (`streams/processes/watchdog/link.py`).

    The worker's loop calls `receive_orders`, `progress` and `lease_left_s`; any thread may send reports. No
    call blocks. When an order arrives, the connection calls `StreamWorker.wake`.
    """

    def receive_orders(self) -> list[AnyOrder]:
        """Return the orders since the last call, in sequence; an order may be repeated."""
        ...

    def send(self, report: AnyReport) -> None: ...

    def progress(self) -> None:
        """Report a round of the loop; a loop without rounds for `worker_hang_timeout_ms` hangs."""
        ...

    def show_call(self, since_ns: int) -> None:
        """Show the start of the current call of user code (`time.monotonic_ns`); 0 for none.

        The call watch's thread calls it at each check: a loop in a call does not count as hanging.
        """
        ...

    def lease_left_s(self) -> float:
        """Return the seconds left to process input: infinite before a lease, negative after it."""
        ...


def _no_call() -> RunningCall | None:
    return None


class WorkerPorts(msgspec.Struct, frozen=True, kw_only=True):
    """Clients of one worker, which closes those that it made."""

    make_source: Callable[[], RecordSource]
    #: Makes a reader of consumed records: the handler and dead letter of a failed output get its
    #: input record's bytes.
    make_input_reader: Callable[[], RecordSource]
    make_producer: ProducerOfId
    #: Makes the producer of at_least_once outputs; None in exactly_once.
    make_sink_producer: Callable[[], SinkProducer] | None
    make_reader: Callable[[], ChangelogReader]
    admin: Admin
    topics: TopicInfo
    clock: Clock
    #: Settings of restores from sorted files (runs); None replays every changelog record by record.
    runs: RunSettings | None = None
    #: Receives each record before its processing; None unless the previous process died without an
    #: error.
    on_record: OnRecord | None = None
    #: Warns of sampled keys in wrong partitions, where they miss equal keys of a joined input.
    input_check: InputCheck | None = None
    background: Background = run_in_thread
    #: Returns the current long call of user code in the global stores' thread.
    global_call: Callable[[], RunningCall | None] = _no_call
    #: Event loop of the process's coroutines; None: one of this worker alone.
    event_loop: WorkerLoop | None = None


class MakeTask(Protocol):
    def __call__(
        self,
        task_id: TaskId,
        collector: OutputCollector,
        policy: ErrorPolicy,
        stores: StateManager | None = None,
        /,
    ) -> Task:
        """Return a new task of the plan, over open `stores` if given."""
        ...


def _nothing() -> None:
    pass


def _ignore_update(_: StandbyUpdateEvent) -> None:
    pass


class WorkerHooks(msgspec.Struct, frozen=True, kw_only=True):
    """Callbacks of one worker to its process, in the loop's thread unless a comment differs."""

    make_task: MakeTask
    #: Deletes the state of a task, whose databases are closed.
    wipe: Callable[[Task], None]
    #: Called in the restoring thread, like `on_standby_update`.
    on_restore: Callable[[RestoreEvent], None]
    on_standby_update: Callable[[StandbyUpdateEvent], None] = _ignore_update
    #: Called with True when all owned tasks run, and with False when that ends.
    on_running: Callable[[bool], None]
    #: Called every `repartition_purge_interval_ms`, for work that is not urgent.
    housekeep: Callable[[], None]
    #: Called in each round; raises if the global stores have failed.
    watch: Callable[[], None] = _nothing
    check_topics: Callable[[], None] = _nothing
