"""What a worker's commits hold: the work of all running tasks since the last one, and how far they are."""

import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from msgspec.structs import replace as replaced

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.state_stores.buffers.commit_buffer import Drained
from tidewheel.state_stores.buffers.merged_changes import merge_changes
from tidewheel.tasks.commit.background import at_once
from tidewheel.tasks.commit.committer import Commit, Committer, changed_offsets
from tidewheel.tasks.commit.output_collector import OutputCollector
from tidewheel.tasks.commit_facts import encode_details, encode_operators
from tidewheel.tasks.key_ranges.progress_vector import Progress, RangeProgress
from tidewheel.tasks.ports import Admin, Beside, Clock, CommittedOffset, Positions
from tidewheel.tasks.restore.start_positions import StartPosition
from tidewheel.tasks.task.parallel_task import ParallelTask, parallel_tasks
from tidewheel.tasks.task.task import Task
from tidewheel.tasks.task.worker_input import WorkerInput
from tidewheel.tasks.worker_settings import WorkerSettings

_log = logging.getLogger(__name__)

#: Positions of quiet stores are written anew this often.
_REFRESH_S: Final = 3_600.0
#: How long a commit waits for key ranges that are in the middle of a unit of work. By the machine's clock: threads run.
_CUT_S: Final = 0.02
#: How long a clean stop waits for the markers of its last transaction, and how often it looks for them.
_MARKERS_S: Final = 5.0
_MARKERS_POLL_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class _Round:
    """A commit that was begun."""

    tasks: Sequence[Task]
    drained: Mapping[TaskId, Mapping[str, Drained]]
    commit: Commit
    progress: dict[TopicPartition, tuple[RangeProgress, ...]]
    begin_s: float
    size_bytes: int
    #: Whether it was begun for more to join it, and nothing has yet.
    awaits_more: bool = False

    def keys_of(self, stores: Mapping[TaskId, Collection[str]]) -> int:
        """Return how many keys of some stores it changes."""
        return sum(
            len(drained.keys)
            for task_id, names in stores.items()
            for store, drained in self.drained.get(task_id, {}).items()
            if store in names
        )

    def with_more(self, more: "_Round") -> "_Round":
        """Return this with what has joined its commit."""
        drained: dict[TaskId, Mapping[str, Drained]] = {}
        for task_id, now in more.drained.items():
            parts = (self.drained.get(task_id, {}), now)
            stores = dict.fromkeys([*parts[0], *parts[1]])
            drained[task_id] = {
                store: merge_changes([part[store] for part in parts if store in part])
                for store in stores
            }
        return replace(
            more,
            drained=drained,
            commit=self.commit,
            size_bytes=self.size_bytes + more.size_bytes,
        )


