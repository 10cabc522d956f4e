"""Ports of a worker: its group member, its clients, its task factory and its hooks."""

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
    """The worker's connection to its group member (`streams/processes/watchdog/link.py`).

    No method blocks. The loop's thread calls all but `say` (any thread) and `show_call` (call watch).
    Its creator wakes the worker when an order arrives (`StreamWorker.wake`).
    """

    def take(self) -> list[AnyOrder]:
        """Return the orders received since the last call, in order; one may be repeated."""
        ...

    def say(self, report: AnyReport) -> None:
        """Send a report; reports arrive in the order of the calls."""
        ...

    def progress(self) -> None:
        """Report that the loop turns; after `worker_hang_timeout_ms` without it the worker hangs."""
        ...

    def show_call(self, since_ns: int) -> None:
        """Show the start of the loop's present call of user code (`time.monotonic_ns`); 0: none.

        While the call watch repeats this, `worker_hang_timeout_ms` does not count.
        """
        ...

    def lease_left_s(self) -> float:
        """Return the seconds left for reading input: infinite before the first lease, < 0 after it ends."""
        ...


def _no_call() -> RunningCall | None:
    return None


class WorkerPorts(msgspec.Struct, frozen=True, kw_only=True):
    """The clients of one worker; the worker closes those that it made."""

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
    #: Called before each record while records run singly; None processes batches (`slices`).
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
    """Calls of one worker to its process. The loop's thread makes them unless noted."""

    make_task: MakeTask
    #: Deletes the state of a task, whose databases are closed.
    wipe: Callable[[Task], None]
    #: Called by the restoring thread, as are the updates of copies.
    on_restore: Callable[[RestoreEvent], None]
    on_standby_update: Callable[[StandbyUpdateEvent], None] = _ignore_update
    #: Called when all owned tasks run, and when that ends.
    on_running: Callable[[bool], None]
    #: Called for work that is not urgent.
    housekeep: Callable[[], None]
    #: Called in each round; ends the worker by raising (the global stores cannot be kept up).
    watch: Callable[[], None] = _nothing
    #: Requests a check of the cluster's topics.
    check_topics: Callable[[], None] = _nothing
