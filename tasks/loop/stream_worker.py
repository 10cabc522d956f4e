"""The worker's loop: orders, poll, process in slices, punctuate, commit.

One thread owns all running tasks, the source consumer and the transactional producer. A transaction is open only
inside a commit, and waits for no user code: once everything is handed to the client, somebody else waits for the brokers,
and meanwhile the loop processes what comes next. A worker that keeps up begins its commits early, and what is done until they are
due joins them, unless it takes longer than a tenth of a second. Whatever ends the loop, what was not committed never happened: buffers are
forgotten, the databases stay as the last commit left them.

Without a membership its tasks are assigned once and for all (N13); with one, they come and go by the group's orders, and
input is taken only while the lease lasts.
"""

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from operator import itemgetter
from types import TracebackType

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.rebalance.protocol.orders import (
    EndIncarnation,
    MayClose,
    WorkerClosed,
    WorkerStatus,
)
from tidewheel.state_stores.errors import StreamsError
from tidewheel.tasks.call_watch import CallWatch, watching
from tidewheel.tasks.commit.background import at_once
from tidewheel.tasks.commit.commit_round import CommitRound
from tidewheel.tasks.commit.commit_schedule import DividedCommits
from tidewheel.tasks.commit.committer import Committer, RolledBackError
from tidewheel.tasks.commit.output_collector import OutputCollector
from tidewheel.tasks.commit.refused_rows import origin_of
from tidewheel.tasks.commit_facts import facts_bytes
from tidewheel.tasks.errors import FencedError, TaskCorruptedError
from tidewheel.tasks.internal_topics import ApplicationPlan
from tidewheel.tasks.key_ranges.progress_vector import ranges_that_fit
from tidewheel.tasks.key_ranges.range_pool import RangePool
from tidewheel.tasks.loop.group_producers import GroupProducers, ended, started
from tidewheel.tasks.loop.metrics import ProcessingRates, WorkerMetrics
from tidewheel.tasks.loop.questions import Questions
from tidewheel.tasks.loop.slices import Slices
from tidewheel.tasks.loop.task_manager import HeldTasks, TaskManager
from tidewheel.tasks.loop.worker_ports import MakeTask, Membership, WorkerPorts
from tidewheel.tasks.ports import Beside, Positions, ProducerFactory, TransactionalProducer
from tidewheel.tasks.processing.engine.error_policy import ErrorPolicy
from tidewheel.tasks.processing.engine.operator_times import OPERATOR_TIMES_MAX
from tidewheel.tasks.restore.offset_origin import start_rules
from tidewheel.tasks.restore.restore_planner import RestorePlanner
from tidewheel.tasks.restore.start_positions import Grant, appeared_in, find_starts
from tidewheel.tasks.restore.state_updater import RestoreEvent, StandbyUpdateEvent, StateUpdater
from tidewheel.tasks.task.learner_task import LearnerTask
from tidewheel.tasks.task.parallel_task import parallel_tasks
from tidewheel.tasks.task.range_placement import RangePlacement
from tidewheel.tasks.task.task import Task
from tidewheel.tasks.task.worker_input import GoneTopics, WorkerInput
from tidewheel.tasks.worker_settings import WorkerSettings

_log = logging.getLogger(__name__)

#: The loop's longest wait for input; a wake-up ends it at the next poll.
_IDLE_S = 0.05
#: The same where orders may come, and where a task is about to begin.
_IDLE_IN_GROUP_S = 0.01
_IDLE_BEFORE_START_S = 0.002
#: And while a commit is under way, whose changes queries see when it has ended, or queries ask for uncommitted rows.
_IDLE_IN_COMMIT_S = 0.002
#: The loop goes on beside a commit for a commit interval, and where that is short for this long; then it waits. Else commits of a
#: busy worker would become longer and longer, each with what was processed beside the one before.
_AHEAD_S = 0.1
#: A commit begins early by no more than this share of an interval.
_EARLY = 0.25
#: Nor where so much would have to be put together with what joins it.
_EARLY_BYTES_MAX = 4 * 1024 * 1024
#: What is a short commit, of an interval. After one of these the next interval began when it was due, so that results come as often
#: as was asked for; after a long one of a worker that has much to do it begins at the end, or that would do little else.
_SHORT = 0.5
#: So much later than it was due a commit may begin without the next interval beginning later, too.
_LATE_S = 0.005
#: How long the workers of one program may take to start.
_SIBLINGS_START_S = 60.0
#: How often one of them may fence another. Where a transaction is open, the broker aborts it, which is one epoch, and has the
#: client ask again, which is the next; and the other one may have begun another meanwhile.
_FENCED_BY_ONE = 3


