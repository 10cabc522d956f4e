"""Ends of logs below which no transaction is open."""

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.errors import StreamsError

#: Seconds to wait for the markers of completed transactions.
_PATIENCE_S: Final = 15.0
_PAUSE_S: Final = 0.1


class EndsAdmin(Protocol):
    def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]: ...

    def stable_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]: ...


def stable_ends(
    admin: EndsAdmin,
    partitions: Sequence[TopicPartition],
    *,
    pause: Callable[[float], object] = time.sleep,
) -> dict[TopicPartition, int]:
    """Return each log's end once no transaction is open in it; after 15 s raise `StreamsError`.

    The caller must fence its own writers first, because their transactions may stay open.
    """
    open_: list[str] = []
    for _ in range(round(_PATIENCE_S / _PAUSE_S)):
        ends = admin.end_offsets(partitions)
        stable = admin.stable_offsets(partitions)
        open_ = [
            f"{partition} from offset {stable[partition]} on"
            for partition in partitions
            if stable[partition] < ends[partition]
        ]
        if not open_:
            return ends
        pause(_PAUSE_S)
    raise StreamsError(
        f"a transaction of another program is open in {', '.join(open_)}, so the log's final content is unknown: end it, "
        "which `kafka-transactions.sh abort --topic TOPIC --partition PARTITION --start-offset OFFSET` does where its producer is gone, "
        "and run the command again"
    )
