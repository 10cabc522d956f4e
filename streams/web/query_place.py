"""The process that answered for a partition, as the server writes it and the client reads it."""

from collections.abc import Mapping

import msgspec

from tidewheel.rebalance.model import TaskId


class QueryPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The process that answered for a partition, and the age of its rows.

    Attributes:
        role: "active" for the owner, "standby" or "learner" for a copy, or "global".
        lag: Records that a copy was behind; 0 for the owner.
        position: Offsets of inputs that the rows include, by "topic-partition"; None for a copy.
        server: Address of the process.

    >>> QueryPlace(role="standby", lag=3).lag
    3
    """

    role: str
    lag: int = 0
    position: Mapping[str, int] | None = None
    server: str | None = None


def place_text(task: TaskId) -> str:
    """Return the partition of a task, with its shard if it has not all.

    >>> place_text(TaskId(0, 3)), place_text(TaskId.parse("0_3/1of4"))
    ('3', '3/1of4')
    """
    return str(task).partition("_")[2]
