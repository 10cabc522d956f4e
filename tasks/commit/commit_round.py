"""Commit contents: the work of all running tasks since the last commit, and their positions."""

import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from msgspec.structs import replace as replaced

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.state_stores.buffers.commit_buffer import Drained
from tidewheel.state_stores.buffers.merged_changes import merge_changes
from tidewheel.tasks.commit.commit_schedule import CommitState
from tidewheel.tasks.commit.committer import Commit, Committer, changed_offsets, run_now
from tidewheel.tasks.commit.output_collector import OutputCollector
from tidewheel.tasks.commit_facts import encode_details, encode_operators
from tidewheel.tasks.kafka.ports import Admin, Background, Clock, CommittedOffset, Positions
from tidewheel.tasks.kafka.shard_inputs import of_inputs
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import Vector
from tidewheel.tasks.processing.engine.output import OutputColumns
from tidewheel.tasks.restore.start_positions import StartPosition
from tidewheel.tasks.task.task import Task
from tidewheel.tasks.task.worker_input import WorkerInput
from tidewheel.tasks.task.worker_settings import WorkerSettings

#: Seconds between writes of unchanged store positions. A start rejects positions older than the
#: changelog's `delete.retention.ms`.
_REFRESH_S: Final = 3_600.0
#: Seconds to wait for key ranges to seal (hand over) work for a commit; the rest joins the next.
_SEAL_S: Final = 0.02
#: Seconds that a clean stop waits for the markers of its last transaction.
_MARKERS_S: Final = 5.0
_MARKERS_POLL_S: Final = 0.01


class CommitSequence:
    """Number of the last commit; outlives restarts of the tasks.

    It makes the metadata of each commit unique, also across workers. So the committed offsets show
    if a transaction of unknown outcome has committed.
    """

    def __init__(self) -> None:
        self.number = 0


@dataclass(frozen=True, slots=True)
class Work:
    tasks: Sequence[Task]
    drained: Mapping[TaskId, Mapping[str, Drained]]
    outputs: list[OutputColumns]
    offsets: dict[TopicPartition, int]
    progress: dict[TopicPartition, Vector]
    start_s: float
    size_bytes: int

    def count_keys(self, stores: Mapping[TaskId, Collection[str]]) -> int:
        return sum(
            len(drained.keys)
            for task_id, names in stores.items()
            for store, drained in self.drained.get(task_id, {}).items()
            if store in names
        )

    def merge(self, later_work: "Work") -> "Work":
        drained: dict[TaskId, Mapping[str, Drained]] = {}
        for task_id, later in later_work.drained.items():
            parts = (self.drained.get(task_id, {}), later)
            stores = dict.fromkeys([*parts[0], *parts[1]])
            drained[task_id] = {
                store: merge_changes([part[store] for part in parts if store in part])
                for store in stores
            }
        return replace(
            later_work, drained=drained, size_bytes=self.size_bytes + later_work.size_bytes
        )


@dataclass(frozen=True, slots=True)
class _Prepared:
    work: Work
    commit: Commit
    is_early: bool


