"""Stalled transactions, found by repeated checks; no I/O."""

from collections.abc import Mapping
from typing import Final

from tidewheel.rebalance.model import TopicPartition
from tidewheel.tasks.kafka.open_transactions import OpenTransaction

STALLED_S: Final = 5.0


class StalledTransactions:
    """Open transactions, and since when each blocks its partition's last stable offset."""

    def __init__(self) -> None:
        self._since_s: dict[tuple[TopicPartition, int], float] = {}
        self._open: Mapping[TopicPartition, OpenTransaction] = {}
        self._now_s = 0.0

    def update(self, transactions: Mapping[TopicPartition, OpenTransaction], now_s: float) -> None:
        self._since_s = {
            (partition, transaction.start): self._since_s.get((partition, transaction.start), now_s)
            for partition, transaction in transactions.items()
        }
        self._open, self._now_s = transactions, now_s

    @property
    def stalled(self) -> tuple[OpenTransaction, ...]:
        return tuple(
            transaction
            for _, transaction in sorted(self._open.items())
            if self._is_stalled(transaction)
        )

    def is_undecided(self, since_s: float) -> bool:
        """Return True if a transaction open at `since_s` may still become stalled.

        Later ones do not count: a busy application always has a new one.
        """
        return any(
            self._since(transaction) <= since_s and not self._is_stalled(transaction)
            for transaction in self._open.values()
        )

    def _is_stalled(self, transaction: OpenTransaction) -> bool:
        return self._now_s - self._since(transaction) >= STALLED_S

    def _since(self, transaction: OpenTransaction) -> float:
        return self._since_s[transaction.partition, transaction.start]
