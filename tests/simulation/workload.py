"""The simulated application: known input and counts, so every output can be checked.

A task's input records are a function of their offsets; it counts them per key. A count that reaches
`FULL` is deleted (tombstone), to expose state that should be gone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.rebalance.protocol.messages import SeenTask
from tidewheel.state_stores.layout.restore import TOMBSTONE_MARGIN_MS

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
    input_key: str
    output_key: str
    changelog_key: str
    stateful: bool


def names_of(task: TaskId) -> TaskNames:
    """Sub-topology 0 has state, 1 has none."""
    partition = TopicPartition(f"in{task.subtopology}", task.partition)
    stateful = task.subtopology == 0
    return TaskNames(
        task=task,
        text=str(task),
        input=partition,
        input_key=str(partition),
        output_key=f"out{task.subtopology}-{task.partition}",
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

    def __init__(self, *, stateful: int, stateless: int, rate_per_s: float, history: int) -> None:
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
        have = sum(each.task.subtopology == subtopology for each in self.names.values())
        for partition in range(have, have + more):
            names = names_of(TaskId(subtopology, partition))
            self.names[names.text] = names
            self.born_ms[names.text] = now_ms

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
                task=each.text,
                stateful=each.stateful,
                changelogs=(CHANGELOG,) if each.stateful else (),
            )
            for each in self.names.values()
        )

    def partitions(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for each in self.names.values():
            counts[each.input.topic] = counts.get(each.input.topic, 0) + 1
        return counts
