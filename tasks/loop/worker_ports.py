"""What a worker is given: its settings, its clients, and what makes its tasks."""

from collections.abc import Callable
from typing import Protocol

import msgspec

from tidewheel.rebalance.model import TaskId
from tidewheel.rebalance.protocol.orders import AnyOrder, AnyReport
from tidewheel.rebalance.protocol.task_status import RunningCall
from tidewheel.tasks.commit.committer import run_in_thread
from tidewheel.tasks.commit.output_collector import OutputCollector, TopicInfo
from tidewheel.tasks.ports import (
    Admin,
    Background,
    ChangelogReader,
    Clock,
    OnRecord,
    ProducerOfId,
    RecordSource,
    SinkProducer,
)
from tidewheel.tasks.processing.engine.error_policy import ErrorPolicy
from tidewheel.tasks.restore.run_ports import RunSettings
from tidewheel.tasks.restore.state_updater import RestoreEvent, StandbyUpdateEvent
from tidewheel.tasks.task.state_manager import StateManager
from tidewheel.tasks.task.task import Task
from tidewheel.tasks.worker_settings import InputCheck


class Membership(Protocol):
    """The worker's line to its member, which lives in the watchdog (`streams/processes/watchdog/link.py`).

    The worker's loop thread calls `take`, `progress` and `lease_left_s`; `say` may be called from any thread. None of them
    waits for anything. Whoever makes it gives it a way to wake the worker when an order comes (`StreamWorker.wake`).
    """

    def take(self) -> list[AnyOrder]:
        """Return the orders that came since the last call, in order. One may come again."""
        ...

    def say(self, report: AnyReport) -> None:
        """Send a report; reports arrive in the order in which they were said."""
        ...

    def progress(self) -> None:
        """Tell that the worker's loop turns; standing still for `worker_hang_timeout_ms` counts as hanging."""
        ...

    def show_call(self, since_ns: int) -> None:
        """Show since when (`time.monotonic_ns`) the loop has been in its present call of user code; 0: it is in none.

        Called by the thread of the call watch, at every look: while it does, `worker_hang_timeout_ms` does not count.
        """
        ...

    def lease_left_s(self) -> float:
        """Return for how long input may still be taken, in seconds; infinite before the first lease, below 0 after one."""
        ...


def _no_call() -> RunningCall | None:
    return None


class WorkerPorts(msgspec.Struct, frozen=True, kw_only=True):
    """The clients of one worker, made by the adapters; the worker closes what it made."""

    make_source: Callable[[], RecordSource]
    #: For single records that were consumed before.
    make_input_reader: Callable[[], RecordSource]
    #: Given the transactional id.
    make_producer: ProducerOfId
    #: None in exactly_once.
    make_sink_producer: Callable[[], SinkProducer] | None
    make_reader: Callable[[], ChangelogReader]
    admin: Admin
    topics: TopicInfo
    clock: Clock
    #: None reads everything in the worker.
    runs: RunSettings | None = None
    #: Told before each record which it is, for a while; None goes in batches (`tidewheel.tasks.loop.slices`).
    on_record: OnRecord | None = None
    #: Samples keys of inputs that are joined.
    input_check: InputCheck | None = None
    #: Runs the calls of a commit that wait for brokers, while the loop processes.
    background: Background = run_in_thread
    #: Returns the long call of user code that the global stores are in.
    global_call: Callable[[], RunningCall | None] = _no_call


class MakeTask(Protocol):
    """Makes the tasks of an application."""

    def __call__(
        self,
        task_id: TaskId,
        collector: OutputCollector,
        policy: ErrorPolicy,
        stores: StateManager | None = None,
        /,
    ) -> Task:
        """Return a task of the plan, created; it takes over open `stores`, if some are given."""
        ...


def _nothing() -> None:
    pass


def _ignore_update(_: StandbyUpdateEvent) -> None:
    pass


class WorkerHooks(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one worker to its process. The loop's thread makes them unless a line says otherwise."""

    make_task: MakeTask
    #: Deletes the state of a task, whose databases are closed.
    wipe: Callable[[Task], None]
    #: Called by the restoring thread, as are the updates of copies.
    on_restore: Callable[[RestoreEvent], None]
    on_standby_update: Callable[[StandbyUpdateEvent], None] = _ignore_update
    #: Called when all owned tasks run, and when that ends.
    on_running: Callable[[bool], None]
    #: Called now and then, for work that is not urgent.
    housekeep: Callable[[], None]
    #: Called in each round; ends the worker by raising (the global stores cannot be kept up).
    watch: Callable[[], None] = _nothing
    #: Requests a check of the cluster's topics.
    check_topics: Callable[[], None] = _nothing
