"""Ends of logs without open transactions."""

import pytest

from tests.fakes.broker import FakeBroker
from tests.fakes.clients import FakeAdmin
from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.bulk.stable_ends import stable_ends
from tidewheel.streams.errors import StreamsError

LOG = TopicPartition("log", 0)


def _with_open_transaction() -> FakeBroker:
    broker = FakeBroker()
    broker.create_topic("log")
    broker.send("log", b"before")
    broker._append("log", 0, b"k", b"open", 0, (), broker.open_transaction("other"))
    broker.send("log", b"behind")
    return broker


def test_F1_the_end_waits_for_open_transactions() -> None:
    broker = _with_open_transaction()
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            broker.abort("other")

    assert stable_ends(FakeAdmin(broker), [LOG], pause=pause) == {LOG: 4}
    assert len(pauses) == 3


def test_F1_a_transaction_that_stays_open_is_named() -> None:
    admin = FakeAdmin(_with_open_transaction())
    with pytest.raises(StreamsError, match="log-0 from offset 1 on"):
        stable_ends(admin, [LOG], pause=lambda _: None)
