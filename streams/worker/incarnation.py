"""One life of a worker: from a slot of the state directory, through its tasks, until everything is closed again."""

import logging
import secrets
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.rebalance.producer_ids import INCARNATION_BYTES
from tidewheel.rebalance.protocol.orders import WorkerClosed
from tidewheel.rebalance.protocol.task_status import RunningCall
from tidewheel.state_stores.rocksdb.task_database import TaskDatabase
from tidewheel.state_stores.state_directory import StateDirectory
from tidewheel.streams.errors import FencedError
from tidewheel.streams.kafka.clients import KafkaClients
from tidewheel.streams.processes.watchdog.link import WatchdogLink
from tidewheel.streams.worker.application.application import Application
from tidewheel.streams.worker.application.task_factory import TaskFactory
from tidewheel.streams.worker.application.wiring import (
    fixed_assignment,
    fixed_transactional_id,
    make_clients,
    range_threads,
    recommit_interval,
    take_slot,
    whole_tasks,
    worker_ports,
    worker_settings,
)
from tidewheel.streams.worker.global_stores import RunningGlobalStores
from tidewheel.streams.worker.group_membership import (
    Departure,
    GroupMembership,
    task_shapes,
    tasks_seen,
)
from tidewheel.streams.worker.host_watchdog import HostWatchdog
from tidewheel.streams.worker.placement_conflict import OnePlacing
from tidewheel.streams.worker.plan_watch import PlanWatch, refresh_interval_ms
from tidewheel.streams.worker.state_on_disk import state_on_disk
from tidewheel.streams.worker.topic_setup import plan_with_topics, prepare_topics
from tidewheel.streams.worker.worker_hello import make_hello
from tidewheel.tasks.commit.output_collector import OutputCollector
from tidewheel.tasks.internal_topics import ApplicationPlan
from tidewheel.tasks.loop.group_producers import started
from tidewheel.tasks.loop.stream_worker import StreamWorker
from tidewheel.tasks.loop.worker_ports import WorkerHooks, WorkerPorts
from tidewheel.tasks.ports import Admin, TransactionalProducer
from tidewheel.tasks.processing.engine.error_policy import ErrorPolicy
from tidewheel.tasks.restore.start_positions import appeared_in
from tidewheel.tasks.task.state_manager import StateManager
from tidewheel.tasks.task.task import Task

_log = logging.getLogger("tidewheel")

#: How long a worker that finds itself fenced waits for the group to say why.
_LAST_WORD_S: Final = 3.0
#: How long a worker that ends the whole application waits until the group knows: a leader may have to be elected first.
_SHUTDOWN_S: Final = 10.0
#: As much of an error is told to the group.
_REASON_MAX: Final = 1_000


