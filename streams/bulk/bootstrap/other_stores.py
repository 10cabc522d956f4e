"""Check of other stores with the same inputs: would the new offsets repeat or skip records?

The group has one offset per input partition, shared by all stores computed from it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.bulk.bootstrap.plan import StoreTarget, upstream_of
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan, changelog_topic
from tidewheel.tasks.kafka.ports import Admin, CommittedOffset
from tidewheel.tasks.kafka.shard_inputs import committed_inputs, of_inputs
from tidewheel.tasks.key_ranges.progress_vector import Progress

#: Returns true if a partition has a record between two offsets (end exclusive).
HasRecords = Callable[[TopicPartition, int, int], bool]

#: Most partitions named in a message.
_NAMED: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherStore:
    """Another store computed from the same inputs; `topics` are those inputs."""

    name: str
    changelog: tuple[TopicPartition, ...]
    topics: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputMove:
    """Move of the committed offset of an input: a partition, or a shard of it.

    Attributes:
        ahead: Offset that the fastest key range has committed; equals `committed` if all are equal.
        is_new: Only other partitions have commits: the group reads this one from its start.
    """

    partition: TopicPartition
    new: int
    committed: int | None
    ahead: int
    start: int
    end: int
    is_new: bool

    @property
    def span(self) -> tuple[int, int]:
        """Return the offsets (start, exclusive end) that would repeat or be skipped.

        >>> where = TopicPartition("orders", 0)
        >>> InputMove(partition=where, new=2, committed=7, ahead=7, start=0, end=9, is_new=False).span
        (2, 7)
        """
        if self.committed is None and not self.is_new:
            return self.start, self.end
        position = self.start if self.committed is None else self.committed
        return max(min(self.new, position), self.start), min(max(self.new, self.ahead), self.end)

    def changes(self, has_records: HasRecords) -> bool:
        """Return true if the span holds a record, not just transaction markers."""
        start, end = self.span
        return start < end and has_records(self.partition.whole, start, end)

    def __str__(self) -> str:
        if self.committed is None:
            return f"{self.partition}: nothing is committed, new {self.new}"
        ahead_text = f" (key ranges up to {self.ahead})" if self.ahead > self.committed else ""
        return f"{self.partition}: committed {self.committed}{ahead_text}, new {self.new}"


def other_stores_of(
    plan: ApplicationPlan, application_id: str, target: StoreTarget
) -> tuple[OtherStore, ...]:
    moved = {partition.topic for partition in (*target.inputs, *target.between)}
    stores: list[OtherStore] = []
    for _, subtopology in sorted(plan.subtopologies.items()):
        read = frozenset(
            t for upstream in upstream_of(plan, subtopology) for t in upstream.topic_partitions
        )
        if not read & moved:
            continue
        for spec in subtopology.spec.stores:
            if not spec.logging or spec.name == target.spec.name:
                continue
            topic = changelog_topic(application_id, spec.name)
            stores.append(
                OtherStore(
                    name=spec.name,
                    changelog=tuple(
                        TopicPartition(topic, n) for n in range(subtopology.partitions)
                    ),
                    topics=read & moved,
                )
            )
    return tuple(stores)


def moves_of(
    new: Mapping[TopicPartition, int],
    committed: Mapping[TopicPartition, CommittedOffset],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> list[InputMove]:
    moves: list[InputMove] = []
    for partition, offset in sorted(new.items()):
        old = committed.get(partition)
        progress = (
            None if old is None else Progress.decode(old.metadata, committed_offset=old.offset)
        )
        ahead = starts[partition] if old is None else old.offset
        moves.append(
            InputMove(
                partition=partition,
                new=offset,
                committed=None if old is None else old.offset,
                ahead=ahead if progress is None else max(ahead, progress.highest_offset),
                start=starts[partition],
                end=ends[partition],
                is_new=old is None and bool(committed),
            )
        )
    return moves


def refusal_of_moves(
    target: StoreTarget, moves: Sequence[InputMove], other_stores: Sequence[OtherStore]
) -> str | None:
    topics = {move.partition.topic for move in moves}
    harmed = [store for store in other_stores if store.topics & topics]
    if not harmed:
        return None
    reached = frozenset[str]().union(*(store.topics for store in harmed))
    moved = [move for move in moves if move.partition.topic in reached]
    more = f"; and {len(moved) - _NAMED} more" if len(moved) > _NAMED else ""
    many = len(harmed) > 1
    inside = {partition.topic for partition in target.between}
    wholes = {move.partition.whole for move in moved}
    committed = {at: [m.committed for m in moved if m.partition.whole == at] for at in wholes}
    can_be_given = all(
        move.committed == move.ahead and move.partition.topic not in inside for move in moved
    ) and all(
        # Shards at several offsets, some of them perhaps not moved, have none for their partition.
        len(offsets) == target.shards.get(at.topic, 1) and len(set(offsets)) == 1
        for at, offsets in committed.items()
    )
    first = (
        "give the offsets that are committed (file:PATH)"
        if can_be_given
        else "run the application until it has processed its input, and give the offsets that are committed then (file:PATH)"
    )
    return (
        f"store{'s' if many else ''} {', '.join(store.name for store in harmed)} {'have' if many else 'has'} content of the same "
        f"input, and would see records again or miss some, because offsets are the whole group's "
        f"({'; '.join(map(str, moved[:_NAMED]))}{more}). Either {first}, or run `tidewheel reset` and load all stores of these "
        "inputs, each with the same explicit offsets"
    )


def find_refusal(
    target: StoreTarget,
    other_stores: Sequence[OtherStore],
    inputs: Mapping[TopicPartition, int],
    admin: Admin,
    has_records: HasRecords,
    *,
    stable: bool,
) -> str | None:
    """Return the reason the group can't resume from `inputs`, or None.

    Repartition topics resume at their ends. `stable` waits for pending offset commits.
    """
    topics = admin.describe_topics(
        sorted(
            {partition.topic for store in other_stores for partition in store.changelog}
            | _topics(target)
        )
    )
    full = [store for store in other_stores if _has_content(store, admin, topics)]
    if not full:
        return None
    between = [partition for partition in target.between if partition.topic in topics]
    tasks = target.inputs_of_tasks([*inputs, *between])
    committed = committed_inputs(admin, target.application_id, tasks, stable=stable)
    starts, ends = of_inputs(admin.beginning_offsets, tasks), of_inputs(admin.end_offsets, tasks)
    new = {at: inputs.get(at.whole, ends[at]) for at in tasks}
    moved = [move for move in moves_of(new, committed, starts, ends) if move.changes(has_records)]
    return refusal_of_moves(target, moved, full)


def _topics(target: StoreTarget) -> set[str]:
    return {partition.topic for partition in target.between}


def _has_content(store: OtherStore, admin: Admin, topics: Mapping[str, object]) -> bool:
    partitions = [partition for partition in store.changelog if partition.topic in topics]
    return admin.beginning_offsets(partitions) != admin.end_offsets(partitions)