class StreamWorker:
    """Runs tasks until told to stop. `run` is called in a thread of its own; the other methods from any thread.

    Args:
        plan: The application as it runs on its cluster.
        assigned: The tasks of a worker without membership; in a group, none.
        settings: The worker's.
        ports: Its clients.
        make_task: Makes its tasks.
        wipe: Deletes the state of a task, whose databases are closed.
        on_restore: Told how restoring goes on, by the restoring thread.
        on_standby_update: Told how copies go on, by the same thread.
        on_running: Told whether all owned tasks run, when that changes.
        housekeep: Called now and then for what need not be done at once.
        watch: Called in each round; ends the worker by raising (the global stores can't be kept up).
        membership: The line to the group, where there is one; `settings.transactional_id` is in its log already.
        first_producer: The producer of that id, initialised before the group heard of it.

    Attributes:
        plan: The application as it runs on its cluster now (`use_plan`).
        appeared: Input partitions that this process has seen appear.
        paused: The sub-topologies whose tasks rest.
        tasks: Owned tasks, also those that restore.
        copies: Tasks it keeps a copy of.
        call_watch: Sees which calls of user code take long, while it runs.
        questions: What queries ask about uncommitted rows.
    """

    appeared: frozenset[TopicPartition] = frozenset()
    call_watch: CallWatch | None = None

    def __init__(
        self,
        plan: ApplicationPlan,
        assigned: frozenset[TaskId],
        settings: WorkerSettings,
        ports: WorkerPorts,
        *,
        make_task: MakeTask,
        wipe: Callable[[Task], None],
        on_restore: Callable[[RestoreEvent], None],
        on_standby_update: Callable[[StandbyUpdateEvent], None] = lambda _: None,
        on_running: Callable[[bool], None],
        housekeep: Callable[[], None],
        watch: Callable[[], None] = lambda: None,
        look: Callable[[], None] = lambda: None,
        membership: Membership | None = None,
        first_producer: TransactionalProducer | None = None,
    ) -> None:
        self.plan = plan
        self._settings = settings
        self._ports = ports
        self._make_task = make_task
        self._wipe = wipe
        self._on_restore, self._on_standby_update = on_restore, on_standby_update
        self._on_running, self._housekeep = on_running, housekeep
        self._watch, self._look = watch, look
        self._membership = membership
        self._first_producer = first_producer
        self._clock = ports.clock
        self._stop, self._wake = threading.Event(), threading.Event()
        self.paused: frozenset[int] = frozenset()
        self.metrics = WorkerMetrics()
        self.questions = Questions(self._wake.set, pool=lambda: self._pool)
        self.tasks: dict[TaskId, Task] = {}
        self.copies: dict[TaskId, LearnerTask] = {}
        self._new_plan: ApplicationPlan | None = None
        self.updater: StateUpdater | None = None
        self._held = HeldTasks(owned=dict.fromkeys(sorted(assigned), Grant()))
        self._producers: GroupProducers | None = None
        #: Of a group's member: lives as long as the incarnation.
        self._committer: Committer | None = None
        self._slices = Slices(
            ports.clock,
            lambda: self._manager.is_restoring,
            None if settings.threads > 1 else ports.on_record,  # nobody knows which thread dies
        )
        #: `_turns`: rounds of the loop, for the call watch.
        self._sequence, self._fenced, self._turns = 0, 0, 0
        self._born_s = ports.clock.monotonic_s()
        #: Number of commits when a task's state was wiped last.
        self._wiped: dict[TaskId, int] = {}
        #: When the last commit was due, when the next one is, and when the loop has to wait for the one under way.
        self._due_s, self._next_commit_s, self._ahead_until_s = 0.0, 0.0, math.inf
        #: How long before it is due a commit may begin, of which due moment that was tried (there may have been nothing to do), and
        #: whether it does where caches are flushed twice for it.
        self._early_s, self._early_tried_s = 0.0, math.inf
        self._divided = DividedCommits(self._settings.commit_interval_ms / 1000)
        #: Tasks that have come from another owner and have processed nothing yet: their first slice is committed at once.
        self._awaited: set[TaskId] = set()
        self._next_purge_s, self._next_status_s = 0.0, 0.0
        self._rates = ProcessingRates()
        self._lags: dict[TopicPartition, int] = {}
        # Of the present beginning of the tasks, set by `_run_tasks`.
        self._pool: RangePool | None = None
        self._placing: RangePlacement | None = None
        #: Tasks whose key ranges rest.
        self._resting: frozenset[TaskId] = frozenset()
        self._manager: TaskManager
        self._work: WorkerInput
        self._gone: GoneTopics
        self._commits: CommitRound

    # -- from other threads ----------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ask the loop to commit, close its tasks and return."""
        self._stop.set()
        self._wake.set()

    def wake(self) -> None:
        """Have the loop look for orders soon."""
        self._wake.set()

    def use_plan(self, plan: ApplicationPlan) -> None:
        """Go on with the topics that the cluster has now; tasks whose inputs changed begin anew in place (N12)."""
        self._new_plan = plan
        self._wake.set()

    def lags(self) -> dict[TopicPartition, int]:
        """Return per input partition how many offsets are not processed yet, as the last commit saw it."""
        return self._lags

    def _wait(self, seconds: float) -> None:
        # Not on `_stop`: it is set while the last commit is carried out, and a wait that returns at once would spin.
        threading.Event().wait(seconds)

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until `stop`, or until the group lets it go; raises what ended it otherwise.

        Raises:
            FencedError: Another worker has our id, or the group has ended this incarnation.
            RecordFailedError: A record failed and its handler said "fail".
            StreamsError: Something else that needs a decision.
        """
        with ExitStack() as stack:
            pool = lambda: self._pool  # noqa: E731 - it is made later
            elsewhere = self._ports.global_call
            self.call_watch = watching(
                lambda: self._turns, pool, self._membership, self._settings, elsewhere
            )
            stack.callback(self.call_watch.close)
            stack.callback(self._close_committer)
            self.questions.begin()
            stack.callback(self.questions.close)
            while not self._stop.is_set():
                self._begin_tasks()
        if self._membership is not None:
            self._membership.say(WorkerClosed())

    def _begin_tasks(self) -> None:
        """Run the tasks until the worker stops, or until they have to begin anew."""
        try:
            with ExitStack() as stack:
                self._run_tasks(stack)
        except RolledBackError as error:
            self.metrics.rolled_back += 1
            _log.warning("starting the tasks again from what is committed: %s", error)
        except TaskCorruptedError as error:
            self._recover(error)
        except FencedError as error:
            if self._membership is not None or not self._fenced_by_sibling():
                raise
            _log.info(
                "fenced while the other workers of this program started; beginning anew: %s",
                error,
            )

    def _fenced_by_sibling(self) -> bool:
        """Return whether a worker that was just fenced may fence back: only while its program starts, a few times."""
        self._fenced += 1
        young = self._clock.monotonic_s() - self._born_s < _SIBLINGS_START_S
        return young and self._fenced <= _FENCED_BY_ONE * self._settings.siblings

    def _recover(self, error: TaskCorruptedError) -> None:
        """Wipe a task whose state is damaged, so that it is restored when the tasks start again."""
        task = self.tasks[TaskId.parse(error.task_id)]
        if self._wiped.get(task.task_id) == self.metrics.commits:
            raise error  # damaged again before anything was committed: the disk itself is not to be trusted
        self._wiped[task.task_id] = self.metrics.commits
        _log.warning("wiping the task's state and restoring it from the changelog: %s", error)
        self._wipe(task)

    def _run_tasks(self, stack: ExitStack) -> None:
        make_sink = self._ports.make_sink_producer
        sink = None if make_sink is None else make_sink()
        collector = stack.enter_context(
            OutputCollector(self._ports.topics, sink, self._ports.make_input_reader)
        )
        policy = ErrorPolicy(
            self._settings.handlers, lambda columns: collector.add(columns, internal=False)
        )
        collector.policy = policy
        committer = self._committer_for(collector, stack)
        starts, topic_ids = None, None
        if self._membership is None:
            starts, topic_ids = find_starts(
                self.plan,
                self._held.owned,
                admin=self._ports.admin,
                rules=start_rules(self._settings),
                transactional_id=committer.producer.transactional_id,
                appeared=self.appeared,
            )
        source = self._ports.make_source()
        stack.callback(source.close)
        # Under exactly_once results come with the commit only.
        waits_for_commits = self._ports.make_sink_producer is None
        self._work = WorkerInput(source, self._settings, self._clock, gathers=waits_for_commits)
        self._work.check = self._ports.input_check
        self._early_s = self._early_by_s() if waits_for_commits else 0.0
        self._gone = GoneTopics(self._work, self.plan, self._clock, self._look)
        self._commits = CommitRound(
            committer,
            collector,
            self._work,
            self._settings,
            clock=self._clock,
            sequence=self._sequence,
        )
        if self._settings.threads > 1:
            self._pool, self._resting = RangePool(self._settings.threads), frozenset()
            stack.callback(self._pool.close)
            fitting = ranges_that_fit(
                self._settings.transactional_id,
                OPERATOR_TIMES_MAX,
                facts_bytes(self._settings.operators),
            )
            self._placing = RangePlacement(self._pool, fitting)
        self._manager = self._manage(collector, policy, stack)
        stack.push(self._give_up_commit)  # before the tasks are closed
        self.tasks, self.copies = self._manager.tasks, self._manager.copies
        now_s = self._clock.monotonic_s()
        self._next_commit_s = now_s + self._settings.commit_interval_ms / 1000
        self._next_purge_s = now_s + self._settings.repartition_purge_interval_ms / 1000
        self._manager.begin(starts, topic_ids)
        while not self._stop.is_set():
            if self._takes_plan():
                return
            self._turn()
        self._commit()  # what is done by now is safe, however long calls in hand take
        self._settle()
        self._commits.finish(list(self._manager.running.values()), self._ports.admin)

    def _takes_plan(self) -> bool:
        """Take over a new plan, if one came; return whether the tasks must begin anew, with all committed."""
        plan, self._new_plan = self._new_plan, None
        if plan is None:
            return False
        before, self.plan = self.plan, plan
        self.appeared |= appeared_in(plan, before)
        self._held.keep_inputs_of(before)
        mine = [*self.tasks, *self.copies]
        changed = [each for each in mine if before.inputs(each) != plan.inputs(each)]
        if changed:
            _log.info("inputs of %s have changed: all begin anew", ", ".join(map(str, changed)))
            self._commit()
        return bool(changed)

    def _committer_for(self, collector: OutputCollector, stack: ExitStack) -> Committer:
        """Return what carries out commits: anew each time, but once for a group's incarnation."""
        membership = self._membership
        if self._committer is not None:
            self._committer.use(collector)
            return self._committer
        make: ProducerFactory
        first_id = self._settings.transactional_id
        if membership is None:
            make = lambda: started(self._ports.make_producer(first_id))  # noqa: E731 - one of two of a kind
        else:
            make = self._producers = GroupProducers(
                membership,
                self._ports.make_producer,
                first_id,
                self._clock,
                self._wait,
                self._first_producer,
            )
        committer = Committer(
            group_id=self._settings.application_id,
            make_producer=make,
            collector=collector,
            admin=self._ports.admin,
            clock=self._clock,
            wait=self._wait,
            on_wait=(lambda: None) if membership is None else membership.progress,
            origin_of=lambda changelog: origin_of(
                self.plan, self._settings.application_id, changelog
            ),
        )
        if membership is None:
            stack.callback(committer.close)
        else:
            self._committer = committer
        return committer

    def _close_committer(self) -> None:
        if self._committer is not None:
            self._committer.close()

    def _manage(
        self, collector: OutputCollector, policy: ErrorPolicy, stack: ExitStack
    ) -> TaskManager:
        membership = self._membership
        updater = StateUpdater(
            planner=RestorePlanner(
                lambda: self.plan,
                self._ports.admin,
                self._clock,
                rules=start_rules(self._settings),
                topology_hash=self._settings.topology_hash,
                appeared=lambda: self.appeared,
            ),
            make_reader=self._ports.make_reader,
            clock=self._clock,
            wipe=self._wipe,
            on_event=self._on_restore,
            on_standby_update=self._on_standby_update,
            woken=self._wake.set,
            say=(lambda _: None) if membership is None else membership.say,
            busy=lambda: bool(manager.running),
            lasting=membership is not None,
            runs=self._ports.runs,
        )
        manager = TaskManager(
            self._settings,
            self._held,
            known=lambda task_id: task_id in self.plan.tasks,
            make_task=lambda task_id, stores: self._make_task(task_id, collector, policy, stores),
            updater=updater,
            work=self._work,
            commits=self._commits,
            commit=self._commit,
            say=None if membership is None else membership.say,
            on_running=self._on_running,
            before_start=self._begins_in_ranges,
        )
        self.updater = updater
        stack.push(manager.close)
        stack.callback(updater.close)
        return manager

    def _turn(self) -> None:
        """One round: orders, tasks that are ready to run, input, a slice of each task, punctuations, commits."""
        self._turns += 1
        self._watch()
        if self._commits.committer.is_answered:
            self._end_commit()
        self._serve_orders()
        self._check_ranges()
        self._admit()
        self._manager.end_erasures()
        self._rest()
        self.questions.pass_on(self._manager.running)
        if not self._may_work():
            self._wake.wait(_IDLE_IN_GROUP_S)
            self._wake.clear()
            return
        self._fetch()
        self._work.update_lags(self._manager.running.values())
        for task in list(self._manager.running.values()):
            self.questions.pass_on(self._manager.running)
            self._serve_orders()
            if not self._may_work():
                break
            if self._manager.running.get(task.task_id) is not task:
                continue  # an order has just taken it away
            if not self._is_paused(task) and task.ready(self._clock.now_ms()):
                self._process_slice(task)
                self._shrink_caches()
            self._commit_if_must()
        self._punctuate()
        self._cut_anew()
        now_s = self._clock.monotonic_s()
        self._commit_in_time(now_s)
        if now_s >= self._next_purge_s:
            self._purge()

    # -- key ranges ------------------------------------------------------------------------------------------------

    def _check_ranges(self) -> None:
        """Raise what has ended a key range, as if it had happened here."""
        if self._pool is not None:
            for task in parallel_tasks(self._manager.running.values()):
                task.check()

    def _rest(self) -> None:
        """Have key ranges rest as the loop does."""
        resting: frozenset[TaskId] = frozenset()
        running, works = self._manager.running, self._may_work()
        if self.paused or not works:
            resting = frozenset(
                each for each, task in running.items() if not works or self._is_paused(task)
            )
        changed = resting ^ self._resting
        for task in parallel_tasks(running.values()):
            if task.task_id in changed:
                task.rest(task.task_id in resting)
        self._resting = resting

    def _is_paused(self, task: Task) -> bool:
        return task.task_id.subtopology in self.paused

    def _settle(self) -> None:
        """Wait for calls in hand of all tasks, before a clean stop."""
        membership = self._membership
        until_s = time.monotonic() + self._settings.drain_timeout_ms / 1000
        for task in parallel_tasks(self._manager.running.values()):
            task.settle(until_s, (lambda: None) if membership is None else membership.progress)
        self._check_ranges()

    def _begins_in_ranges(self, task: Task) -> None:
        """Have a task run in the threads of the pool, if there is one."""
        if self._placing is not None:
            self._placing.begins(task, self._manager.tasks.values())

    def _cut_anew(self) -> None:
        """Have tasks cut into other key ranges, where that makes the threads' loads even."""
        if self._placing is None:
            return
        self._placing.look(self._manager.tasks.values())
        running = self._manager.running.values()
        waiting = [task for task in parallel_tasks(running) if task.can_repartition]
        if waiting:
            self._commit()
            for task in waiting:
                task.repartition()

    # -- the group -------------------------------------------------------------------------------------------------

    def _serve_orders(self) -> None:
        """Do what the group says; between slices, so that nobody waits long for it."""
        membership = self._membership
        if membership is None:
            return
        membership.progress()
        orders = membership.take()
        if self._producers is not None and self._producers.early:
            orders = [*self._producers.early, *orders]
            self._producers.early.clear()
        for order in orders:
            if isinstance(order, EndIncarnation):
                raise ended(order)
            if isinstance(order, MayClose):
                self.stop()
        if orders:
            self._manager.carry_out(orders)
        now_s = self._clock.monotonic_s()
        if now_s >= self._next_status_s:
            self._next_status_s = now_s + self._settings.status_interval_ms / 1000
            rows = self._manager.status(self._lags, self._rates.of(self._manager.running, now_s))
            membership.say(WorkerStatus(tasks=rows))

    def _may_work(self) -> bool:
        """Return whether input may be taken and processed: without a lease nobody may (H9)."""
        return self._membership is None or self._membership.lease_left_s() > 0

    def _admit(self) -> None:
        """Begin to run the tasks whose stores are restored."""
        admitted = self._manager.admit()
        if not admitted:
            return
        if self._membership is not None:
            # The group has our id on record already, so there is nothing to commit before the first slice; what that
            # makes is waited for since the owner before let go.
            self._awaited.update(task.task_id for task in admitted)
            running = [task for task in admitted if task.task_id in self._manager.running]
            if any("" in self._commits.former_ids(task) for task in running):
                # From the first record on, state without an offset means that the offset was lost.
                self._commit()
        elif any(
            self._commits.former_ids(task) != {self._settings.transactional_id} for task in admitted
        ):
            # A worker that starts with the same tasks finds our id in the metadata and fences us, so it must be there
            # before the first record is processed.
            self._commit()

    # -- work ------------------------------------------------------------------------------------------------------

    def _fetch(self) -> None:
        self._gone.check()
        if not self._work.owners:
            self._wake.wait(self._idle_s())
            self._wake.clear()
            return
        now_ms = self._clock.now_ms()
        running = self._manager.running.values()
        ready = [task for task in running if not self._is_paused(task) and task.ready(now_ms)]
        gather_s = self._work.gather_s(ready)
        if gather_s > 0 and self._wake.wait(min(gather_s, self._rest_s())):
            self._wake.clear()
            return
        self.metrics.consumed += self._gone.fetch(ready, self._idle_s)

    def _idle_s(self) -> float:
        """Return how long the loop may wait for input."""
        waits = [_IDLE_S, self._rest_s()]
        if self._membership is not None:
            restoring = self._manager.is_restoring
            waits.append(_IDLE_BEFORE_START_S if restoring else _IDLE_IN_GROUP_S)
        commits = self._commits
        if self.questions.come_often or (
            commits.is_under_way and (commits.awaits_brokers or not commits.awaits_more)
        ):
            waits.append(_IDLE_IN_COMMIT_S)
        return min(waits)

    def _rest_s(self) -> float:
        """Return how long there is nothing to do but what input, orders and the brokers bring."""
        now_s, now_ms = self._clock.monotonic_s(), self._clock.now_ms()
        next_s = self._next_commit_s - (self._early_s if self._begins_early() else 0)
        waits = [_IDLE_S if self._commits.awaits_brokers else next_s - now_s]
        for task in self._manager.running.values():
            if self._is_paused(task):
                continue
            dues_ms = (task.next_wall_clock_ms(), task.group.idle_until_ms(now_ms))
            waits += [(due_ms - now_ms) / 1000 for due_ms in dues_ms if due_ms is not None]
        return max(min(waits), 0.0)

    def _process_slice(self, task: Task) -> None:
        done = self._slices.process(task)
        self.metrics.processed += done
        if done and task.task_id in self._awaited:
            self._awaited.discard(task.task_id)
            self._next_commit_s = 0.0

    def _shrink_caches(self) -> None:
        running = self._manager.running.values()
        cached = [
            (caches.cached_bytes(), task.stores, caches)
            for task in running
            if (caches := task.caches) is not None
        ]
        excess = sum(size for size, *_ in cached) - self._settings.cache_max_bytes
        if excess > 0:
            for size, stores, caches in sorted(cached, key=itemgetter(0), reverse=True):
                if excess > 0:
                    with stores.trusted():
                        caches.shrink(min(excess, size))
                    excess -= size

    def _must_commit(self) -> bool:
        running = self._manager.running.values()
        if any(task.commit_requested for task in running):
            return True
        return self._commits.uncommitted_bytes(running) > self._settings.uncommitted_max_bytes

    def _punctuate(self) -> None:
        if self._may_work():
            now_ms = self._clock.now_ms()
            for task in self._manager.running.values():
                if not self._is_paused(task):
                    with task.stores.trusted():
                        task.punctuate_wall_clock(now_ms)

    def _commit(self) -> None:
        """Commit all that is done; it is durable when this returns."""
        self._end_commit()
        self._begin_commit(at_once)
        self._end_commit()

    def _commit_in_time(self, now_s: float) -> None:
        """Commit if that is due, and be no further ahead of a commit than that."""
        if now_s >= self._ahead_until_s:
            self._end_commit()
        if now_s >= self._next_commit_s:
            if not self._commits.awaits_brokers:
                self._commit_beside()
            return
        self._commit_if_must()
        if now_s >= self._next_commit_s - self._early_s and self._begins_early():
            self._begin_commit(self._waking, opens=True)

    def _early_by_s(self) -> float:
        """Return how long before it is due a commit may begin in this plan.

        Repartition topics have records of many workers in each partition, and whoever reads them gets none behind those of an open
        transaction; so these are short there. Key ranges hand over what they have done in their own time.
        """
        if self._settings.threads > 1 or self.plan.repartition_topics:
            return 0.0
        interval_ms = self._settings.commit_interval_ms
        return min(self._settings.early_ms, interval_ms * _EARLY) / 1000

    def _begins_early(self) -> bool:
        """Return whether the next commit may begin before it is due, and has not been tried to.

        Not if there is more to do than is done, and not where a cache would forward many keys twice for one commit.
        """
        if (
            self._early_s <= 0
            or self._early_tried_s == self._next_commit_s
            or not self._work.keeps_up
            or self._commits.is_under_way
        ):
            return False
        running = self._manager.running.values()
        held_bytes = sum(task.caches.cached_bytes() for task in running if task.caches is not None)
        return (
            all(task.may_be_ahead for task in running)
            and (not held_bytes or self._divided.are_allowed(self._clock.monotonic_s()))
            # What is held back is also output when it is flushed.
            and self._commits.uncommitted_bytes(running) + held_bytes <= _EARLY_BYTES_MAX
        )

    def _commit_if_must(self) -> None:
        """Commit where somebody asked for it, or where too much is held; perhaps only by the commit that is under way."""
        if self._must_commit() and self._commits.is_under_way:
            self._end_commit()
        if self._must_commit():
            self._commit_beside()

    def _commit_beside(self) -> None:
        """Begin to commit all that is done, and go on; what is under way is waited for, or joined if it was begun for that."""
        if not all(task.may_be_ahead for task in self._manager.running.values()):
            self._commit()
        elif self._commits.awaits_more:
            self._join_commit()
        else:
            self._end_commit()
            self._begin_commit(self._waking)

    def _waking(self, work: Callable[[], Positions]) -> Future[Positions]:
        """Do as the port `beside`, and wake the loop when it is done."""
        future = self._ports.beside(work)
        future.add_done_callback(lambda _: self._wake.set())
        return future

    def _begin_commit(self, beside: Beside, *, opens: bool = False) -> None:
        """Begin to commit what is done; `opens`: before it is due."""
        ahead_until_s = self._ahead_end_s()
        self._note_due()
        try:
            begun = self._commits.begin(list(self._manager.running.values()), beside, opens=opens)
        finally:
            self._sequence = self._commits.sequence
        self._lags = self._work.lags(self._commits.offsets)
        if opens:
            self._early_tried_s, self._ahead_until_s = self._next_commit_s, ahead_until_s
            return  # what is due is due
        if begun:
            self._next_commit_s, self._ahead_until_s = math.inf, ahead_until_s
        else:
            self._next_commit_s = self._in_an_interval_s()

    def _join_commit(self) -> None:
        """Have what is done join the commit that was begun before it was due, or follow it."""
        self._note_due()
        try:
            late_s = self._commits.join(list(self._manager.running.values()), self._waking)
        finally:
            self._sequence = self._commits.sequence
        now_s = self._clock.monotonic_s()
        if late_s is not None:
            self.metrics.commit_times = self.metrics.commit_times.and_one(late_s)
            self._divided.refuse(now_s)
        else:
            self._divided.count(
                keys=self._commits.forwarded, twice=self._commits.twice, now_s=now_s
            )
        self._lags = self._work.lags(self._commits.offsets)
        self._next_commit_s, self._ahead_until_s = math.inf, self._ahead_end_s()

    def _note_due(self) -> None:
        """Note since when the commit that begins now has been due."""
        now_s = self._clock.monotonic_s()
        self._due_s = min(now_s, max(self._next_commit_s, now_s - _LATE_S))

    def _ahead_end_s(self) -> float:
        return max(self._in_an_interval_s(), self._clock.monotonic_s() + _AHEAD_S)

    def _end_commit(self) -> None:
        """Wait for the commit that is under way, if one is."""
        self._ahead_until_s = math.inf
        if self._commits.is_under_way:
            if self._commits.awaits_more:
                self._divided.refuse(self._clock.monotonic_s())
            took_s = self._commits.end()
            self.metrics.commit_times = self.metrics.commit_times.and_one(took_s)
            interval_s = self._settings.commit_interval_ms / 1000
            is_short = self._work.keeps_up or took_s < interval_s * _SHORT
            next_s = interval_s + (self._due_s if is_short else self._clock.monotonic_s())
            # Unless the next one was wished for meanwhile.
            self._next_commit_s = min(self._next_commit_s, next_s)

    def _give_up_commit(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """End what is under way where the tasks are over; what has ended them tells more than what goes wrong in that."""
        begins_anew = error is None or isinstance(error, TaskCorruptedError)
        try:
            self._commits.give_up(find_out=begins_anew)
        except StreamsError as lost:
            if begins_anew:
                raise
            _log.warning("the commit that was under way can't be ended: %s", lost)

    def _in_an_interval_s(self) -> float:
        return self._clock.monotonic_s() + self._settings.commit_interval_ms / 1000

    def _purge(self) -> None:
        """Delete records of repartition topics that are processed and committed."""
        self._next_purge_s = (
            self._clock.monotonic_s() + self._settings.repartition_purge_interval_ms / 1000
        )
        repartition = {topic.name for topic in self.plan.repartition_topics}
        committed = self._commits.committed
        before = {p: offset.offset for p, offset in committed.items() if p.topic in repartition}
        if before:
            try:
                self._ports.admin.delete_records(before)
            except StreamsError as error:
                # Nothing depends on it but disk space; the next round tries again.
                _log.warning("could not purge repartition topics: %s", error)
        self._housekeep()
