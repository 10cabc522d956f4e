"""Open transactions in a log: readers can't pass their first record. Pure."""

from typing import Final

import msgspec

from tidewheel.rebalance.model import TopicPartition

#: Coordinator states in which a transaction still ends by itself; in others it hangs.
_ALIVE: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})


class OpenTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """Transaction that blocks a partition's last stable offset.

    Attributes:
        start: Offset of its first record there: the last stable offset.
        end: End of the partition's log.
        servers: Bootstrap servers, for `command`.
        transactional_id, producer_id, producer_epoch: Its producer's; "" or -1 if unknown.
        state: State at its coordinator, such as "Ongoing"; "" if unknown.
        since_ms: Timestamp of its producer's last record there (ms since the epoch); -1 if unknown.
        unknown: Reason why fields are unknown; "" if complete.
    """

    partition: TopicPartition
    start: int
    end: int
    servers: str = ""
    transactional_id: str = ""
    producer_id: int = -1
    producer_epoch: int = -1
    state: str = ""
    since_ms: int = -1
    unknown: str = ""

    @property
    def is_hanging(self) -> bool:
        """Return True if no coordinator will end the transaction: only `command` does."""
        return bool(self.state) and self.state not in _ALIVE

    @property
    def command(self) -> str:
        """Return the shell command that aborts the transaction.

        >>> OpenTransaction(partition=TopicPartition("t", 2), start=7, end=9, servers="broker:9092").command
        'kafka-transactions.sh --bootstrap-server broker:9092 abort --topic t --partition 2 --start-offset 7'
        """
        topic, partition = self.partition
        return (
            f"kafka-transactions.sh --bootstrap-server {self.servers} abort --topic {topic} --partition {partition} "
            f"--start-offset {self.start}"
        )

    @property
    def producer(self) -> str:
        if self.producer_id < 0:
            return f"of a producer that is not known ({self.unknown})"
        name = (
            f"transactional id {self.transactional_id}, "
            if self.transactional_id
            else "a transactional id that no coordinator names, "
        )
        return f"of {name}producer id {self.producer_id}, epoch {self.producer_epoch}"

    def __str__(self) -> str:
        ends = (
            f"its coordinator has it as {self.state}, so it never ends by itself: run `{self.command}`"
            if self.is_hanging
            else "it ends when its producer ends it, or after its transaction.timeout.ms; if its producer is gone and it stays, run "
            f"`{self.command}`"
        )
        return f"an open transaction {self.producer} in {self.partition} holds back offsets {self.start} to {self.end}; {ends}"
