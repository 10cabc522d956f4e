"""Names and values of task placement: which tasks exist, and what a partition is called.

Frozen values only; nothing here does I/O, reads a clock or knows a Kafka client.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple, Self

_TASK_ID = re.compile(r"(0|[1-9][0-9]*)_(0|[1-9][0-9]*)")


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, order=True)
class TaskId:
    """A sub-topology and a partition of its source topics; printed as Kafka Streams does: `0_1`."""

    subtopology: int
    partition: int

    def __str__(self) -> str:
        return f"{self.subtopology}_{self.partition}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the task id that `text` spells; raises ValueError for anything else.

        >>> TaskId.parse("0_12")
        TaskId(subtopology=0, partition=12)
        """
        match = _TASK_ID.fullmatch(text)
        if match is None:
            raise ValueError(
                f"{text!r} is not a task id; one looks like 0_1 (sub-topology, partition)"
            )
        return cls(int(match[1]), int(match[2]))
