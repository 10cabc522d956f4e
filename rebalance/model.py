"""Names and values of task placement: which tasks exist, and what a partition is called.

Frozen values only; nothing here does I/O, reads a clock or knows a Kafka client.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

import msgspec

#: Greatest epoch of a task that a commit may bear. Counting reaches it in no lifetime; forged metadata may exceed it.
EPOCH_MAX = 1 << 40

_TASK_ID = re.compile(r"(0|[1-9][0-9]*)_(0|[1-9][0-9]*)")


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TaskId(NamedTuple):
    """A sub-topology and a partition of its source topics; printed as Kafka Streams does: `0_1`.

    A tuple, because deciding for a group is mostly looking up tasks: its hash and order cost no Python.
    """

    subtopology: int
    partition: int

    def __str__(self) -> str:
        return f"{self.subtopology}_{self.partition}"

    @staticmethod
    @lru_cache(maxsize=1 << 16)
    def parse(text: str) -> "TaskId":
        """Return the task id that `text` spells; raises ValueError for anything else.

        Remembered, because a group's few task ids are read in every message.

        >>> TaskId.parse("0_12")
        TaskId(subtopology=0, partition=12)
        """
        match = _TASK_ID.fullmatch(text)
        if match is None:
            raise ValueError(
                f"{text!r} is not a task id; one looks like 0_1 (sub-topology, partition)"
            )
        return TaskId(int(match[1]), int(match[2]))


class TaskRole(StrEnum):
    """What a member does with a task. A learner is a copy that will become the active task; a standby stays a copy."""

    ACTIVE = "active"
    STANDBY = "standby"
    LEARNER = "learner"


class MemberPhase(StrEnum):
    """Where a member's incarnation is in its life, as the group log says.

        JOINING -> ACTIVE -> LEAVING -> GONE
                   ACTIVE, LEAVING, PARKED -> FENCING -> FENCED -> GONE
                   ACTIVE -> PARKED (its version or topology does not fit) -> ACTIVE, GONE

    There is no way back from FENCING: a process that returns is a new incarnation. JOINING is never logged.
    """

    JOINING = "JOINING"
    ACTIVE = "ACTIVE"
    PARKED = "PARKED"
    LEAVING = "LEAVING"
    FENCING = "FENCING"
    FENCED = "FENCED"
    GONE = "GONE"


class TaskPhase(StrEnum):
    """Who may commit for a task, as the group log says.

        UNOWNED --GRANT--> RUNNING --REVOKE--> REVOKING --REVOKED--> RELEASED --GRANT--> RUNNING
                           RUNNING, REVOKING --owner died--> FENCE_WAIT --FENCED--> RELEASED

    A task that a learner is catching up with is RUNNING (its owner notices nothing); `status` calls it WARMING.
    """

    UNOWNED = "UNOWNED"
    RUNNING = "RUNNING"
    REVOKING = "REVOKING"
    FENCE_WAIT = "FENCE_WAIT"
    RELEASED = "RELEASED"


class BootstrapPhase(StrEnum):
    """How far the loading of a store from outside is, as the group log says.

        WRITING --every row is written--> CLOSING --fenced, counted, offsets committed--> over (BOOTSTRAPPED)
        WRITING, CLOSING --the command is run again--> WRITING (another attempt)

    Whoever writes rows makes sure, after it has fenced whoever wrote before, that its own attempt is WRITING; CLOSING is
    logged before all writers are fenced for good. So none that comes late can write into a group that runs.
    """

    WRITING = "WRITING"
    CLOSING = "CLOSING"


class TaskShape(msgspec.Struct, frozen=True, kw_only=True):
    """What placing a task needs to know of it.

    Attributes:
        stateful: Whether it has stores that are restored; only such tasks are worth a learner.
        changelogs: The topics its stores are restored from; the partition is the task's.
    """

    stateful: bool
    changelogs: tuple[str, ...] = ()


#: Offsets by partition, written `topic-partition` so that they are keys of a JSON object.
Positions = Mapping[str, int]


def position_key(partition: TopicPartition) -> str:
    """Return how a partition is written in messages and records.

    >>> position_key(TopicPartition("app-counts-changelog", 3))
    'app-counts-changelog-3'
    """
    return str(partition)


def parse_position_key(text: str) -> TopicPartition:
    """Return the partition that `position_key` wrote; raises ValueError for anything else.

    >>> parse_position_key("app-counts-changelog-3")
    TopicPartition(topic='app-counts-changelog', partition=3)
    """
    topic, separator, partition = text.rpartition("-")
    if not (separator and topic and partition.isdigit()):
        raise ValueError(f"{text!r} is not a partition; one looks like orders-3")
    return TopicPartition(topic, int(partition))