class CommitRound:
    """Commits of one worker's running tasks.

    Attributes:
        epochs: Epoch of each task's ownership; 0 under fixed assignment.
        offsets: Position in each input partition when work was last collected.
        reached: Position of each changelog after the last commit.
        written: Number of records in the last commit, for each changelog.
        puts: Number of rows that the last commit wrote to each store.
        unknown: Changelogs whose position the cluster has not reported.
        forwarded: In the last commit that was extended, number of keys of cached stores.
        twice: Number of these keys that changed both before and after the extension.
    """

    def __init__(
        self,
        committer: Committer,
        collector: OutputCollector,
        work: WorkerInput,
        settings: WorkerSettings,
        *,
        clock: Clock,
        sequence: CommitSequence,
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
        self.puts = Counter[str]()
        self.unknown: set[TopicPartition] = set()
        self.forwarded, self.twice = 0, 0
        self._progress: dict[TopicPartition, Vector] = {}
        self._former: dict[TaskId, set[str]] = {}
        self._facts: dict[TopicPartition, bytes] = {}
        self._operators = {
            "operators": encode_operators(settings.operators),
            "details": encode_details(settings.operators),
        }
        #: Floors of sharded partitions, for the next commits.
        self.floors: dict[TopicPartition, int] = {}
        self._prepared: _Prepared | None = None
        self._input = work
        self._clock = clock
        self._topology_hash = settings.topology_hash
        now_s = clock.monotonic_s()
        #: Seconds between commits of unchanged offsets. Brokers delete offsets not committed
        #: for `offsets.retention.minutes`.
        self._recommit_s = settings.recommit_ms / 1000
        self._next_recommit_s = now_s + self._recommit_s
        self._next_refresh_s = now_s + _REFRESH_S

    # -- tasks -----------------------------------------------------------------------------------

    def add_task(
        self,
        task: Task,
        epoch: int,
        starts: Mapping[TopicPartition, StartPosition],
        topic_ids: Mapping[str, bytes],
    ) -> None:
        self.epochs[task.task_id] = epoch
        self.unknown.difference_update(at.whole for at in task.stores.changelogs)  # restored
        self.topic_ids.update(topic_ids)
        self._facts |= {
            partition: replaced(start.origin.facts, **self._operators).encode()
            for partition, start in starts.items()
        }
        self._former[task.task_id] = {
            "" if start.progress is None else start.progress.transactional_id
            for start in starts.values()
        }
        earlier = [start.progress.sequence for start in starts.values() if start.progress]
        self.sequence.number = max([self.sequence.number, *earlier])

    def former_ids(self, task: Task) -> set[str]:
        """Return transactional ids of commits before the task's start; "" for an input without."""
        return self._former[task.task_id]

    def remove_task(self, task: Task) -> dict[TopicPartition, int]:
        del self.epochs[task.task_id], self._former[task.task_id]
        offsets = self.offsets_of(task)
        for partition in offsets:
            del self.committed[partition]
        if not task.task_id.shard.is_whole and task.task_id.shard.number == 0:
            for partition in task.inputs:
                self.floors.pop(partition.whole, None)
                self.committed.pop(partition.whole, None)
        return offsets

    def offsets_of(self, task: Task) -> dict[TopicPartition, int]:
        return {
            partition: self.committed[partition].offset
            for partition in task.inputs
            if partition in self.committed
        }

    # -- one commit ------------------------------------------------------------------------------

    @property
    def state(self) -> CommitState:
        return self.committer.state

    @property
    def is_early(self) -> bool:
        return self._prepared is not None and self._prepared.is_early

    def collect(self, tasks: Sequence[Task], *, force: bool = False) -> Work | None:
        """Drain the work of all running tasks; None if there is nothing to commit."""
        start_s = self._clock.monotonic_s()
        recommits = start_s >= self._next_recommit_s
        if recommits:
            self._next_recommit_s = start_s + self._recommit_s
        self._await_seals(tasks)
        for task in tasks:
            if (caches := task.caches) is not None:
                with task.stores.trusted():
                    caches.flush()
            task.commit_requested = False
        size_bytes = self._new_bytes(tasks)
        drained = {task.task_id: task.drain() for task in tasks}
        outputs = self.collector.pop_staged()
        self.offsets = offsets = self._input.offsets()
        owners = self._input.owners
        progress = {
            partition: owners[partition].progress(partition, offset)
            for partition, offset in offsets.items()
        }
        if not (
            outputs
            or any(drained.values())
            or force
            or any(task.awaits_commit for task in tasks)
            or (recommits and offsets)
            or changed_offsets(_plain(self.committed), _plain_of(offsets))
            or any(self._progress.get(at, now) != now for at, now in progress.items())
            or any(
                at not in self.committed or self.committed[at].offset < floor
                for at, floor in self.floors.items()
            )
        ):
            return None
        self.sequence.number += 1
        return Work(tasks, drained, outputs, offsets, progress, start_s, size_bytes)

    def _await_seals(self, tasks: Iterable[Task]) -> None:
        barriers = [task.request_seals() for task in tasks]
        until_s = time.monotonic() + _SEAL_S
        for barrier in barriers:
            if barrier is not None:
                barrier.wait(until_s - time.monotonic())

    def prepare(self, work: Work, background: Background = run_now, *, opens: bool = False) -> None:
        """Send work as a commit; with `opens`, `extend` may add later work."""
        assert self._prepared is None, "complete the commit in progress first"
        commit = self._commit_of(work)
        self.committer.prepare(commit, background, opens=opens)
        self._prepared = _Prepared(work, commit, is_early=opens)
        for task in work.tasks:
            task.stage(work.drained[task.task_id])

    def extend(self, later_work: Work) -> bool:
        """Add later work to the early commit; return False if it is closed already."""
        prepared = self._prepared
        assert prepared is not None, "no commit is in progress"
        if not self.committer.extend(self._commit_of(later_work)):
            return False
        try:
            whole = prepared.work.merge(later_work)
            self._prepared = _Prepared(whole, prepared.commit, is_early=False)
            cached = {task.task_id: task.stores.cached_stores for task in later_work.tasks}
            self.forwarded = whole.count_keys(cached)
            parts = prepared.work.count_keys(cached) + later_work.count_keys(cached)
            self.twice = parts - self.forwarded
            for task in later_work.tasks:
                joins = task.task_id in prepared.work.drained
                task.stage(whole.drained[task.task_id], joins=joins)
        except BaseException:
            # Drop the whole commit: else `complete` could store only the early rows, with positions
            # that include the later work.
            self._prepared = None
            self.committer.abandon(find_out=False)
            raise
        return True

    def complete(self) -> float:
        """Wait until the commit is durable, write it to the databases, return its duration."""
        prepared, self._prepared = self._prepared, None
        assert prepared is not None, "prepare a commit before completing it"
        self._write(prepared, self.committer.complete())
        self._refresh(prepared.work.tasks, prepared.work.start_s)
        return self._clock.monotonic_s() - prepared.work.start_s

    def abandon(self, *, find_out: bool) -> None:
        """Wait for the commit in progress without a retry, and write it if it is durable."""
        prepared, self._prepared = self._prepared, None
        if prepared is None:
            return
        positions = self.committer.abandon(find_out=find_out)
        if positions is not None:
            self._write(prepared, positions)

    def uncommitted_bytes(self, tasks: Iterable[Task]) -> int:
        prepared = self._prepared
        return (0 if prepared is None else prepared.work.size_bytes) + self._new_bytes(tasks)

    def _new_bytes(self, tasks: Iterable[Task]) -> int:
        return self.collector.staged_bytes + sum(task.uncommitted_bytes for task in tasks)

    def _commit_of(self, work: Work) -> Commit:
        return Commit(
            outputs=work.outputs,
            changelogs={
                partition: [changes]
                for task in work.tasks
                for store, changes in work.drained[task.task_id].items()
                if (partition := task.stores.changelog(store)) is not None
            },
            meanwhile=lambda: _serialize_rows(work.drained.values()),
            offsets={
                partition: CommittedOffset(
                    offset, self._metadata(partition, offset, work.progress[partition])
                )
                for partition, offset in work.offsets.items()
            }
            | self._floor_offsets(),
        )

    def _floor_offsets(self) -> dict[TopicPartition, CommittedOffset]:
        """Return the floors as offsets of the application's own group."""
        return {
            at.whole: CommittedOffset(floor, self._metadata(at, floor, Vector.at(floor)))
            for at in self._input.owners
            if not at.shard.number and (floor := self.floors.get(at.whole)) is not None
        }

    def _metadata(self, partition: TopicPartition, offset: int, vector: Vector) -> str:
        task = self._input.owners[partition]
        return Progress(
            task_epoch=self.epochs[task.task_id],
            transactional_id=self.committer.producer.transactional_id,
            topic_id=self.topic_ids[partition.topic],
            topology_hash=self._topology_hash,
            vector=vector,
            shards=task.task_id.shard.of,
            stream_time_ms=task.committed_time_ms(partition),
            operator_times_ms=task.operator_times_ms(),
            sequence=self.sequence.number,
            facts=self._facts[partition],
            read_from=offset if offset < vector.lowest else None,
        ).encode()

    def _write(self, prepared: _Prepared, positions: Positions) -> None:
        work, commit = prepared.work, prepared.commit
        self.reached.update(positions)
        self.written = {
            changelog: sum(len(part.keys) for part in parts)
            for changelog, parts in commit.changelogs.items()
        }
        of_changelogs = {at.whole for at in commit.changelogs}
        self.puts = Counter[str]()
        self.unknown = (self.unknown | of_changelogs) - positions.keys()
        self.committed = dict(commit.offsets)
        self._progress = work.progress
        now_ms = self._clock.now_ms()
        for task in work.tasks:
            stores = task.stores
            stored_positions = {
                # Other rows before a shard's last own row are those of other shards.
                at: positions[at.whole]
                for at in stores.changelogs
                if at.whole in positions
            }
            stored_positions |= {
                at: commit.offsets[at].offset for at in stores.sources if at in commit.offsets
            }
            for store, drained in work.drained[task.task_id].items():
                self.puts[store] += len(drained.keys)
            with stores.trusted():
                stores.apply(work.drained[task.task_id], stored_positions, now_ms=now_ms)
            task.applied()

    def _refresh(self, tasks: Iterable[Task], start_s: float) -> None:
        """Rewrite the positions of unchanged stores with the current time, so a start accepts them.

        This worker could commit, so no other worker has written: the positions are still valid.
        """
        if start_s >= self._next_refresh_s:
            self._next_refresh_s = start_s + _REFRESH_S
            for task in tasks:
                with task.stores.trusted():
                    task.stores.refresh_positions(now_ms=self._clock.now_ms())

    # -- a clean stop ----------------------------------------------------------------------------

    def finish(self, tasks: Sequence[Task], admin: Admin) -> None:
        """Commit for the last time, and store positions so the next start restores nothing."""
        self._commit(tasks)
        ends = self._stable_ends(tasks, admin)
        if not ends:
            return
        # If this commit succeeds, no other worker had written before `ends` was read. So the
        # positions may pass our own transaction markers.
        self._commit(tasks, force=True)
        for task in tasks:
            positions = {partition: ends[partition] for partition in task.stores.changelogs}
            task.stores.apply({}, positions, now_ms=self._clock.now_ms())

    def _commit(self, tasks: Sequence[Task], *, force: bool = False) -> None:
        work = self.collect(tasks, force=force)
        if work is not None:
            self.prepare(work)
            self.complete()

    def _stable_ends(self, tasks: Iterable[Task], admin: Admin) -> dict[TopicPartition, int]:
        """Return the stable offset of each changelog, past the marker of our last transaction.

        Brokers write the marker shortly after they answer the commit. While another program has an
        open transaction there, the positions stay: its records must not be skipped.
        """
        positions: dict[TopicPartition, int] = {}
        for task in tasks:
            positions |= changelog_positions(task)
        until_s = self._clock.monotonic_s() + _MARKERS_S
        while positions:
            ends = of_inputs(admin.stable_offsets, positions)
            if all(ends[partition] >= offset for partition, offset in positions.items()):
                return ends
            if self._clock.monotonic_s() >= until_s:
                break
            threading.Event().wait(_MARKERS_POLL_S)
        return positions


def changelog_positions(task: Task) -> dict[TopicPartition, int]:
    return {
        partition: 0 if (position := task.stores.position(store)) is None else position.offset
        for partition, store in task.stores.changelogs.items()
    }


def _serialize_rows(drained: Iterable[Mapping[str, Drained]]) -> None:
    for stores in drained:
        for changes in stores.values():
            _ = changes.stored


def _plain(
    committed: Mapping[TopicPartition, CommittedOffset],
) -> dict[TopicPartition, CommittedOffset]:
    return _plain_of({partition: offset.offset for partition, offset in committed.items()})


def _plain_of(offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, CommittedOffset]:
    return {partition: CommittedOffset(offset, "") for partition, offset in offsets.items()}
