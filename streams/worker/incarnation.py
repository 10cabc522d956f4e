"""Life of a worker, from its slot to the last close."""

import logging
import math
import secrets
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.rebalance.producer_ids import INCARNATION_BYTES
from tidewheel.rebalance.protocol.naming import display_name
from tidewheel.rebalance.protocol.orders import WorkerClosed
from tidewheel.rebalance.protocol.task_status import RunningCall
from tidewheel.state_stores.rocksdb.task_database import TaskDatabase
from tidewheel.state_stores.state_directory import StateDirectory
from tidewheel.state_stores.user_code import located
from tidewheel.streams.errors import FencedError
from tidewheel.streams.kafka.client.statistics import ClientStatistics
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
from tidewheel.streams.worker.placement_conflict import PlacementCheck
from tidewheel.streams.worker.plan_watch import PlanWatch, refresh_interval_ms
from tidewheel.streams.worker.state_on_disk import state_on_disk
from tidewheel.streams.worker.topic_setup import plan_with_topics, prepare_topics
from tidewheel.streams.worker.worker_hello import make_hello
from tidewheel.tasks.commit.output_collector import OutputCollector
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan
from tidewheel.tasks.kafka.ports import Admin, TransactionalProducer
from tidewheel.tasks.loop.group_producers import started
from tidewheel.tasks.loop.stream_worker import StreamWorker
from tidewheel.tasks.loop.worker_ports import WorkerHooks, WorkerPorts
from tidewheel.tasks.processing.engine.error_policy import ErrorPolicy
from tidewheel.tasks.restore.start_positions import appeared_in
from tidewheel.tasks.task.state_manager import StateManager
from tidewheel.tasks.task.task import Task

_log = logging.getLogger("tidewheel")

#: Time that a fenced worker waits for the group's reason.
_FENCING_REASON_S: Final = 3.0
#: Time for the group to confirm a shutdown: a leader may have to be elected first.
_SHUTDOWN_S: Final = 10.0
#: Longest error text sent to the group (characters).
_REASON_MAX: Final = 1_000


