"""The worker: runs tasks until it is stopped, and starts them again after errors that allow it.

One thread owns all running tasks, the source consumer and the transactional producer. A transaction
is open only inside a commit and waits for no user code. After any error the buffers are discarded,
and the databases stay as the last commit left them.
"""

import logging
import threading
from contextlib import ExitStack

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.rebalance.protocol.orders import WorkerClosed
from tidewheel.state_stores.errors import DiskFullError
from tidewheel.tasks.calls.call_watch import CallWatch, Limits, watching
from tidewheel.tasks.commit.commit_round import CommitRound, CommitSequence
from tidewheel.tasks.commit.commit_schedule import CommitSchedule, early_start_s
from tidewheel.tasks.commit.committer import Committer, RolledBackError, waking
from tidewheel.tasks.commit.output_collector import OutputCollector
from tidewheel.tasks.commit.shard_floor import ShardFloor
from tidewheel.tasks.errors import FencedError, TaskCorruptedError
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan
from tidewheel.tasks.kafka.ports import TransactionalProducer
from tidewheel.tasks.loop.commit_driver import CommitDriver
from tidewheel.tasks.loop.group_orders import GroupOrders
from tidewheel.tasks.loop.housekeeping import Housekeeping
from tidewheel.tasks.loop.metrics import WorkerMetrics
from tidewheel.tasks.loop.questions import Questions
from tidewheel.tasks.loop.range_threads import RangeThreads
from tidewheel.tasks.loop.restart_policy import RestartPolicy
from tidewheel.tasks.loop.slices import Slices
from tidewheel.tasks.loop.task_loop import TaskLoop
from tidewheel.tasks.loop.task_manager import AssignedTasks, TaskManager
from tidewheel.tasks.loop.worker_committer import WorkerCommitter
from tidewheel.tasks.loop.worker_ports import Membership, WorkerHooks, WorkerPorts
from tidewheel.tasks.processing.engine.error_policy import ErrorPolicy
from tidewheel.tasks.restore.offset_origin import start_rules
from tidewheel.tasks.restore.restore_planner import RestorePlanner
from tidewheel.tasks.restore.start_positions import Grant, appeared_in, find_starts
from tidewheel.tasks.restore.state_updater import StateUpdater
from tidewheel.tasks.task.learner_task import LearnerTask
from tidewheel.tasks.task.task import Task
from tidewheel.tasks.task.worker_input import DeletedTopics, WorkerInput
from tidewheel.tasks.task.worker_settings import WorkerSettings

_log = logging.getLogger(__name__)


