"""Restores whose position does not move, and why."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.errors import StreamsError
from tidewheel.tasks.open_transactions import OpenTransaction

#: A restore whose position has not moved for so long is stalled.
STALL_S: Final = 5.0
#: A stall is reported again after this time.
_AGAIN_S: Final = 60.0


class Reach(NamedTuple):
    """The position of a restore, and the end that it reads to."""

    position: int
    end: int


class Stall(NamedTuple):
    """A restore whose position has not moved for `for_s` seconds."""

    partition: TopicPartition
    reach: Reach
    for_s: float


class _Watched(NamedTuple):
    position: int
    since_s: float
    due_s: float


class Stalls:
    """Watches restores; `look` reports each stall once, and again every minute."""

    def __init__(self) -> None:
        self._watched: dict[TopicPartition, _Watched] = {}

    def look(self, reaches: Mapping[TopicPartition, Reach], now_s: float) -> list[Stall]:
        """Return the stalls to report now; partitions that are left out are watched no more."""
        watched: dict[TopicPartition, _Watched] = {}
        due: list[Stall] = []
        for partition, reach in reaches.items():
            if reach.position >= reach.end:
                continue
            before = self._watched.get(partition)
            if before is None or before.position != reach.position:
                before = _Watched(reach.position, now_s, now_s + STALL_S)
            if now_s >= before.due_s:
                due.append(Stall(partition, reach, now_s - before.since_s))
                before = before._replace(due_s=now_s + _AGAIN_S)
            watched[partition] = before
        self._watched = watched
        return due

    def is_stalled(self, partition: TopicPartition, now_s: float) -> bool:
        """Return whether the position of a restore has not moved for long."""
        watched = self._watched.get(partition)
        return watched is not None and now_s - watched.since_s >= STALL_S


class StallsAdmin(Protocol):
    """What explaining stalls asks of the cluster."""

    def open_transactions(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OpenTransaction]:
        """Return the open transaction that the last stable offset waits for, of the partitions where there is one."""
        ...


def explained(stalls: Sequence[Stall], admin: StallsAdmin) -> list[str]:
    """Return why restores do not go on; asks the cluster, and says so where it does not answer."""
    if not stalls:
        return []
    try:
        causes = admin.open_transactions([each.partition for each in stalls])
    except StreamsError as error:
        return [reason_of(each, None, str(error)) for each in stalls]
    return [reason_of(each, causes.get(each.partition)) for each in stalls]


def reason_of(stall: Stall, cause: OpenTransaction | None, problem: str = "") -> str:
    """Return why a restore does not go on, as far as it is known.

    Args:
        stall: The restore.
        cause: The open transaction that it waits for; None if there is none.
        problem: Why the cluster could not be asked; "" if it could.

    >>> stall = Stall(TopicPartition("log", 0), Reach(5, 9), 7.2)
    >>> reason_of(stall, None)
    'no progress for 7 s at offset 5 of log-0, which is to be read to offset 9: look at the brokers'
    """
    at, end = stall.reach
    text = f"no progress for {stall.for_s:.0f} s at offset {at} of {stall.partition}, which is to be read to offset {end}"
    if cause is not None:
        return f"{text}: {cause}"
    if problem:
        return f"{text}; the cluster could not be asked why: {problem}"
    return f"{text}: look at the brokers"