class WorkerLife:
    """Made, run once, and thrown away. `run` is called by the worker's thread, everything else by any.

    Attributes:
        slot: Number of its slot, once it has one.
        worker: The loop, once there is one.
        globals: The global stores, once there are some.
        membership: Its place in the group, once it has asked for one; None with fixed assignment.
        outdated: Whether it ended because the cluster's topics changed: the next life has the new plan.
    """

    def __init__(
        self,
        application: Application,
        watchdog: HostWatchdog,
        *,
        wanted_slot: int | None,
        alone: bool,
        wipe_globals: bool,
        paused: frozenset[int],
        ending: threading.Event,
        on_running: Callable[[bool], None],
        on_shutdown: Callable[[str], None],
        ends_all: Callable[[BaseException], bool],
        previous: "WorkerLife | None" = None,
    ) -> None:
        self._application = application
        self._watchdog = watchdog
        self._wanted_slot = wanted_slot
        self._alone = alone
        self._wipe_globals = wipe_globals
        self._paused = paused
        self._ending = ending
        self._on_running = on_running
        self._on_shutdown = on_shutdown
        self._ends_all = ends_all
        #: Guards the handing over of `_departure` to a membership that can act on it, and of `_paused` to the worker.
        self._lock = threading.Lock()
        self._loop_thread: threading.Thread | None = None
        self._departure: Departure | None = None
        self.slot: int | None = None
        self.worker: StreamWorker | None = None
        self.globals: RunningGlobalStores | None = None
        self.membership: GroupMembership | None = None
        self._producer: TransactionalProducer | None = None
        self._watch: PlanWatch | None = None
        self.outdated = False
        #: The last plan of this process, and the input partitions that it has seen appear.
        self._plan: ApplicationPlan | None = None if previous is None else previous.last_plan
        self._appeared: frozenset[TopicPartition] = (
            frozenset() if previous is None else previous.appeared
        )

    @property
    def last_plan(self) -> ApplicationPlan | None:
        """Return the application as this process saw it on its cluster last."""
        return self._plan if self.worker is None else self.worker.plan

    @property
    def appeared(self) -> frozenset[TopicPartition]:
        """Return the input partitions that this process has seen appear."""
        return self._appeared if self.worker is None else self.worker.appeared

    # -- from other threads ----------------------------------------------------------------------------------------

    def depart(self, departure: Departure) -> None:
        """Go in order: in a group as it says, otherwise at once. `ending` is set by then."""
        with self._lock:
            self._departure = departure
            membership = self.membership
        if membership is not None and self.worker is not None:
            membership.leave(departure)
        else:
            self.stop()

    def pause(self, *, paused: frozenset[int]) -> None:
        """Have the tasks of these sub-topologies rest, and the others go on, also in a loop that is still to come."""
        with self._lock:
            self._paused = paused
            if self.worker is not None:
                self.worker.paused = paused

    def stop(self) -> None:
        """Commit, close and end, whatever the group says."""
        if self.worker is not None:
            self.worker.stop()

    # -- the worker's thread ---------------------------------------------------------------------------------------

    def run(self) -> None:
        """Live until told to stop; raises what ended it otherwise."""
        application = self._application
        for caution in (
            *application.config.cautions(),
            *whole_tasks(application.spec, application.config),
        ):
            _log.warning("%s", caution)
        with ExitStack() as stack:
            try:
                self._run(stack)
            except BaseException as error:
                self._tell_group(error)  # while there is still a line to it
                raise

    def _tell_group(self, error: BaseException) -> None:
        """End the whole application, if the user wants that after this error."""
        if self.membership is None or not self._ends_all(error):
            return
        reason = f"{type(error).__name__}: {error}"[:_REASON_MAX]
        if self.membership.shut_down(reason, _SHUTDOWN_S):
            _log.warning("the group is ending the whole application")
        else:
            _log.error(
                "the group has not taken in within %.0f s that the whole application is to end; only the workers of "
                "this process end, stop the others by hand",
                _SHUTDOWN_S,
            )

    def _run(self, stack: ExitStack) -> None:
        application = self._application
        config = application.config
        self._loop_thread = threading.current_thread()
        clients = make_clients(config, self._show_progress)
        slot = take_slot(config, self._wanted_slot, stack)
        self.slot = slot.slot
        admin = clients.admin()
        stack.callback(admin.close)
        if not admin.reach(self._ending):
            return
        placing = OnePlacing(application, admin, self._ending)
        placing.look()
        plan = prepare_topics(
            application.spec,
            config,
            admin,
            options=application.options,
            topology_hash=application.topology_hash,
            stopped=self._ending,
            clock=application.clock,
        )
        if plan is None:
            return
        if self._plan is not None:
            self._appeared |= appeared_in(plan, self._plan)
        self._plan = plan
        assigned = fixed_assignment(plan, application.options) if application.is_fixed else None
        _log.info(
            "application %s, slot %d, %s: tasks %s, state in %s",
            config.application_id,
            slot.slot,
            config.processing_guarantee,
            "as the group says"
            if assigned is None
            else ", ".join(map(str, sorted(assigned))) or "none",
            slot.path,
        )
        if assigned is not None:
            shown_as = _claim(stack, clients, fixed_transactional_id(config, slot.slot), plan)
            placing.look_again_as_fixed(shown_as)
        open_database = self._opener(len(plan.tasks if assigned is None else assigned), plan)
        if not self._restore_globals(stack, plan, slot, clients, admin, open_database):
            return
        self._factory = TaskFactory(
            plan=plan,
            config=config,
            directory=lambda task_id: slot.task_directory(str(task_id)),
            open_database=open_database,
            now_ms=application.clock.now_ms,
            threads=range_threads(config),
            factor=config.parallelising_factor,
            global_stores={} if self.globals is None else self.globals.stores.views,
        )
        self._watch = PlanWatch(
            plan,
            list_topics=admin.list_topics,
            make_plan=lambda topics: plan_with_topics(
                application.spec, config, admin, topics, application.topology_hash
            ),
            changed=self._plan_changed,
            every_ms=refresh_interval_ms(config.consumer),
        )
        ports = worker_ports(application, clients, admin, slot, plan, self._global_call)
        # Before the group counts on this worker: brokers may take their time to answer.
        recommit_ms = recommit_interval(admin)
        if assigned is None:
            transactional_id = self._join(stack, plan, slot, ports, admin)
            if transactional_id is None:
                return
            placing.look_again_as_member()
        else:
            transactional_id = fixed_transactional_id(config, slot.slot)
        self.worker = StreamWorker(
            plan,
            assigned or frozenset(),
            worker_settings(application, transactional_id, recommit_ms=recommit_ms),
            ports,
            WorkerHooks(
                make_task=self._make_task,
                wipe=lambda task: slot.remove_task_directory(str(task.task_id)),
                on_restore=application.on_restore,
                on_standby_update=application.on_standby_update,
                on_running=self._on_running,
                housekeep=lambda: self._clean(slot),
                watch=self._check,
                check_topics=self._watch.look_soon,
            ),
            membership=self.membership,
            first_producer=self._producer,
        )
        self.worker.appeared = self._appeared
        with self._lock:
            self.worker.paused = self._paused
        self._watch.start()
        stack.callback(self._watch.close)
        self._work(self.worker)

    def _global_call(self) -> RunningCall | None:
        return None if self.globals is None else self.globals.call

    def _show_progress(self) -> None:
        """Waiting for the cluster is no hang: the watchdog goes on vouching.

        That a commit waits says nothing of the loop, which processes meanwhile and may hang in that.
        """
        if self.membership is not None and threading.current_thread() is self._loop_thread:
            self.membership.progress()

    def _work(self, worker: StreamWorker) -> None:
        """Have the worker run, unless it is to go already."""
        with self._lock:
            departure = self._departure
        if departure is not None:
            self.depart(departure)
        elif self._ending.is_set():
            worker.stop()
        try:
            worker.run()
        except FencedError as error:
            if self.membership is None:
                raise
            raise self.membership.last_word(error, _LAST_WORD_S) from error

    def _join(
        self,
        stack: ExitStack,
        plan: ApplicationPlan,
        slot: StateDirectory,
        ports: WorkerPorts,
        admin: Admin,
    ) -> str | None:
        """Join the group; returns the transactional id to use, or None if we are to end first.

        The producer is initialised before the group hears of its id: whatever fences the id comes after that.
        """
        application = self._application
        on_disk = state_on_disk(
            slot,
            task_shapes(plan, application.config.application_id),
            admin,
            TaskDatabase.positions_in,
            application.clock.now_ms(),
        )
        hello = make_hello(
            application,
            plan,
            slot,
            incarnation=secrets.token_hex(INCARNATION_BYTES),
            process_id=self._watchdog.process_id,
            alone=self._alone,
            on_disk=on_disk,
        )
        (own_id,) = hello.join.transactional_ids
        self._producer = started(ports.make_producer(own_id))
        stack.callback(self._producer.close)
        woken = threading.Event()

        def wake() -> None:
            woken.set()
            if self.worker is not None:
                self.worker.wake()

        link = WatchdogLink.start(hello, fd=self._watchdog.connect, woken=wake)
        stack.callback(link.close)
        self.membership = GroupMembership(link, woken, self._on_shutdown)
        transactional_id = self.membership.wait_for_welcome(self._ending)
        if transactional_id is None:
            self.membership.say(WorkerClosed())
        else:
            _log.info("member %s, incarnation %s", hello.join.member, hello.join.incarnation)
        return transactional_id

    def _opener(
        self, databases: int, plan: ApplicationPlan
    ) -> Callable[[Path, list[str]], TaskDatabase]:
        options = self._application.config.rocksdb
        resources = self._application.memory.resources(databases + bool(plan.global_stores))
        return lambda path, families: TaskDatabase.open(path, families, options, resources)

    def _restore_globals(
        self,
        stack: ExitStack,
        plan: ApplicationPlan,
        slot: StateDirectory,
        clients: KafkaClients,
        admin: Admin,
        open_database: Callable[[Path, list[str]], TaskDatabase],
    ) -> bool:
        """Restore the global stores, if there are any; returns False if we are to end before that is done."""
        if not plan.global_stores:
            return True
        if self._wipe_globals:
            slot.remove_global_directory()
        self.globals = RunningGlobalStores(
            plan,
            self._application.config,
            slot,
            open_database=open_database,
            make_reader=clients.global_reader,
            admin=admin,
            clock=self._application.clock,
            on_event=self._application.on_restore,
        )
        return self.globals.restore(stack, self._ending)

    # -- while it runs ---------------------------------------------------------------------------------------------

    def _make_task(
        self,
        task_id: TaskId,
        collector: OutputCollector,
        policy: ErrorPolicy,
        stores: StateManager | None = None,
        /,
    ) -> Task:
        return self._factory(task_id, collector, policy, stores)

    def _plan_changed(self, plan: ApplicationPlan) -> None:
        """Go on with other topics; called by the thread that looks at them."""
        worker = self.worker
        assert worker is not None, "the watch begins after it"
        if self.membership is None:
            _log.info("the cluster's topics have changed; starting again with all of them")
            self.outdated = True
            worker.stop()
            return
        _log.info("the cluster's topics have changed; telling the group")
        self._factory = msgspec.structs.replace(self._factory, plan=plan)
        worker.use_plan(plan)
        self.membership.say(tasks_seen(plan, self._application.config.application_id))

    def _check(self) -> None:
        """Raise what keeps this worker from going on, if anything does."""
        if self.globals is not None:
            self.globals.check()
        if self._watch is not None:
            self._watch.check()

    def _clean(self, slot: StateDirectory) -> None:
        worker = self.worker
        assert worker is not None, "it is the worker that keeps house"
        removed = slot.clean_obsolete(
            {str(task) for task in (*worker.tasks, *worker.copies)},
            older_than_ms=self._application.config.state_cleanup_delay_ms,
            now_ms=int(self._application.clock.monotonic_s() * 1000),
        )
        if removed:
            _log.info("removed state of tasks that are no longer here: %s", ", ".join(removed))


def _claim(
    stack: ExitStack, clients: KafkaClients, transactional_id: str, plan: ApplicationPlan
) -> str | None:
    """Let the cluster know of a worker that no group knows, for the stack's time, and return what as.

    With no task there is nothing to know: then None.
    """
    read = [topic for each in plan.subtopologies.values() for topic in each.topic_partitions]
    if not read:
        return None
    stack.callback(clients.fixed_claim(transactional_id, min(read)).close)
    return transactional_id