class StreamWorker:
    """Worker that runs tasks until `stop`. `run` needs its own thread; the rest is thread-safe.

    Args:
        assigned: Tasks of a worker without membership; empty in a group.
        membership: Connection to the group.
        first_producer: Producer of `settings.transactional_id`, initialised before the worker
            joined the group: later, it would undo the group's fencing.

    Attributes:
        appeared: Input partitions that appeared while this process ran.
        paused: Sub-topologies whose tasks pause.
    """

    appeared: frozenset[TopicPartition] = frozenset()
    call_watch: CallWatch | None = None

    def __init__(
        self,
        plan: ApplicationPlan,
        assigned: frozenset[TaskId],
        settings: WorkerSettings,
        ports: WorkerPorts,
        hooks: WorkerHooks,
        *,
        membership: Membership | None = None,
        first_producer: TransactionalProducer | None = None,
    ) -> None:
        self.plan = plan
        self._settings, self._ports, self._hooks = settings, ports, hooks
        self._stop, self._wake = threading.Event(), threading.Event()
        self.paused: frozenset[int] = frozenset()
        self.metrics = WorkerMetrics()
        self.tasks: dict[TaskId, Task] = {}
        self.copies: dict[TaskId, LearnerTask] = {}
        self._new_plan: ApplicationPlan | None = None
        self.updater: StateUpdater | None = None
        self._assigned = AssignedTasks(owned=dict.fromkeys(sorted(assigned), Grant()))
        self._committer = WorkerCommitter(
            settings, ports, lambda: self.plan, membership, first_producer
        )
        self._orders = GroupOrders(
            membership,
            early_orders=self._committer.pop_early_orders,
            stop=self.stop,
            status_interval_ms=settings.status_interval_ms,
            metrics=self.metrics,
            clock=ports.clock,
        )
        self._schedule = CommitSchedule(settings.commit_interval_ms)
        self._sequence = CommitSequence()
        self._ranges = RangeThreads(settings, ports.event_loop)
        self.questions = Questions(self._wake.set, pool=lambda: self._ranges.pool)
        self._slices = Slices(
            ports.clock,
            lambda: len(self._loop.manager.running) < len(self._loop.manager.tasks),
            # With several threads, a report could not name the record that kills the process.
            None if settings.threads > 1 else ports.on_record,
        )
        self._restarts = RestartPolicy(settings.siblings, ports.clock)
        self._loop: TaskLoop

    # -- from other threads ----------------------------------------------------------------------

    def stop(self) -> None:
        """Ask the loop to commit, close its tasks and return."""
        self._stop.set()
        self._wake.set()

    def wake(self) -> None:
        self._wake.set()

    def use_plan(self, plan: ApplicationPlan) -> None:
        """Replace the plan after topics changed; the tasks restart if their inputs did."""
        self._new_plan = plan
        self._wake.set()

    def lags(self) -> dict[TopicPartition, int]:
        return self.metrics.lags

    # -- running ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until `stop`, or until the group releases the worker.

        Raises:
            FencedError: Another worker has our transactional id, or the group ended our membership.
            RecordFailedError: A record failed and its handler answered "fail".
            StreamsError: Another error that needs a decision.
        """
        membership = self._orders.membership
        with ExitStack() as stack:
            self.call_watch = watching(
                lambda: self.metrics.rounds,
                lambda: self._ranges.pool,
                membership,
                Limits.of(self._settings.worker_hang_timeout_ms, self._settings.max_call_ms),
                self._ports.global_call,
            )
            stack.callback(self.call_watch.close)
            stack.callback(self._committer.close)
            self.questions.begin()
            stack.callback(self.questions.close)
            while not self._stop.is_set():
                self._run_until_restart()
        if membership is not None:
            membership.send(WorkerClosed())

    def _run_until_restart(self) -> None:
        try:
            with ExitStack() as stack:
                self._run_tasks(stack)
        except RolledBackError as error:
            self.metrics.rolled_back += 1
            _log.warning("starting the tasks again from the committed offsets: %s", error)
        except TaskCorruptedError as error:
            task = self.tasks[TaskId.parse(error.task_id)]
            if not self._restarts.may_wipe(task.task_id, self.metrics.commits):
                raise
            _log.warning("wiping the task's state and restoring it from the changelog: %s", error)
            self._hooks.wipe(task)
            self._assigned.wiped |= {task.task_id}
        except DiskFullError as error:
            if self._orders.membership is None or not error.task_id:
                raise
            self._loop.manager.drop_task(TaskId.parse(error.task_id), error)
        except FencedError as error:
            if self._orders.membership is not None or not self._restarts.may_fence_back():
                raise
            _log.info(
                "fenced while the other workers of this program started; restarting: %s", error
            )

    def _run_tasks(self, stack: ExitStack) -> None:
        ports, settings = self._ports, self._settings
        sink = None if ports.make_sink_producer is None else ports.make_sink_producer()
        collector = stack.enter_context(
            OutputCollector(ports.topics, sink, ports.make_input_reader)
        )
        policy = ErrorPolicy(
            settings.handlers,
            lambda columns: collector.add(columns, internal=False),
            counts=self.metrics.errors,
            locations=self.plan.locations(),
        )
        collector.policy = policy
        committer = self._committer.serve(collector, stack)
        starts, topic_ids = None, None
        if self._orders.membership is None:
            starts, topic_ids = find_starts(
                self.plan,
                self._assigned.owned,
                admin=ports.admin,
                rules=start_rules(settings),
                transactional_id=committer.producer.transactional_id,
                appeared=self.appeared,
            )
        source = ports.make_source()
        stack.callback(source.close)
        # Under exactly_once results appear only at a commit: a short wait for a larger batch of
        # input delays no result.
        work = WorkerInput(source, settings, ports.clock, gathers=sink is None)
        work.check = ports.input_check
        self._ranges.start(stack)
        loop = self._loop = self._make_loop(committer, collector, policy, work, stack)
        stack.push(loop.commits.abandon)  # runs before the tasks close
        self.tasks, self.copies = loop.manager.tasks, loop.manager.copies
        self._schedule.restart(ports.clock.monotonic_s(), early_s=self._early_s())
        loop.housekeeping.restart()
        loop.manager.begin(starts, topic_ids)
        while not self._stop.is_set():
            if self._must_restart():
                return
            loop.turn()
        loop.stop()

    def _early_s(self) -> float:
        """Return the seconds before its deadline at which a commit may start.

        0 under at_least_once, where results do not wait for commits; with repartition topics, whose
        readers wait behind open transactions; with key ranges, which finish work independently; with
        shards, which read one changelog that others write.
        """
        settings = self._settings
        results_wait = self._ports.make_sink_producer is None
        if settings.threads > 1 or self.plan.repartition_topics or not results_wait:
            return 0.0
        if any(subtopology.shards > 1 for subtopology in self.plan.subtopologies.values()):
            return 0.0
        return early_start_s(settings.early_ms, settings.commit_interval_ms)

    def _must_restart(self) -> bool:
        """Use a new plan, if any; if it changes the tasks' inputs, commit and return True."""
        plan, self._new_plan = self._new_plan, None
        if plan is None:
            return False
        before, self.plan = self.plan, plan
        self.appeared |= appeared_in(plan, before)
        self._assigned.drop_missing_inputs(before)
        own_tasks = [*self.tasks, *self.copies]
        changed = [
            task_id for task_id in own_tasks if before.inputs(task_id) != plan.inputs(task_id)
        ]
        if changed:
            _log.info("inputs of %s have changed: all tasks restart", ", ".join(map(str, changed)))
            self._loop.commits.commit()
        return bool(changed)

    # -- parts of the loop -----------------------------------------------------------------------

    def _make_loop(
        self,
        committer: Committer,
        collector: OutputCollector,
        policy: ErrorPolicy,
        work: WorkerInput,
        stack: ExitStack,
    ) -> TaskLoop:
        ports, settings, clock = self._ports, self._settings, self._ports.clock
        running: dict[TaskId, Task] = {}
        commits = CommitDriver(
            CommitRound(committer, collector, work, settings, clock=clock, sequence=self._sequence),
            self._schedule,
            running,
            work,
            ports.admin,
            uncommitted_bytes_max=settings.statestore_uncommitted_max_bytes,
            metrics=self.metrics,
            clock=clock,
            background=waking(ports.background, self._wake.set),
        )
        manager = self._make_manager(running, collector, policy, work, commits, stack)
        return TaskLoop(
            settings=settings,
            clock=clock,
            metrics=self.metrics,
            orders=self._orders,
            manager=manager,
            work=work,
            deleted_topics=DeletedTopics(work, self.plan, clock, self._hooks.check_topics),
            commits=commits,
            ranges=self._ranges,
            slices=self._slices,
            questions=self.questions,
            housekeeping=Housekeeping(
                settings.repartition_purge_interval_ms,
                lambda: self.plan,
                ports.admin,
                clock,
                self._hooks.housekeep,
            ),
            floor=ShardFloor(settings.application_id, ports.admin, clock, ports.background),
            is_paused=lambda task: (
                task.task_id.subtopology in self.paused or task.task_id in manager.ending
            ),
            wake=self._wake,
            watch=self._hooks.watch,
        )

    def _make_manager(
        self,
        running: dict[TaskId, Task],
        collector: OutputCollector,
        policy: ErrorPolicy,
        work: WorkerInput,
        commits: CommitDriver,
        stack: ExitStack,
    ) -> TaskManager:
        ports, settings, membership = self._ports, self._settings, self._orders.membership
        updater = StateUpdater(
            planner=RestorePlanner(
                lambda: self.plan,
                ports.admin,
                ports.clock,
                rules=start_rules(settings),
                topology_hash=settings.topology_hash,
                appeared=lambda: self.appeared,
            ),
            make_reader=ports.make_reader,
            clock=ports.clock,
            wipe=self._hooks.wipe,
            on_event=self._hooks.on_restore,
            on_standby_update=self._hooks.on_standby_update,
            woken=self._wake.set,
            send=(lambda _: None) if membership is None else membership.send,
            running=running,
            lasting=membership is not None,
            runs=ports.runs,
        )
        manager = TaskManager(
            settings,
            self._assigned,
            running,
            is_known_task=lambda task_id: task_id in self.plan.tasks,
            make_task=lambda task_id, stores: self._hooks.make_task(
                task_id, collector, policy, stores
            ),
            updater=updater,
            work=work,
            commits=commits.round,
            commit=commits.commit,
            send=None if membership is None else membership.send,
            on_running=self._hooks.on_running,
            before_start=lambda task: self._ranges.start_task(task, manager.tasks.values()),
        )
        self.updater = updater
        stack.push(manager.close)
        stack.callback(updater.close)
        return manager
