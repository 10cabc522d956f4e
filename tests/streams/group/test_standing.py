"""Transactions that stay open are told from those that end within moments."""

from rebalance.model import TopicPartition
from streams.group.standing import StandingTransactions
from tasks.open_transactions import OpenTransaction

LOG = TopicPartition("orders", 0)


def _open(start: int) -> OpenTransaction:
    return OpenTransaction(partition=LOG, start=start, end=100)


def test_F3_a_transaction_stands_when_its_first_offset_stays_for_seconds() -> None:
    """What is open now may be an ordinary commit."""
    seen = StandingTransactions()
    seen.note({LOG: _open(5)}, 100.0)
    assert seen.is_unsure(100.0)
    assert not seen.standing
    seen.note({LOG: _open(5)}, 104.9)
    assert not seen.standing
    seen.note({LOG: _open(5)}, 105.0)
    assert not seen.is_unsure(100.0)
    assert seen.standing == (_open(5),)


def test_F3_transactions_that_follow_each_other_are_no_standing_one() -> None:
    """Each begins where the last one ended."""
    seen = StandingTransactions()
    for second in range(60):
        seen.note({LOG: _open(second)}, float(second))
        assert not seen.standing
        assert seen.is_unsure(0.0) == (second == 0), "only the first one was open at that time"


def test_F3_one_that_has_ended_is_forgotten() -> None:
    """Nothing is unsure then."""
    seen = StandingTransactions()
    seen.note({LOG: _open(5)}, 0.0)
    seen.note({}, 9.0)
    assert not seen.is_unsure(0.0)
    assert not seen.standing
