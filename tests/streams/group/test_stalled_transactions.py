"""Stalled transactions versus short ones."""

from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.group.stalled_transactions import StalledTransactions
from tidewheel.tasks.kafka.open_transactions import OpenTransaction

LOG = TopicPartition("orders", 0)


def _open(start: int) -> OpenTransaction:
    return OpenTransaction(partition=LOG, start=start, end=100)


def test_F3_a_transaction_is_stalled_if_its_first_offset_stays_for_seconds() -> None:
    seen = StalledTransactions()
    seen.update({LOG: _open(5)}, 100.0)
    assert seen.is_undecided(100.0)
    assert not seen.stalled
    seen.update({LOG: _open(5)}, 104.9)
    assert not seen.stalled
    seen.update({LOG: _open(5)}, 105.0)
    assert not seen.is_undecided(100.0)
    assert seen.stalled == (_open(5),)


def test_F3_consecutive_transactions_are_not_a_stalled_one() -> None:
    seen = StalledTransactions()
    for second in range(60):
        seen.update({LOG: _open(second)}, float(second))
        assert not seen.stalled
        assert seen.is_undecided(0.0) == (second == 0), "only the first one was open at that time"


def test_F3_an_ended_transaction_is_no_longer_stalled() -> None:
    seen = StalledTransactions()
    seen.update({LOG: _open(5)}, 0.0)
    seen.update({}, 9.0)
    assert not seen.is_undecided(0.0)
    assert not seen.stalled