class WorkerLife:
    """One life of a worker; `outdated` if it ended because the cluster's topics changed."""

    def __init__(
        self,
        application: Application,
        watchdog: HostWatchdog,
        *,
        claim_slot: Callable[[], StateDirectory],
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
        self._claim_slot = claim_slot
        self._alone = alone
        self._wipe_globals = wipe_globals
        self._paused = paused
        self._ending = ending
        self._on_running = on_running
        self._on_shutdown = on_shutdown
        self._ends_all = ends_all
        #: Guards `_departure` until there is a membership, and `_paused` until there is a worker.
        self._lock = threading.Lock()
        self._loop_thread: threading.Thread | None = None
        self._departure: Departure | None = None
        self.worker: StreamWorker | None = None
        self.globals: RunningGlobalStores | None = None
        self.membership: GroupMembership | None = None
        self.statistics = ClientStatistics() if application.measuring.is_wanted else None
        self._producer: TransactionalProducer | None = None
        self._watch: PlanWatch | None = None
        self.outdated = False
        self._plan: ApplicationPlan | None = None if previous is None else previous.last_plan
        self._appeared: frozenset[TopicPartition] = (
            frozenset() if previous is None else previous.appeared
        )

    @property
    def last_plan(self) -> ApplicationPlan | None:
        return self._plan if self.worker is None else self.worker.plan

    @property
    def appeared(self) -> frozenset[TopicPartition]:
        return self._appeared if self.worker is None else self.worker.appeared

    def depart(self, departure: Departure) -> None:
        """Leave the group in the given mode; without a group stop immediately."""
        with self._lock:
            self._departure = departure
            membership = self.membership
        if membership is not None and self.worker is not None:
            membership.leave(departure)
        else:
            self.stop()

    def pause(self, *, paused: frozenset[int]) -> None:
        with self._lock:
            self._paused = paused
            if self.worker is not None:
                self.worker.paused = paused

    def stop(self) -> None:
        if self.worker is not None:
            self.worker.stop()

    def run(self) -> None:
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
                self._end_application(error)  # before the connection to the group closes
                raise

    def _end_application(self, error: BaseException) -> None:
        if self.membership is None or not self._ends_all(error):
            return
        reason = located(error)[:_REASON_MAX]
        if self.membership.shut_down(reason, _SHUTDOWN_S):
            _log.warning("the group is ending the whole application")
        else:
            _log.error(
                "the group did not confirm within %.0f s the end of the whole application; only the workers of "
                "this process end; stop the others by hand",
                _SHUTDOWN_S,
            )

    def _run(self, stack: ExitStack) -> None:
        application = self._application
        config = application.config
        self._loop_thread = threading.current_thread()
        clients = make_clients(config, self._show_progress, self.statistics)
        slot = self._claim_slot()
        admin = clients.admin(timeout_s=application.options.patience_s)
        stack.callback(admin.close)
        patience_s = math.inf if application.options.wait_for_brokers else None
        if not admin.reach(self._ending, timeout_s=patience_s):
            return
        placement = PlacementCheck(application, admin, self._ending)
        placement.check()
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
            placement.check_as_fixed(shown_as)
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
            tracer=None if application.telemetry is None else application.telemetry.tracer,
            measures_latency=application.measuring.is_wanted,
        )
        self._watch = PlanWatch(
            plan,
            list_topics=admin.list_topics,
            make_plan=lambda topics: plan_with_topics(
                application.spec, config, admin, topics, application.topology_hash
            ),
            changed=self._plan_changed,
            every_ms=refresh_interval_ms(config.client_properties("consumer")),
        )
        ports = worker_ports(application, clients, admin, slot, plan, self._global_call)
        # Before joining: brokers may answer late, and a member must not hang.
        recommit_ms = recommit_interval(admin)
        if assigned is None:
            transactional_id = self._join(stack, plan, slot, ports, admin)
            if transactional_id is None:
                return
            placement.check_as_member()
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
                check_topics=self._watch.refresh_soon,
            ),
            membership=self.membership,
            first_producer=self._producer,
        )
        self._prepare(self.worker, slot.slot)
        self._watch.start()
        stack.callback(self._watch.close)
        self._work(self.worker)

    def _prepare(self, worker: StreamWorker, slot: int) -> None:
        """Pass on what this life knew before it had a worker."""
        worker.appeared = self._appeared
        with self._lock:
            worker.paused = self._paused
        telemetry = self._application.telemetry
        if telemetry is not None:
            worker.metrics.on_commit = partial(telemetry.committed, slot)

    def _global_call(self) -> RunningCall | None:
        return None if self.globals is None else self.globals.call

    def _show_progress(self) -> None:
        """Report progress while the loop waits for the cluster: such a wait is no hang.

        Other threads' waits don't count: the loop may hang meanwhile.
        """
        if self.membership is not None and threading.current_thread() is self._loop_thread:
            self.membership.progress()

    def _work(self, worker: StreamWorker) -> None:
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
            raise self.membership.fencing_reason(error, _FENCING_REASON_S) from error

    def _join(
        self,
        stack: ExitStack,
        plan: ApplicationPlan,
        slot: StateDirectory,
        ports: WorkerPorts,
        admin: Admin,
    ) -> str | None:
        """Join the group; return the transactional id, or None if stopped before.

        The producer is initialised before the group log has its id. After a fencing of this id, the
        initialisation would undo it.
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
            self.membership.send(WorkerClosed())
        else:
            join = hello.join
            _log.info(
                "%s, process %d: joined the group as incarnation %s",
                display_name(join),
                join.pid,
                join.incarnation,
            )
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
        """Adopt a new plan of tasks; called by the thread of the topic watch."""
        worker = self.worker
        assert worker is not None, "the watch starts after the worker"
        if self.membership is None:
            _log.info("the cluster's topics have changed; starting again with all of them")
            self.outdated = True
            worker.stop()
            return
        _log.info("the cluster's topics have changed; reporting them to the group")
        self._factory = msgspec.structs.replace(self._factory, plan=plan)
        worker.use_plan(plan)
        self.membership.send(tasks_seen(plan, self._application.config.application_id))

    def _check(self) -> None:
        if self.globals is not None:
            self.globals.check()
        if self._watch is not None:
            self._watch.check()

    def _clean(self, slot: StateDirectory) -> None:
        worker = self.worker
        assert worker is not None, "the worker calls this"
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
    """Join the consumer group that shows live workers with fixed assignment, until `stack` closes.

    Returns the transactional id, or None without an input topic to subscribe.
    """
    topics = [
        topic
        for subtopology in plan.subtopologies.values()
        for topic in subtopology.topic_partitions
    ]
    if not topics:
        return None
    stack.callback(clients.fixed_claim(transactional_id, min(topics)).close)
    return transactional_id
