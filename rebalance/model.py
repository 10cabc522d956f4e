"""Identifiers and phases of task placement, as frozen values."""

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple, cast

import msgspec

#: Largest task epoch accepted from a committed offset's metadata; only forged metadata exceeds it.
EPOCH_MAX = 1 << 40

#: Hashes of keys are 32 bits wide.
HASH_END = 1 << 32

#: Maximum shards of one partition.
SHARDS_MAX = 64

_TASK_ID = re.compile(r"(0|[1-9][0-9]*)_(0|[1-9][0-9]*)(?:/(0|[1-9][0-9]?)of([1-9][0-9]?))?")


class Shard(NamedTuple):
    """One of `of` equal intervals of the key hashes of a partition, numbered from 0.

    >>> Shard(1, 4).first_hash, Shard(1, 4).end_hash
    (1073741824, 2147483648)
    """

    number: int = 0
    of: int = 1

    @property
    def first_hash(self) -> int:
        return self.number * (HASH_END // self.of)

    @property
    def end_hash(self) -> int:
        return (self.number + 1) * (HASH_END // self.of)

    @property
    def is_whole(self) -> bool:
        return self.of == 1

    def __str__(self) -> str:
        return f"{self.number}of{self.of}"

    @staticmethod
    def all_of(count: int) -> "tuple[Shard, ...]":
        """Return the shards of a partition; ValueError unless `count` is a power of two up to 64.

        >>> Shard.all_of(2)
        (Shard(number=0, of=2), Shard(number=1, of=2))
        """
        if not 1 <= count <= SHARDS_MAX or count & (count - 1):
            raise ValueError(
                f"a partition has 1, 2, 4, 8, 16, 32 or {SHARDS_MAX} shards, not {count}; one task looks like 0_1/2of4"
            )
        return tuple(Shard(number, count) for number in range(count))


WHOLE = Shard()


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def shard(self) -> Shard:
        return WHOLE

    @property
    def whole(self) -> "TopicPartition":
        return self


class ShardInput(TopicPartition):
    """Input of a shard's task: the records of one partition with the shard's keys.

    Never equal to the partition, so shards of one partition have positions of their own.

    >>> half = ShardInput.of(TopicPartition("orders", 3), Shard(1, 2))
    >>> str(half), half.topic, half.whole == TopicPartition("orders", 3), half == half.whole
    ('orders-3/1of2', 'orders', True, False)
    """

    @staticmethod
    def of(partition: TopicPartition, shard: Shard) -> TopicPartition:
        """Return the input of a shard; for the whole partition, the partition."""
        if shard.is_whole:
            return partition.whole
        return tuple.__new__(ShardInput, (partition.topic, partition.partition, shard))

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}/{self.shard}"

    def __repr__(self) -> str:
        return f"ShardInput({self})"

    @property
    def shard(self) -> Shard:
        (_, _, shard) = cast("tuple[str, int, Shard]", self)
        return shard

    @property
    def whole(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class TaskId(NamedTuple):
    """Task identifier, printed as in Kafka Streams: `0_1`. A task of one shard prints `0_1/2of4`.

    A tuple for speed: its hash and order run in C.
    """

    subtopology: int
    partition: int
    shard: Shard = WHOLE

    def __str__(self) -> str:
        whole = f"{self.subtopology}_{self.partition}"
        return whole if self.shard.is_whole else f"{whole}/{self.shard}"

    def __repr__(self) -> str:
        return f"TaskId.parse({str(self)!r})"

    @property
    def whole(self) -> "TaskId":
        """Return the id of the task that has all shards."""
        return TaskId(self.subtopology, self.partition)

    @staticmethod
    @lru_cache(maxsize=1 << 16)
    def parse(text: str) -> "TaskId":
        """Parse a task id, or raise ValueError; cached, because every message repeats a few ids.

        >>> TaskId.parse("0_12")
        TaskId.parse('0_12')
        >>> TaskId.parse("0_12/1of4").shard
        Shard(number=1, of=4)
        """
        match = _TASK_ID.fullmatch(text)
        if match is None:
            raise ValueError(
                f"{text!r} is not a task id; one looks like 0_1 (sub-topology, partition), or 0_1/2of4"
            )
        if match[4] is None:
            return TaskId(int(match[1]), int(match[2]))
        shard = Shard(int(match[3]), int(match[4]))
        if shard.is_whole or shard not in Shard.all_of(shard.of):
            raise ValueError(f"{text!r} is not a task id; that of a shard looks like 0_1/2of4")
        return TaskId(int(match[1]), int(match[2]), shard)


class TaskRole(StrEnum):
    """Role of a member for a task.

    A learner (warm-up) prepares to become the active task; a standby waits until the owner dies.
    """

    ACTIVE = "active"
    STANDBY = "standby"
    LEARNER = "learner"


class MemberPhase(StrEnum):
    """Phase of an incarnation (one life of a member) in the group log; moves: `MEMBER_MOVES`.

    FENCING is final: its process can only join as a new incarnation. JOINING is never logged.
    """

    JOINING = "JOINING"
    ACTIVE = "ACTIVE"
    PARKED = "PARKED"
    LEAVING = "LEAVING"
    FENCING = "FENCING"
    FENCED = "FENCED"
    GONE = "GONE"


class TaskPhase(StrEnum):
    """Phase of a task in the group log: decides which member can commit; moves: `TASK_MOVES`.

    A task with a learner stays RUNNING; `status` shows WARMING.
    """

    UNOWNED = "UNOWNED"
    RUNNING = "RUNNING"
    REVOKING = "REVOKING"
    FENCE_WAIT = "FENCE_WAIT"
    RELEASED = "RELEASED"


#: Moves of incarnations, with their cause. A member leaves or drains; it died or was replaced.
MEMBER_MOVES: Final[Mapping[MemberPhase, Mapping[MemberPhase, str]]] = {
    MemberPhase.JOINING: {
        MemberPhase.ACTIVE: "joins",
        MemberPhase.PARKED: "newer topology",
    },
    MemberPhase.ACTIVE: {
        MemberPhase.LEAVING: "leaves",
        MemberPhase.FENCING: "died",
    },
    MemberPhase.PARKED: {
        MemberPhase.ACTIVE: "older ones left",
        MemberPhase.LEAVING: "leaves",
        MemberPhase.FENCING: "died",
    },
    MemberPhase.LEAVING: {
        MemberPhase.GONE: "no task left",
        MemberPhase.FENCING: "died",
    },
    MemberPhase.FENCING: {MemberPhase.FENCED: "fenced"},
    MemberPhase.FENCED: {MemberPhase.GONE: "released"},
    MemberPhase.GONE: {},
}

#: Moves of tasks, with the event in the record.
TASK_MOVES: Final[Mapping[TaskPhase, Mapping[TaskPhase, str]]] = {
    TaskPhase.UNOWNED: {TaskPhase.RUNNING: "GRANT"},
    TaskPhase.RUNNING: {TaskPhase.REVOKING: "REVOKE", TaskPhase.FENCE_WAIT: "FENCE_WAIT"},
    TaskPhase.REVOKING: {TaskPhase.RELEASED: "RELEASED", TaskPhase.FENCE_WAIT: "FENCE_WAIT"},
    TaskPhase.FENCE_WAIT: {TaskPhase.RELEASED: "RELEASED"},
    TaskPhase.RELEASED: {TaskPhase.RUNNING: "GRANT"},
}


class BootstrapPhase(StrEnum):
    """Phase of `tidewheel bootstrap`, which loads a store, in the group log.

            WRITING --every row is written--> CLOSING --fenced, counted, offsets committed--> over (BOOTSTRAPPED)
            WRITING, CLOSING --the command is run again--> WRITING (another attempt)

    A writer fences its predecessor, then writes only if its attempt is WRITING. CLOSING is logged
    before the last fence. So a late writer can't write into a running group.
    """

    WRITING = "WRITING"
    CLOSING = "CLOSING"


class TaskShape(msgspec.Struct, frozen=True, kw_only=True):
    stateful: bool  # True if it has stores to restore.
    changelogs: tuple[str, ...] = ()  # Topics; their partition has the task's number.


#: Offsets by partition, as text such as "orders-3": a JSON key can't be a tuple.
Positions = Mapping[str, int]


def position_key(partition: TopicPartition) -> str:
    """Return a partition as a key of `Positions`, which belong to one task.

    >>> position_key(TopicPartition("app-counts-changelog", 3))
    'app-counts-changelog-3'
    """
    return str(partition.whole)


def parse_position_key(text: str) -> TopicPartition:
    """Parse a key of `Positions`, or raise ValueError.

    >>> parse_position_key("app-counts-changelog-3")
    TopicPartition(topic='app-counts-changelog', partition=3)
    """
    topic, separator, partition = text.rpartition("-")
    if not (separator and topic and partition.isdigit()):
        raise ValueError(f"{text!r} is not a partition; one looks like orders-3")
    return TopicPartition(topic, int(partition))
