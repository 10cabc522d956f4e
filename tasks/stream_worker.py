"""The worker's loop: poll, process in slices, punctuate, commit.

One thread owns all running tasks, the source consumer and the transactional producer. A transaction is open only
inside a commit, never while user code runs. Whatever ends the loop, what was not committed never happened: buffers are
forgotten, the databases stay as the last commit left them.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from types import TracebackType

from rebalance.model import TaskId, TopicPartition
from state_stores.commit_buffer import Drained
from state_stores.errors import StreamsError
from tasks.active_task import ActiveTask
from tasks.commit import Commit, Committer, RolledBackError, changed_offsets
from tasks.errors import FencedError, TaskCorruptedError
from tasks.internal_topics import ApplicationPlan
from tasks.lifecycle import TaskState
from tasks.output_collector import OutputCollector
from tasks.parallel.progress_vector import Progress, RangeProgress
from tasks.ports import CommittedOffset, RecordSource
from tasks.processing.error_policy import ErrorPolicy
from tasks.start_positions import StartPosition, find_starts, operator_times
from tasks.state_updater import RestoreEvent, StateUpdater
from tasks.worker_ports import MakeTask, WorkerPorts, WorkerSettings

_log = logging.getLogger(__name__)

#: A slice of processing aims at this long, so that commits and orders are never far away.
_SLICE_S = 0.02
_SLICE_RECORDS_MAX = 10_000
#: The loop's longest wait for input; a wake-up ends it at the next poll.
_IDLE_S = 0.05
#: How long the workers of one program may take to start.
_SIBLINGS_START_S = 60.0
#: Positions of quiet stores are written anew this often.
_REFRESH_S = 3_600.0
#: Quiet partitions are committed again this often, because brokers forget offsets after their retention (H17).
_RECOMMIT_S = 43_200.0
#: How long a clean stop waits for the markers of its last transaction, and how often it looks for them.
_MARKERS_S = 5.0
_MARKERS_POLL_S = 0.01


class WorkerMetrics:
    """Counters of one worker. Written by the loop thread, read by anybody."""

    def __init__(self) -> None:
        self.consumed = 0
        self.processed = 0
        self.commits = 0
        self.commit_s = 0.0
        self.commit_s_max = 0.0
        self.last_commit_s = 0.0
        self.rolled_back = 0


class StreamWorker:
    """Runs tasks until told to stop. `run` is called in a thread of its own; the other methods from any thread.

    `watch` is called in each round and ends the worker by raising (the global stores can't be kept up).
    """

    def __init__(
        self,
        plan: ApplicationPlan,
        assigned: frozenset[TaskId],
        settings: WorkerSettings,
        ports: WorkerPorts,
        *,
        make_task: MakeTask,
        wipe: Callable[[ActiveTask], None],
        on_restore: Callable[[RestoreEvent], None],
        on_running: Callable[[bool], None],
        housekeep: Callable[[], None],
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        self._plan = plan
        self._assigned = sorted(assigned)
        self._settings = settings
        self._ports = ports
        self._make_task = make_task
        self._wipe = wipe
        self._on_restore = on_restore
        self._on_running = on_running
        self._housekeep = housekeep
        self._watch = watch
        self._clock = ports.clock
        self._stop = threading.Event()
        self._wake = threading.Event()
        self.paused = False
        self.metrics = WorkerMetrics()
        #: All tasks, also those that restore.
        self.tasks: dict[TaskId, ActiveTask] = {}
        self._running: dict[TaskId, ActiveTask] = {}
        self._owner: dict[TopicPartition, ActiveTask] = {}
        self._throttled: set[TopicPartition] = set()
        self._committed: dict[TopicPartition, CommittedOffset] = {}
        self._starts: dict[TopicPartition, StartPosition] = {}
        self._input_topic_ids: dict[str, bytes] = {}
        self._slice_records = 64
        self._sequence = 0
        self._fenced = 0
        self._born_s = ports.clock.monotonic_s()
        #: Number of commits when a task's state was wiped last.
        self._wiped: dict[TaskId, int] = {}
        self._next_commit_s = 0.0
        self._next_purge_s = 0.0
        self._next_recommit_s = 0.0
        self._next_refresh_s = ports.clock.monotonic_s() + _REFRESH_S
        self.updater: StateUpdater | None = None
        self._lags: dict[TopicPartition, int] = {}

    # -- from other threads ----------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ask the loop to commit, close its tasks and return."""
        self._stop.set()
        self._wake.set()

    def lags(self) -> dict[TopicPartition, int]:
        """Return per input partition how many offsets are not processed yet, as the last commit saw it."""
        return self._lags

    def _wait(self, seconds: float) -> None:
        # Not on `_stop`: it is set while the last commit is carried out, and a wait that returns at once would spin.
        threading.Event().wait(seconds)

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until `stop`; raises what ended it otherwise (`FencedError`, `RecordFailedError`, `StreamsError`, …)."""
        while not self._stop.is_set():
            try:
                with ExitStack() as stack:
                    self._run_tasks(stack)
            except RolledBackError as error:
                self.metrics.rolled_back += 1
                _log.warning("starting the tasks again from what is committed: %s", error)
            except TaskCorruptedError as error:
                self._recover(error)
            except FencedError as error:
                if not self._fenced_by_sibling():
                    raise
                _log.info(
                    "fenced while the other workers of this program started; beginning anew: %s",
                    error,
                )

    def _fenced_by_sibling(self) -> bool:
        """Return whether a worker that was just fenced may fence back: only while its program starts, a few times."""
        self._fenced += 1
        young = self._clock.monotonic_s() - self._born_s < _SIBLINGS_START_S
        return young and self._fenced <= self._settings.siblings

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
        if sink is not None:
            stack.callback(sink.close)
        collector = OutputCollector(self._ports.topics, sink)
        policy = ErrorPolicy(
            self._settings.handlers, lambda columns: collector.add(columns, internal=False)
        )
        collector.policy = policy
        committer = Committer(
            group_id=self._settings.application_id,
            make_producer=self._ports.make_producer,
            collector=collector,
            admin=self._ports.admin,
            clock=self._clock,
            wait=self._wait,
        )
        stack.callback(committer.close)
        committer.producer.init()
        self._find_starts(committer)
        source = self._ports.make_source()
        stack.callback(source.close)
        updater = self._create_tasks(stack, collector, policy)
        source.assign({})
        while not self._stop.is_set():
            if self._unclaimed(self._admit(updater, source)):
                self._commit(source, collector, committer)
            self._turn(source, collector, committer)
        self._finish(source, collector, committer)

    def _find_starts(self, committer: Committer) -> None:
        """Fence whoever committed for our partitions before, then read where to begin."""
        self._starts, self._input_topic_ids = find_starts(
            self._plan,
            self._assigned,
            admin=self._ports.admin,
            group_id=self._settings.application_id,
            transactional_id=committer.producer.transactional_id,
            auto_offset_reset=self._settings.auto_offset_reset,
        )
        self._committed = {}  # everything is committed again at the first commit
        # No two commits of a partition carry the same text, also across lives (see `Progress.sequence`).
        earlier_lives = [
            start.progress.sequence for start in self._starts.values() if start.progress is not None
        ]
        self._sequence = max([self._sequence, *earlier_lives])

    def _create_tasks(
        self, stack: ExitStack, collector: OutputCollector, policy: ErrorPolicy
    ) -> StateUpdater:
        # Without tasks (more workers than partitions) there is nothing to wait for.
        self._on_running(not self._assigned)
        self.tasks = {
            task_id: self._make_task(task_id, collector, policy) for task_id in self._assigned
        }
        self._running, self._owner, self._throttled = {}, {}, set()
        stack.push(self._close_tasks)
        updater = StateUpdater(
            admin=self._ports.admin,
            make_reader=self._ports.make_reader,
            clock=self._clock,
            wipe=self._wipe,
            on_event=self._on_restore,
            woken=self._wake.set,
            committed={p: start.offset for p, start in self._starts.items() if start.committed},
        )
        self.updater = updater
        stack.callback(updater.close)
        for task in self.tasks.values():
            task.move_to(TaskState.RESTORING)
        updater.add(list(self.tasks.values()))
        now_s = self._clock.monotonic_s()
        self._next_commit_s = now_s + self._settings.commit_interval_ms / 1000
        self._next_purge_s = now_s + self._settings.repartition_purge_interval_ms / 1000
        self._next_recommit_s = now_s + _RECOMMIT_S
        return updater

    def _close_tasks(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Close all tasks, whatever fails; what ended the tasks tells more than what goes wrong in closing them."""
        self._running.clear()
        failed: Exception | None = None
        for task in self.tasks.values():
            try:
                task.close()
            except Exception as error:  # noqa: BLE001 - logged; raised below unless something else ended the tasks
                _log.exception("task %s could not be closed in order", task.task_id)
                failed = failed or error
        if failed is not None and kind is None:
            raise failed

    def _unclaimed(self, tasks: list[ActiveTask]) -> bool:
        """Return whether some partition of these tasks does not carry our id yet.

        Whoever starts with the same tasks finds the id in the metadata and fences us, so it must be there before the
        first record is processed.
        """
        own = self._settings.transactional_id
        progress = [self._starts[partition].progress for task in tasks for partition in task.inputs]
        return any(known is None or known.transactional_id != own for known in progress)

    def _admit(self, updater: StateUpdater, source: RecordSource) -> list[ActiveTask]:
        """Start the tasks whose stores are restored, and return them."""
        if len(self._running) == len(self.tasks):
            return []
        restored = updater.take_restored()
        for task in restored:
            starts = {partition: self._starts[partition] for partition in task.inputs}
            offsets = {partition: start.offset for partition, start in starts.items()}
            task.start(
                offsets,
                {partition: start.partition_time_ms for partition, start in starts.items()},
                operator_times(starts, self._settings.topology_hash),
            )
            self._running[task.task_id] = task
            self._owner.update(dict.fromkeys(task.inputs, task))
            source.add(offsets)
            _log.info(
                "task %s RUNNING at %s",
                task.task_id,
                ", ".join(f"{p}@{o}" for p, o in sorted(offsets.items())),
            )
        if len(self._running) == len(self.tasks):
            self._on_running(True)
        return restored

    def _turn(self, source: RecordSource, collector: OutputCollector, committer: Committer) -> None:
        """One round: fetch, process a slice of each task, punctuate, commit if it is time."""
        self._watch()
        self._fetch(source)
        self._update_lags(source)
        for task in list(self._running.values()):
            if not self.paused and task.ready(self._clock.now_ms()):
                self._process_slice(task)
                self._shrink_caches()
            if self._must_commit(collector):
                self._commit(source, collector, committer)
        self._punctuate()
        now_s = self._clock.monotonic_s()
        if now_s >= self._next_commit_s or self._must_commit(collector):
            self._commit(source, collector, committer)
        if now_s >= self._next_purge_s:
            self._purge()

    def _fetch(self, source: RecordSource) -> None:
        if not self._owner:
            self._wake.wait(_IDLE_S)
            self._wake.clear()
            return
        # Records that wait for those of another input are no reason not to fetch: that would wait for ever.
        now_ms = self._clock.now_ms()
        ready = [task for task in self._running.values() if not self.paused and task.ready(now_ms)]
        buffered = sum(task.group.records for task in ready)
        if buffered >= self._settings.max_poll_records:
            return
        for chunk in source.poll(
            self._settings.max_poll_records, 0.0 if buffered else self._idle_s()
        ):
            partition = TopicPartition(chunk.topic, chunk.partition)
            task = self._owner.get(partition)
            if task is None:
                continue  # prefetched for a task that is gone
            task.group.add(chunk)
            self.metrics.consumed += len(chunk)
            self._throttle(source, partition, task)
        self._release(source)

    def _update_lags(self, source: RecordSource) -> None:
        """Tell tasks that may have to wait for an input how much of it is on the brokers, as the client knows it."""
        waiting = [task for task in self._running.values() if task.group.waits]
        if waiting:
            positions, ends = source.positions(), source.end_offsets()
            lags = {each: max(end - positions[each], 0) for each, end in ends.items()}
            for task in waiting:
                task.group.update_lags(lags)

    def _idle_s(self) -> float:
        """Return how long the loop may wait for input."""
        now_s, now_ms = self._clock.monotonic_s(), self._clock.now_ms()
        waits = [_IDLE_S, self._next_commit_s - now_s]
        for task in () if self.paused else self._running.values():
            dues_ms = (task.next_wall_clock_ms(), task.group.idle_until_ms(now_ms))
            waits += [(due_ms - now_ms) / 1000 for due_ms in dues_ms if due_ms is not None]
        return max(min(waits), 0.0)

    def _throttle(self, source: RecordSource, partition: TopicPartition, task: ActiveTask) -> None:
        buffer = task.group.buffers[partition]
        full = (
            buffer.bytes >= self._settings.buffered_bytes_per_partition
            or buffer.records >= self._settings.buffered_records_per_partition
        )
        if full and partition not in self._throttled:
            self._throttled.add(partition)
            source.pause([partition])

    def _release(self, source: RecordSource) -> None:
        drained = [
            partition
            for partition in self._throttled
            if self._owner[partition].group.buffers[partition].bytes
            <= self._settings.buffered_bytes_per_partition // 4
            and self._owner[partition].group.buffers[partition].records
            <= self._settings.buffered_records_per_partition // 4
        ]
        if drained:
            self._throttled.difference_update(drained)
            source.resume(drained)

    def _process_slice(self, task: ActiveTask) -> None:
        begin_s = self._clock.monotonic_s()
        until_s = begin_s + 2 * _SLICE_S
        with task.stores.trusted():
            done = task.process(self._slice_records, lambda: self._clock.monotonic_s() > until_s)
        elapsed_s = max(self._clock.monotonic_s() - begin_s, 1e-6)
        self.metrics.processed += done
        # Grow at most twofold at a time, shrink at once: the next records may be slower than these.
        fitting = int(done / elapsed_s * _SLICE_S) + 1
        self._slice_records = max(1, min(fitting, self._slice_records * 2, _SLICE_RECORDS_MAX))

    def _shrink_caches(self) -> None:
        held = {task: task.graph.held_back_bytes() for task in self._running.values()}
        excess = sum(held.values()) - self._settings.cache_max_bytes
        if excess > 0:
            for task in sorted(held, key=lambda task: held[task], reverse=True):
                if excess > 0:
                    with task.stores.trusted():
                        task.graph.shrink(min(excess, held[task]))
                    excess -= held[task]

    def _must_commit(self, collector: OutputCollector) -> bool:
        if any(task.commit_requested for task in self._running.values()):
            return True
        uncommitted = collector.staged_bytes + sum(
            task.stores.uncommitted_bytes for task in self._running.values()
        )
        return uncommitted > self._settings.uncommitted_max_bytes

    def _punctuate(self) -> None:
        if not self.paused:
            now_ms = self._clock.now_ms()
            for task in self._running.values():
                with task.stores.trusted():
                    task.punctuate_wall_clock(now_ms)

    # -- commits ---------------------------------------------------------------------------------------------------

    def _commit(
        self,
        source: RecordSource,
        collector: OutputCollector,
        committer: Committer,
        *,
        force: bool = False,
    ) -> None:
        begin_s = self._clock.monotonic_s()
        if begin_s >= self._next_recommit_s:
            self._committed.clear()
            self._next_recommit_s = begin_s + _RECOMMIT_S
        tasks = list(self._running.values())
        for task in tasks:
            with task.stores.trusted():
                task.flush_caches()
            task.commit_requested = False
        drained = {task.task_id: task.stores.drain() for task in tasks}
        outputs = collector.take_staged()
        offsets = self._offsets(source)
        if (
            outputs
            or any(drained.values())
            or force
            or changed_offsets(self._plain(), self._plain_of(offsets))
        ):
            self._sequence += 1
            commit = Commit(
                outputs=outputs,
                changelogs={
                    partition: changes
                    for task in tasks
                    for store, changes in drained[task.task_id].items()
                    if (partition := task.stores.changelog(store)) is not None
                },
                meanwhile=lambda: _prepare(drained.values()),
                offsets={
                    p: CommittedOffset(o, self._metadata(p, o, committer))
                    for p, o in offsets.items()
                },
            )
            positions = committer.carry_out(commit)
            now_ms = self._clock.now_ms()
            for task in tasks:
                mine = {p: o for p, o in positions.items() if p in task.stores.changelogs}
                mine |= {p: offsets[p] for p in task.source_stores}
                with task.stores.trusted():
                    task.stores.apply(drained[task.task_id], mine, now_ms=now_ms)
            self._committed = dict(commit.offsets)
            if begin_s >= self._next_refresh_s:
                # We could commit, so nobody else has written: where stores stand is as true now as it was then, and a
                # quiet store does not grow too old to be followed after a crash.
                self._next_refresh_s = begin_s + _REFRESH_S
                for task in tasks:
                    task.stores.refresh_positions(now_ms=now_ms)
            self.metrics.commits += 1
        ends = source.end_offsets()
        self._lags = {p: max(ends[p] - offset, 0) for p, offset in offsets.items() if p in ends}
        end_s = self._clock.monotonic_s()
        self.metrics.last_commit_s = end_s - begin_s
        self.metrics.commit_s += end_s - begin_s
        self.metrics.commit_s_max = max(self.metrics.commit_s_max, end_s - begin_s)
        self._next_commit_s = end_s + self._settings.commit_interval_ms / 1000

    def _plain(self) -> Mapping[TopicPartition, CommittedOffset]:
        return {
            partition: CommittedOffset(offset.offset, "")
            for partition, offset in self._committed.items()
        }

    @staticmethod
    def _plain_of(
        offsets: Mapping[TopicPartition, int],
    ) -> Mapping[TopicPartition, CommittedOffset]:
        return {partition: CommittedOffset(offset, "") for partition, offset in offsets.items()}

    def _offsets(self, source: RecordSource) -> dict[TopicPartition, int]:
        """Return what each running partition commits: past control records where everything was processed (H32)."""
        positions = source.positions() if self._owner else {}
        offsets: dict[TopicPartition, int] = {}
        for partition, task in self._owner.items():
            offset = task.next_offsets[partition]
            if not task.group.buffers[partition].records:
                offset = max(offset, positions.get(partition, offset))
            offsets[partition] = offset
        return offsets

    def _metadata(self, partition: TopicPartition, offset: int, committer: Committer) -> str:
        return Progress(
            task_epoch=0,
            transactional_id=committer.producer.transactional_id,
            topic_id=self._input_topic_ids[partition.topic],
            topology_hash=self._settings.topology_hash,
            ranges=(RangeProgress(0, offset),),
            stream_time_ms=self._owner[partition].partition_times_ms[partition],
            operator_times_ms=self._owner[partition].operator_times_ms(),
            sequence=self._sequence,
        ).encode()

    def _purge(self) -> None:
        """Delete records of repartition topics that are processed and committed."""
        self._next_purge_s = (
            self._clock.monotonic_s() + self._settings.repartition_purge_interval_ms / 1000
        )
        repartition = {topic.name for topic in self._plan.repartition_topics}
        before = {
            p: offset.offset for p, offset in self._committed.items() if p.topic in repartition
        }
        if before:
            try:
                self._ports.admin.delete_records(before)
            except StreamsError as error:
                # Nothing depends on it but disk space; the next round tries again.
                _log.warning("could not purge repartition topics: %s", error)
        self._housekeep()

    def _finish(
        self, source: RecordSource, collector: OutputCollector, committer: Committer
    ) -> None:
        """Commit for the last time and note on disk that nothing is missing."""
        self._commit(source, collector, committer)
        ends = self._settled_ends()
        if not ends:
            return
        # Nobody else can have written before `ends` was read if we could still commit after it, so the positions may
        # go past our own transaction markers: the next start has nothing to read.
        self._commit(source, collector, committer, force=True)
        for task in self._running.values():
            mine = {partition: ends[partition] for partition in task.stores.changelogs}
            task.stores.apply({}, mine, now_ms=self._clock.now_ms())

    def _settled_ends(self) -> dict[TopicPartition, int]:
        """Return the end of each changelog, past the marker of our last transaction.

        The marker comes a little after the commit was answered; until then the log ends before that transaction.
        """
        reached = {
            partition: 0 if (position := task.stores.position(store)) is None else position.offset
            for task in self._running.values()
            for partition, store in task.stores.changelogs.items()
        }
        give_up_s = self._clock.monotonic_s() + _MARKERS_S
        while reached:
            ends = self._ports.admin.end_offsets(list(reached))
            if all(ends[partition] >= offset for partition, offset in reached.items()):
                return ends
            if self._clock.monotonic_s() >= give_up_s:
                break  # the next start replays what is between; that costs only time
            threading.Event().wait(_MARKERS_POLL_S)
        return reached


def _prepare(drained: Iterable[Mapping[str, Drained]]) -> None:
    """Make the rows for the databases, while the brokers are busy with the same changes."""
    for changes in drained:
        for changed in changes.values():
            _ = changed.stored
