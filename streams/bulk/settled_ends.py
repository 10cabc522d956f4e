"""Ends of logs in which nothing is undecided: what is read up to them is all there is."""

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.errors import StreamsError

#: The markers of a transaction that was ended a moment ago are written within this time.
_PATIENCE_S: Final = 15.0
_PAUSE_S: Final = 0.1


class EndsAdmin(Protocol):
    """What is asked of the cluster."""

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end of the log (high watermark) per partition."""
        ...

    def stable_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the last stable offset per partition."""
        ...


def settled_ends(
    admin: EndsAdmin,
    partitions: Sequence[TopicPartition],
    *,
    pause: Callable[[float], object] = time.sleep,
) -> dict[TopicPartition, int]:
    """Return the end of each log, once all below it is decided. Call it when all writers of one's own are fenced.

    Raises:
        StreamsError: A transaction of another program stays open in one of them.
    """
    open_: list[str] = []
    for _ in range(round(_PATIENCE_S / _PAUSE_S)):
        ends = admin.end_offsets(partitions)
        stable = admin.stable_offsets(partitions)
        open_ = [
            f"{each} from offset {stable[each]} on"
            for each in partitions
            if stable[each] < ends[each]
        ]
        if not open_:
            return ends
        pause(_PAUSE_S)
    raise StreamsError(
        f"a transaction of another program is open in {', '.join(open_)}, so nobody can tell what belongs to the log: end it, "
        "which `kafka-transactions.sh abort --topic TOPIC --partition PARTITION --start-offset OFFSET` does where its producer is gone, "
        "and run the command again"
    )
