"""The simulated application: known input and counts, so every output can be checked.

A task's input records are a function of their offsets; it counts them per key. The shards of a
partition share its input and its changelog, and commit their offsets to a group each. A count that reaches
`FULL` is deleted (tombstone), to expose state that should be gone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

from tidewheel.rebalance.model import (
    HASH_END,
    Shard,
    ShardInput,
    TaskId,
    TopicPartition,
    position_key,
)
from tidewheel.rebalance.protocol.field_types import ShardCount
from tidewheel.rebalance.protocol.messages import SeenTask
from tidewheel.state_stores.layout.restore import TOMBSTONE_MARGIN_MS
from tidewheel.tasks.kafka import internal_topics

KEYS: Final = 6
FULL: Final = 4

APP: Final = "shop"
TOPIC_ID: Final = bytes(range(16))
TOPOLOGY_HASH: Final = "abcdef01"
ASSIGNOR: Final = "sticky"
CHANGELOG: Final = "shop-counts-changelog"
#: A minute beyond the margin in the code.
TOMBSTONE_RETENTION_MS: Final = TOMBSTONE_MARGIN_MS + 60_000


@dataclass(frozen=True, slots=True)
class TaskNames:
    """One task's partitions, as position keys."""

    task: TaskId
    text: str
    input: TopicPartition
    input_key: str  # In orders, messages and records.
    offset_key: str  # At the broker, with the consumer group.
    output_key: str
    changelog_key: str
    stateful: bool

    def is_own(self, key: int) -> bool:
        """Return True if the key's hash is in the task's shard."""
        return self.task.shard.first_hash <= hash_of(key) < self.task.shard.end_hash


def hash_of(key: int) -> int:
    return key * (HASH_END // KEYS)


def offset_key_of(group: str, partition: TopicPartition) -> str:
    return str(partition) if group == APP else f"{partition}@{group}"


def names_of(task: TaskId) -> TaskNames:
    """Sub-topology 0 has state, 1 has none."""
    partition = TopicPartition(f"in{task.subtopology}", task.partition)
    stateful = task.subtopology == 0
    return TaskNames(
        task=task,
        text=str(task),
        input=ShardInput.of(partition, task.shard),
        input_key=position_key(partition),
        offset_key=offset_key_of(internal_topics.offsets_group(APP, task.shard), partition),
        output_key=f"out{task.subtopology}-{task.partition}"
        + ("" if task.shard.is_whole else f"/{task.shard}"),
        changelog_key=f"{CHANGELOG}-{task.partition}" if stateful else "",
        stateful=stateful,
    )


def key_of(task: TaskId, offset: int) -> int:
    mixed = (offset * 2_654_435_761 + task.partition * 97 + task.subtopology * 31) & 0xFFFFFFFF
    return (mixed >> 9) % KEYS


def counted(store: Mapping[int, int], buffer: Mapping[int, int | None], key: int) -> int:
    before = buffer[key] if key in buffer else store.get(key)
    return (before or 0) + 1


def kept(count: int) -> int | None:
    """Return the stored count; None: deleted."""
    return None if count >= FULL else count


class Workload:
    """The input of one lifetime."""

    def __init__(
        self, *, stateful: int, stateless: int, rate_per_s: float, history: int, shards: int = 1
    ) -> None:
        self.shards = shards  # Of each stateful task.
        self.names: dict[str, TaskNames] = {}  # By task; grows with the topics.
        self.born_ms: dict[str, int] = {}
        self.rate_per_s = rate_per_s  # Records per second and partition until `until_ms`.
        self.history = history  # Records per partition processed before the start.
        self.until_ms = 1 << 60
        self._ends_ms = -1
        self._ends: dict[int, int] = {}
        self.grow(0, stateful, 0)
        self.grow(1, stateless, 0)

    def grow(self, subtopology: int, more: int, now_ms: int) -> None:
        have = self._partitions(subtopology)
        for partition in range(have, have + more):
            for shard in Shard.all_of(1 if subtopology else self.shards):
                names = names_of(TaskId(subtopology, partition, shard))
                self.names[names.text] = names
                self.born_ms[names.text] = now_ms

    def _partitions(self, subtopology: int) -> int:
        numbers = {
            n.task.partition for n in self.names.values() if n.task.subtopology == subtopology
        }
        return len(numbers)

    def input_end(self, task: str, now_ms: int) -> int:
        born_ms = self.born_ms[task]
        at_ms = min(now_ms, self.until_ms)
        if at_ms != self._ends_ms:
            self._ends_ms, self._ends = at_ms, {}
        end = self._ends.get(born_ms)
        if end is None:
            history = self.history if born_ms == 0 else 0
            end = history + int(max(0, at_ms - born_ms) * self.rate_per_s / 1000)
            self._ends[born_ms] = end
        return end

    def seen_tasks(self) -> tuple[SeenTask, ...]:
        return tuple(
            SeenTask(
                task=str(each.task.whole),
                stateful=each.stateful,
                changelogs=(CHANGELOG,) if each.stateful else (),
                shards=cast("ShardCount", each.task.shard.of),
            )
            for each in self.names.values()
            if each.task.shard.number == 0
        )

    def partitions(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for each in self.names.values():
            if each.task.shard.number == 0:
                counts[each.input.topic] = counts.get(each.input.topic, 0) + 1
        return counts
