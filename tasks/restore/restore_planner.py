"""Restore planner: asks the cluster where inputs and changelogs start and end."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.state_stores.errors import StreamsError
from tidewheel.state_stores.layout.position import Position
from tidewheel.state_stores.spec import SEGMENTED_KINDS
from tidewheel.tasks.errors import StartRefusedError
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan, offsets_group
from tidewheel.tasks.kafka.ports import (
    Admin,
    Clock,
    CommittedOffset,
    TopicDescription,
    UnsettledOffsetsError,
)
from tidewheel.tasks.kafka.shard_inputs import committed_inputs, of_inputs
from tidewheel.tasks.key_ranges.progress_vector import slowest_position_ms
from tidewheel.tasks.restore.offset_origin import StartRules, check_state
from tidewheel.tasks.restore.source_restore import open_source_restore
from tidewheel.tasks.restore.start_positions import (
    Grant,
    StartPosition,
    find_granted_starts,
    inputs_of,
    progress_of,
    topic_ids_of,
)
from tidewheel.tasks.restore.store_changelog_reader import Stall, explained
from tidewheel.tasks.restore.store_restore import RESTORE_SETTINGS, LogFacts, StoreRestore, start_of
from tidewheel.tasks.task.task import Task

_log = logging.getLogger(__name__)

#: Topic ids older than this are read again: a topic may have been recreated.
_TOPIC_IDS_AGE_S: Final = 15.0

#: Retries before a log end below a store's position is believed.
_END_RETRIES: Final = 20
_ENDS_PAUSE_S: Final = 0.5


class RestorePlanner:
    """Planner of the tasks of one application.

    Args:
        appeared: Returns the input partitions created while this process ran.
    """

    def __init__(
        self,
        plan: Callable[[], ApplicationPlan],
        admin: Admin,
        clock: Clock,
        *,
        rules: StartRules,
        topology_hash: bytes,
        pause: Callable[[float], object] = time.sleep,
        appeared: Callable[[], frozenset[TopicPartition]] = frozenset,
    ) -> None:
        self._pause = pause
        self._plan = plan
        self._admin = admin
        self._clock = clock
        self._rules = rules
        self._group_id = rules.group_id
        self._appeared = appeared
        self._topology_hash = topology_hash
        self._topic_ids: dict[str, bytes] = {}
        self._topic_ids_read_s = 0.0

    def find_starts(
        self, grants: Mapping[TaskId, Grant]
    ) -> tuple[dict[TopicPartition, StartPosition], dict[str, bytes], dict[TaskId, StreamsError]]:
        """Return the start of each input, the topic ids, and the errors of refused tasks."""
        refused: dict[TaskId, StreamsError] = {}
        try:
            starts = self._starts_of(grants)
        except (StartRefusedError, UnsettledOffsetsError) as error:
            if len(grants) == 1:
                return {}, dict(self._topic_ids), dict.fromkeys(grants, error)
            # Check the tasks one by one, to refuse only those at fault.
            starts = dict[TopicPartition, StartPosition]()
            for task_id, grant in grants.items():
                try:
                    starts |= self._starts_of({task_id: grant})
                except (StartRefusedError, UnsettledOffsetsError) as its_own:
                    refused[task_id] = its_own
        return starts, dict(self._topic_ids), refused

    def _starts_of(self, grants: Mapping[TaskId, Grant]) -> dict[TopicPartition, StartPosition]:
        plan = self._plan()
        inputs = inputs_of(plan, grants)
        too_old = self._clock.monotonic_s() - self._topic_ids_read_s > _TOPIC_IDS_AGE_S
        if too_old or any(partition.topic not in self._topic_ids for partition in inputs):
            self.refresh_topic_ids(inputs)
        return find_granted_starts(
            plan,
            grants,
            admin=self._admin,
            rules=self._rules,
            appeared=self._appeared(),
            topic_ids=self._topic_ids,
        )

    def refresh_topic_ids(self, partitions: Iterable[TopicPartition] = ()) -> None:
        partitions_of_known = [TopicPartition(topic, 0) for topic in self._topic_ids]
        read_s = self._clock.monotonic_s()
        self._topic_ids = topic_ids_of([*partitions_of_known, *partitions], self._admin)
        self._topic_ids_read_s = read_s

    def prepare_promotions(self, copies: Iterable[Task]) -> None:
        """Read ahead for promotions: topic ids, coordinators, slowest key ranges' stream times."""
        copies = list(copies)
        inputs = [partition for task in copies for partition in task.inputs]
        self.refresh_topic_ids(inputs)
        groups = {offsets_group(self._group_id, task.task_id.shard) for task in copies}
        for group_id in sorted({self._group_id, *groups}):
            self._admin.reach_group(group_id)
        self._set_slowest_positions(
            copies, committed_inputs(self._admin, self._group_id, inputs, stable=False)
        )

    def refresh_slowest_positions(self, copies: Iterable[Task]) -> None:
        divided = [task for task in copies if _may_part(task)]
        inputs = [partition for task in divided for partition in task.inputs]
        if inputs:
            self._set_slowest_positions(
                divided, committed_inputs(self._admin, self._group_id, inputs, stable=False)
            )

    def forget_slowest_position(self, task: Task) -> None:
        """Mark the slowest key range's position as unknown: another worker now runs the task."""
        if task.stores.slowest_position_ms is None and _may_part(task):
            task.stores.slowest_position_ms = -1

    def _set_slowest_positions(
        self, copies: Iterable[Task], committed: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        for task in copies:
            task.stores.slowest_position_ms = slowest_position_ms(
                [progress_of(committed.get(partition)) for partition in task.inputs],
                self._topology_hash,
                may_part=_may_part(task),
            )

    def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        offsets = committed_inputs(self._admin, self._group_id, partitions, stable=False)
        return {partition: offset.offset for partition, offset in offsets.items()}

    def read_log_facts(self, tasks: Iterable[Task]) -> dict[TopicPartition, LogFacts]:
        tasks = list(tasks)
        partitions = [partition for task in tasks for partition in _backups(task)]
        if not partitions:
            return {}
        topics = self._admin.describe_topics(
            sorted({partition.topic for partition in partitions}), config=RESTORE_SETTINGS
        )
        starts = of_inputs(self._admin.beginning_offsets, partitions)
        # Stable offsets first: none is then beyond its partition's end, which is read later.
        stable = of_inputs(self._admin.stable_offsets, partitions)
        ends = self._confirmed_ends(tasks, partitions, topics)
        now_ms = self._clock.now_ms()
        return {
            partition: LogFacts(
                topic=topics[partition.topic],
                start=starts[partition],
                end=ends[partition],
                stable=stable[partition],
                now_ms=now_ms,
            )
            for partition in partitions
        }

    def _confirmed_ends(
        self,
        tasks: Sequence[Task],
        partitions: Sequence[TopicPartition],
        topics: Mapping[str, TopicDescription],
    ) -> dict[TopicPartition, int]:
        """Return the ends of the logs; request an end below a store's position again for 10 s.

        A store beyond the log end is emptied for a full restore. But a broker that has not noticed
        its loss of leadership may return too low an end.
        """
        positions = {
            partition: position.offset
            for task in tasks
            for partition, store in task.stores.changelogs.items()
            if (position := task.stores.position(store)) is not None
            and position.topic_id == topics[partition.topic].topic_id
        }
        ends = of_inputs(self._admin.end_offsets, partitions)
        for _ in range(_END_RETRIES):
            short = [
                partition for partition, offset in positions.items() if offset > ends[partition]
            ]
            if not short:
                return ends
            self._pause(_ENDS_PAUSE_S)
            ends |= of_inputs(self._admin.end_offsets, short)
        for partition, offset in positions.items():
            if offset > ends[partition]:
                _log.warning(
                    "%s ends at %d, but this worker's store had come to %d: the brokers have lost records that they had "
                    "acknowledged (an unclean leader election, or a disk). The store is restored from what is left; compare it "
                    "with its input, and see unclean.leader.election.enable and min.insync.replicas",
                    partition,
                    ends[partition],
                    offset,
                )
        return ends

    def check_state(
        self,
        task: Task,
        ends: Mapping[TopicPartition, int],
        starts: Mapping[TopicPartition, StartPosition],
    ) -> None:
        task_starts = {partition: starts[partition] for partition in task.inputs}
        if not task_starts or any(partition.origin.has_past for partition in task_starts.values()):
            return
        check_state(
            task.task_id,
            {partition: start.origin for partition, start in task_starts.items()},
            {partition for partition, start in task_starts.items() if start.committed},
            on_disk=_state_on_disk(task),
            in_changelogs={
                partition: ends[partition]
                for partition in task.stores.changelogs
                # Rows in the changelog of a shard may be those of other shards.
                if partition in ends and partition.shard.is_whole
            },
        )

    def restores(
        self,
        task: Task,
        facts: Mapping[TopicPartition, LogFacts],
        *,
        starts: Mapping[TopicPartition, StartPosition] | None,
        grant: Grant | None,
        complete: bool,
    ) -> list[StoreRestore]:
        """Return the restores of a task whose stores are open.

        Args:
            starts: Start of each input of an active task; None for a copy, like `grant`.
            complete: The stores were open until now, and agree with their positions.
        """
        self._set_slowest_position(task, starts)
        restores: list[StoreRestore] = []
        limits = self._limits(task, starts)
        for partition, store in _backups(task).items():
            about = facts[partition]
            task.stores.topic_ids[partition.topic] = about.topic.topic_id
            source = open_source_restore(task.life, partition) if partition in limits else None
            limit = limits.get(partition)
            if source is not None and grant is None:
                limit = _limit_of_copy(task.stores.position(store), limit, about)
            end = about.end if limit is None else limit
            if partition in limits and limit is None:
                # No offset of the input is committed, so the table has no rows.
                with task.stores.trusted():
                    task.stores.forget(store)
                limit = end = about.start
            elif grant is not None and limit is None:
                end = grant.changelog_end.get(partition.whole, end)
            start, reason = start_of(
                task,
                store,
                about,
                end=max(end, about.end) if limit is None else end,
                extracts=source is not None and source.extracts,
                follows=grant is None,
                open_before=complete,
            )
            _log.log(
                logging.INFO if max(end, about.end) > start else logging.DEBUG,
                "task %s store %s: restoring from %s: %s",
                task.task_id,
                store,
                start,
                reason,
            )
            restores.append(
                StoreRestore(
                    task=task,
                    store=store,
                    partition=partition,
                    start=start,
                    position=start,
                    end=None if grant is None else end,
                    known_ms=about.now_ms,
                    # Compaction stops at the stable offset: a store that is there has missed no
                    # tombstone, so its position may be stored.
                    milestone=min(start, end) if complete else min(end, max(about.stable, start)),
                    limit=limit,
                    source=source,
                )
            )
        return restores

    def explain(self, stalls: Sequence[Stall]) -> list[str]:
        return explained(stalls, self._admin)

    def fix_ends(
        self,
        task: Task,
        entries: Iterable[StoreRestore],
        starts: Mapping[TopicPartition, StartPosition],
        grant: Grant,
    ) -> None:
        self._set_slowest_position(task, starts)
        entries = list(entries)
        limits = self._limits(task, starts)
        unknown = [
            entry.partition
            for entry in entries
            if entry.source is None and entry.partition.whole not in grant.changelog_end
        ]
        ends = of_inputs(self._admin.end_offsets, unknown) if unknown else {}
        now_ms = self._clock.now_ms()
        for entry in entries:
            if entry.source is not None:
                limit = limits[entry.partition]
                entry.end = entry.position if limit is None else limit
            else:
                granted = grant.changelog_end.get(entry.partition.whole)
                entry.end = ends[entry.partition] if granted is None else granted
                entry.milestone, entry.known_ms = entry.end, now_ms

    def _set_slowest_position(
        self, task: Task, starts: Mapping[TopicPartition, StartPosition] | None
    ) -> None:
        """Set the stream time of an active task's slowest key range at its last commit.

        A shard's is needed even without ranges: a snapshot has the rows of shards that are ahead.
        """
        segmented = any(spec.kind in SEGMENTED_KINDS for spec in task.stores.specs.values())
        if starts is not None and segmented:  # rows of other stores do not expire by it
            task.stores.slowest_position_ms = slowest_position_ms(
                [starts[partition].progress for partition in task.inputs],
                self._topology_hash,
                may_part=not task.task_id.shard.is_whole,
            )

    def _limits(
        self, task: Task, starts: Mapping[TopicPartition, StartPosition] | None
    ) -> dict[TopicPartition, int | None]:
        sources = list(_source_stores(task))
        if starts is not None:
            source_starts = {partition: starts[partition] for partition in sources}
            return {
                partition: start.offset if start.committed else None
                for partition, start in source_starts.items()
            }
        committed = self.committed(sources) if sources else {}
        return {partition: committed.get(partition) for partition in sources}


def _state_on_disk(task: Task) -> str:
    for partition, store in _source_stores(task).items():
        position = task.stores.position(store)
        if position is not None and position.offset > 0:
            return f"store {store} on this disk is at offset {position.offset} of {partition}"
    for store in task.stores.specs:
        if task.stores.has_unrestorable_rows(store):
            return f"store {store}, which has no changelog, has rows on this disk"
    return ""


def _may_part(task: Task) -> bool:
    """Return True if the task has expiring rows, and key ranges or other shards may be ahead of it."""
    specs = task.stores.specs.values()
    if not task.task_id.shard.is_whole:
        return any(spec.kind in SEGMENTED_KINDS for spec in specs)
    return any(spec.kept_longer_ms for spec in specs)


def _backups(task: Task) -> dict[TopicPartition, str]:
    return {**task.stores.changelogs, **_source_stores(task)}


def _source_stores(task: Task) -> Mapping[TopicPartition, str]:
    return task.life.source_stores if task.stores.sources else {}


def _limit_of_copy(position: Position | None, committed: int | None, about: LogFacts) -> int | None:
    """Return the offset up to which a copy may apply records of an input; None for no record.

    The store's own position is safe even above the committed offset: a commit stored it.
    """
    if position is None or position.topic_id != about.topic.topic_id:
        return committed
    return max(position.offset, about.start if committed is None else committed)
