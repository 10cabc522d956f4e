"""Open transactions that stay: told from those that end within moments, over several looks at the brokers. Pure."""

from collections.abc import Mapping
from typing import Final

from rebalance.model import TopicPartition
from tasks.open_transactions import OpenTransaction

#: A transaction whose partition's last stable offset has not moved for so long stays.
STANDING_S: Final = 5.0


class StandingTransactions:
    """Remembers since when each partition's last stable offset has not moved although its log goes on."""

    def __init__(self) -> None:
        self._since_s: dict[tuple[TopicPartition, int], float] = {}
        self._found: Mapping[TopicPartition, OpenTransaction] = {}
        self._now_s = 0.0

    def note(self, found: Mapping[TopicPartition, OpenTransaction], now_s: float) -> None:
        """Take in what is open now, at a time of a clock that never jumps."""
        self._since_s = {
            (partition, each.start): self._since_s.get((partition, each.start), now_s)
            for partition, each in found.items()
        }
        self._found, self._now_s = found, now_s

    @property
    def standing(self) -> tuple[OpenTransaction, ...]:
        """Return the transactions that stay, in the order of partitions."""
        return tuple(each for _, each in sorted(self._found.items()) if self._stands(each))

    def is_unsure(self, since_s: float) -> bool:
        """Return True if a transaction is open since this time or earlier, but not yet for STANDING_S.

        Later transactions do not count: a busy application always has a new one.
        """
        return any(
            self._since(each) <= since_s and not self._stands(each) for each in self._found.values()
        )

    def _stands(self, each: OpenTransaction) -> bool:
        return self._now_s - self._since(each) >= STANDING_S

    def _since(self, each: OpenTransaction) -> float:
        return self._since_s[each.partition, each.start]