class CommitRound:
    """The commits of one worker's running tasks. Its loop calls it.

    Attributes:
        committer: Carries commits out.
        collector: What the tasks have put out.
        committed: What was committed last, per partition of a task that runs here.
        epochs: Under which epoch each task is owned; 0 under fixed assignment.
        topic_ids: Ids of the input topics.
        offsets: What every partition stood at when it was committed last, or when there was nothing to commit.
        reached: The position each changelog has reached by these commits.
        written: How many records the last commit gave each changelog that it changed.
        forwarded: How many keys of caches the last commit had that was joined.
        twice: How many of them were in both of its parts.
        sequence: Count of commits: no two commits of a partition carry the same text, also across lives.
    """

    def __init__(
        self,
        committer: Committer,
        collector: OutputCollector,
        work: WorkerInput,
        settings: WorkerSettings,
        *,
        clock: Clock,
        sequence: int,
    ) -> None:
        self.committer = committer
        self.collector = collector
        self.committed: dict[TopicPartition, CommittedOffset] = {}
        self.epochs: dict[TaskId, int] = {}
        self.topic_ids: dict[str, bytes] = {}
        self.sequence = sequence
        self.offsets: dict[TopicPartition, int] = {}
        self.reached: dict[TopicPartition, int] = {}
        self.written: dict[TopicPartition, int] = {}
        #: Changelogs whose position after the last commit is not known: the cluster has not told it.
        self.unknown: set[TopicPartition] = set()
        self.forwarded, self.twice = 0, 0
        #: How far the key ranges of each partition were at the last commit.
        self._progress: dict[TopicPartition, tuple[RangeProgress, ...]] = {}
        self._former: dict[TaskId, set[str]] = {}
        #: Encoded `CommitFacts` of each input.
        self._facts: dict[TopicPartition, bytes] = {}
        self._operators = {
            "operators": encode_operators(settings.operators),
            "details": encode_details(settings.operators),
        }
        self._round: _Round | None = None
        self._work = work
        self._clock = clock
        self._topology_hash = settings.topology_hash
        now_s = clock.monotonic_s()
        #: Brokers forget offsets after their retention (H17).
        self._recommit_s = settings.recommit_ms / 1000
        self._next_recommit_s = now_s + self._recommit_s
        self._next_refresh_s = now_s + _REFRESH_S

    def begins(
        self,
        task: Task,
        epoch: int,
        starts: Mapping[TopicPartition, StartPosition],
        topic_ids: Mapping[str, bytes],
    ) -> None:
        """Note with what a task begins to run."""
        self.epochs[task.task_id] = epoch
        self.unknown.difference_update(task.stores.changelogs)  # read to their ends
        self.topic_ids.update(topic_ids)
        self._facts |= {
            each: replaced(start.origin.facts, **self._operators).encode()
            for each, start in starts.items()
        }
        self._former[task.task_id] = {
            "" if each.progress is None else each.progress.transactional_id
            for each in starts.values()
        }
        earlier = [each.progress.sequence for each in starts.values() if each.progress is not None]
        self.sequence = max([self.sequence, *earlier])

    def former_ids(self, task: Task) -> set[str]:
        """Return who had committed for a task before it began; "" stands for nobody that is known."""
        return self._former[task.task_id]

    def ends(self, task: Task) -> dict[TopicPartition, int]:
        """Forget a task that runs no more; return what is committed for it."""
        del self.epochs[task.task_id], self._former[task.task_id]
        last = self.offsets_of(task)
        for partition in last:
            del self.committed[partition]
        return last

    def offsets_of(self, task: Task) -> dict[TopicPartition, int]:
        """Return what was committed for a task last, per input."""
        return {each: self.committed[each].offset for each in task.inputs if each in self.committed}

    def carry_out(self, tasks: Sequence[Task], *, force: bool = False) -> bool:
        """Commit the work of these tasks, which are all that run; return whether there was anything.

        Raises what `begin` and `end` raise.
        """
        begun = self.begin(tasks, force=force)
        if begun:
            self.end()
        return begun

    def begin(
        self,
        tasks: Sequence[Task],
        beside: Beside = at_once,
        *,
        force: bool = False,
        opens: bool = False,
    ) -> bool:
        """Begin to commit the work of these tasks, which are all that run; return whether there is anything.

        They may go on processing before `end`, as if it were done. `opens`: what they do until `join` may become part of it.
        Raises what `Committer.begin` raises.
        """
        assert self._round is None, "one commit at a time: end the one that is under way"
        self._report_drops(tasks)
        done = self._taken(tasks, force=force)
        if done is None:
            return False
        self._begin(replace(done, awaits_more=opens), beside)
        return True

    def _report_drops(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            task.figures.report_expired_puts()
        if self.collector.policy is not None:
            self.collector.policy.drops.report()

    def _begin(self, done: _Round, beside: Beside) -> None:
        self.committer.begin(done.commit, beside, opens=done.awaits_more)
        self._round = done
        for task in done.tasks:
            if not isinstance(task, ParallelTask):  # a range already reads what it has sealed
                with task.stores.trusted():
                    task.stores.stage(done.drained[task.task_id])

    def join(self, tasks: Sequence[Task], beside: Beside) -> float | None:
        """Commit what these tasks have done since a commit was begun that awaits more.

        With that, and None is returned; or after it, if it could not wait, and then how many seconds that took in all. Raises
        what `begin` and `end` raise.
        """
        before = self._round
        assert before is not None, "nothing is under way that awaits more"
        now = self._taken(tasks, force=True)
        assert now is not None, "a commit that has to be is one"
        if not self.committer.join(now.commit):
            took_s = self.end()
            # The producer may be another one by now.
            now.commit.offsets = self._with_metadata(self.offsets, now.progress)
            self._begin(now, beside)
            return took_s
        try:
            self._round = whole = before.with_more(now)
            held = {task.task_id: task.stores.cached_stores for task in tasks}
            self.forwarded = whole.keys_of(held)
            self.twice = before.keys_of(held) + now.keys_of(held) - self.forwarded
            for task in tasks:
                if not isinstance(task, ParallelTask):
                    joins = task.task_id in before.drained
                    with task.stores.trusted():
                        task.stores.stage(whole.drained[task.task_id], joins=joins)
        except BaseException:
            # Whoever ends the tasks for this must not write the rows of the first part with the positions of both.
            self._round = None
            self.committer.give_up(find_out=False)
            raise
        return None

    def _taken(self, tasks: Sequence[Task], *, force: bool = False) -> _Round | None:
        """Return the work of these tasks since the last commit was begun, or None if there is nothing to commit."""
        begin_s = self._clock.monotonic_s()
        anew = begin_s >= self._next_recommit_s
        if anew:
            self._next_recommit_s = begin_s + self._recommit_s
        self._cut(tasks)
        for task in tasks:
            with task.stores.trusted():
                if task.caches is not None:
                    task.caches.flush()
            task.commit_requested = False
        size_bytes = self._new_bytes(tasks)
        drained = {task.task_id: task.drain() for task in tasks}
        outputs = self.collector.take_staged()
        self.offsets = offsets = self._work.offsets()
        progress = {each: self._work.owners[each].progress(each, offsets[each]) for each in offsets}
        if not (
            outputs
            or any(drained.values())
            or force
            or (anew and offsets)
            or changed_offsets(_plain(self.committed), _plain_of(offsets))
            or any(self._progress.get(each, now) != now for each, now in progress.items())
        ):
            return None
        self.sequence += 1
        commit = Commit(
            outputs=outputs,
            changelogs={
                partition: [changes]
                for task in tasks
                for store, changes in drained[task.task_id].items()
                if (partition := task.stores.changelog(store)) is not None
            },
            meanwhile=lambda: _prepare(drained.values()),
            offsets=self._with_metadata(offsets, progress),
        )
        return _Round(tasks, drained, commit, progress, begin_s, size_bytes)

    def uncommitted_bytes(self, tasks: Iterable[Task]) -> int:
        """Return about how much memory holds what these tasks have done and no commit has made durable yet."""
        return (0 if self._round is None else self._round.size_bytes) + self._new_bytes(tasks)

    def _new_bytes(self, tasks: Iterable[Task]) -> int:
        return self.collector.staged_bytes + sum(task.uncommitted_bytes for task in tasks)

    @property
    def is_under_way(self) -> bool:
        """Return whether a commit was begun that has not ended."""
        return self._round is not None

    @property
    def awaits_more(self) -> bool:
        """Return whether a commit was begun that `join` is to be called for."""
        return self._round is not None and self._round.awaits_more

    @property
    def awaits_brokers(self) -> bool:
        """Return whether it is too early for `join`: that would wait for brokers."""
        return self.awaits_more and not self.committer.is_ready_for_more

    def end(self) -> float:
        """Wait until what was begun is durable, write it to the databases; return how many seconds it took in all.

        Raises what `Committer.end` raises.
        """
        done, self._round = self._round, None
        assert done is not None, "a commit ends that was begun"
        self._write(done, self.committer.end())
        self._refresh(done.tasks, done.begin_s)
        return self._clock.monotonic_s() - done.begin_s

    def give_up(self, *, find_out: bool) -> None:
        """Have what was begun end where the tasks are over: note what is committed, and try nothing again.

        `find_out`: they begin anew here, so it has to be certain. Raises what `Committer.give_up` raises.
        """
        done, self._round = self._round, None
        if done is None:
            return
        positions = self.committer.give_up(find_out=find_out)
        if positions is not None:
            self._write(done, positions)

    def _write(self, done: _Round, positions: Positions) -> None:
        """Note what is committed, and write it to the databases."""
        self.reached.update(positions)
        self.written = {
            each: sum(len(part.keys) for part in parts)
            for each, parts in done.commit.changelogs.items()
        }
        self.unknown = (self.unknown | done.commit.changelogs.keys()) - positions.keys()
        self.committed = dict(done.commit.offsets)
        self._progress = done.progress
        offsets = {each: committed.offset for each, committed in done.commit.offsets.items()}
        self._apply(done.tasks, done.drained, positions, offsets)

    def _cut(self, tasks: Iterable[Task]) -> None:
        """Have key ranges hand over what they have done, those first that will do so soon."""
        cuts = [task.request_seals() for task in parallel_tasks(tasks)]
        until_s = time.monotonic() + _CUT_S
        for cut in cuts:
            cut.wait(until_s - time.monotonic())

    def _apply(
        self,
        tasks: Iterable[Task],
        drained: Mapping[TaskId, Mapping[str, Drained]],
        positions: Mapping[TopicPartition, int],
        offsets: Mapping[TopicPartition, int],
    ) -> None:
        """Write what was committed to the databases."""
        now_ms = self._clock.now_ms()
        for task in tasks:
            mine = {each: at for each, at in positions.items() if each in task.stores.changelogs}
            mine |= {each: offsets[each] for each in task.source_restores.stores}
            with task.stores.trusted():
                task.stores.apply(drained[task.task_id], mine, now_ms=now_ms)
            if isinstance(task, ParallelTask):
                task.applied()

    def _refresh(self, tasks: Iterable[Task], begin_s: float) -> None:
        if begin_s < self._next_refresh_s:
            return
        # We could commit, so nobody else has written: where stores stand is as true now as it was then, and a quiet
        # store does not grow too old to be followed after a crash.
        self._next_refresh_s = begin_s + _REFRESH_S
        for task in tasks:
            task.stores.refresh_positions(now_ms=self._clock.now_ms())

    def _with_metadata(
        self,
        offsets: Mapping[TopicPartition, int],
        progress: Mapping[TopicPartition, tuple[RangeProgress, ...]],
    ) -> dict[TopicPartition, CommittedOffset]:
        return {
            each: CommittedOffset(offset, self._metadata(each, offset, progress[each]))
            for each, offset in offsets.items()
        }

    def _metadata(
        self, partition: TopicPartition, offset: int, ranges: tuple[RangeProgress, ...]
    ) -> str:
        task = self._work.owners[partition]
        return Progress(
            task_epoch=self.epochs[task.task_id],
            transactional_id=self.committer.producer.transactional_id,
            topic_id=self.topic_ids[partition.topic],
            topology_hash=self._topology_hash,
            ranges=ranges,
            stream_time_ms=task.committed_time_ms(partition),
            operator_times_ms=task.operator_times_ms(),
            sequence=self.sequence,
            facts=self._facts[partition],
            read_from=offset if offset < min(each.offset for each in ranges) else None,
        ).encode()

    def finish(self, tasks: Sequence[Task], admin: Admin) -> None:
        """Commit for the last time and note on disk that nothing is missing."""
        self.carry_out(tasks)
        ends = self._settled_ends(tasks, admin)
        if not ends:
            return
        # Nobody else can have written before `ends` was read if we could still commit after it, so the positions may
        # go past our own transaction markers: the next start has nothing to read.
        self.carry_out(tasks, force=True)
        for task in tasks:
            mine = {partition: ends[partition] for partition in task.stores.changelogs}
            task.stores.apply({}, mine, now_ms=self._clock.now_ms())

    def _settled_ends(self, tasks: Iterable[Task], admin: Admin) -> dict[TopicPartition, int]:
        """Return the stable offset of each changelog, past the marker of our last transaction.

        The marker comes a little after the commit was answered; until then the stable offset is before that transaction. While
        another program has a transaction open there, positions stay where they are: what it writes is not skipped.
        """
        reached: dict[TopicPartition, int] = {}
        for task in tasks:
            reached |= changelog_positions(task)
        give_up_s = self._clock.monotonic_s() + _MARKERS_S
        while reached:
            ends = admin.stable_offsets(list(reached))
            if all(ends[partition] >= offset for partition, offset in reached.items()):
                return ends
            if self._clock.monotonic_s() >= give_up_s:
                break  # the next start replays what is between; that costs only time
            threading.Event().wait(_MARKERS_POLL_S)
        return reached


def changelog_positions(task: Task) -> dict[TopicPartition, int]:
    """Return the position each changelog of a task has reached, as its stores say."""
    return {
        partition: 0 if (position := task.stores.position(store)) is None else position.offset
        for partition, store in task.stores.changelogs.items()
    }


def _prepare(drained: Iterable[Mapping[str, Drained]]) -> None:
    """Make the rows for the databases, while the brokers are busy with the same changes."""
    for changes in drained:
        for changed in changes.values():
            _ = changed.stored


def _plain(
    committed: Mapping[TopicPartition, CommittedOffset],
) -> dict[TopicPartition, CommittedOffset]:
    return _plain_of({partition: offset.offset for partition, offset in committed.items()})


def _plain_of(offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, CommittedOffset]:
    """Return offsets without their texts, to be compared."""
    return {partition: CommittedOffset(offset, "") for partition, offset in offsets.items()}
