"""Commits: record errors with offsets in flight, and errors of offsets sent early."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.fakes.cluster import RealCluster
from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.errors import FencedError
from tidewheel.streams.kafka.producers.producer import StuckError, no_wait
from tidewheel.tasks.kafka.ports import (
    CommitOutcomeUnknownError,
    CommittedOffset,
    TransactionAbortedError,
)

LOST = "[thrd:broker/1]: 127.0.0.1:9092/1: Disconnected (after 5ms in state UP)"
FENCED = KafkaException(KafkaError(KafkaError._FENCED, "a newer one", fatal=True))
OFFSETS = {TopicPartition("in", 0): CommittedOffset(1, "")}


class Sending:
    def __init__(self, *, has_succeeded: bool = True, error: Exception | None = None) -> None:
        self.has_succeeded = has_succeeded
        self.error = error
        self.ended = 0

    def end(self, _: float) -> None:
        self.ended += 1
        if self.error is not None:
            raise self.error


class Client:
    def __init__(self, sending: Sending, fate: Callable[[], bool], *, slices: int = 1) -> None:
        self.sending, self.fate, self.slices = sending, fate, slices
        self.calls: list[str] = []

    def named(self, name: str) -> Callable[..., None]:
        return lambda *_: self.calls.append(name)

    def call(self, operation: Callable[..., None], *, deadline_s: float) -> None:
        del deadline_s
        operation()

    def begin_call(self, *_: Any, deadline_s: float) -> Sending:
        del deadline_s
        return self.sending

    def flush(
        self,
        _: float,
        meanwhile: Callable[[], None] = no_wait,
        *,
        is_over: Callable[[], object] = no_wait,
    ) -> bool:
        del is_over
        for _ in range(self.slices):
            meanwhile()
        return self.fate()

    def serve(self, _: float = 0) -> None:
        pass

    def drop(self) -> None:
        pass


def committing(client: Client) -> Any:
    producer: Any = RealCluster("127.0.0.1:9", run_id="nowhere").clients.transactional_producer(
        "id", 30_000
    )
    producer._producer.drop()
    producer._producer, producer._open, producer._groups = client, True, {"group": object()}
    return producer


@pytest.mark.parametrize(("answered", "is_doubt"), [(True, False), (False, True)])
def test_a_lost_connection_before_the_record_answers_is_a_doubt_until_the_offsets_are_answered(
    answered: bool, is_doubt: bool
) -> None:
    def lose() -> bool:
        producer._log.log(20, "%s%s%s", "FAIL", "", LOST)
        return True

    producer = committing(Client(Sending(has_succeeded=answered), lose))
    if is_doubt:
        with pytest.raises(CommitOutcomeUnknownError, match="may arrive late"):
            producer.commit("group", OFFSETS)
    else:
        assert producer.commit("group", OFFSETS) == {}


def test_a_fenced_producer_raises_fenced_error_although_its_offsets_are_stuck() -> None:
    def fence() -> bool:
        raise FENCED

    sending = Sending(has_succeeded=False, error=StuckError())
    producer = committing(Client(sending, fence))
    with pytest.raises(FencedError):
        producer.commit("group", OFFSETS)
    assert sending.ended == 0


def test_records_without_an_answer_in_time_are_aborted_after_the_offsets_call() -> None:
    sending = Sending()
    client = Client(sending, lambda: False)
    producer = committing(client)
    producer._began_s = time.monotonic()
    with pytest.raises(TransactionAbortedError):
        producer.commit("group", OFFSETS)
    assert sending.ended == 1
    assert client.calls == ["abort_transaction"]


def test_offsets_that_are_stuck_end_the_producer() -> None:
    client = Client(Sending(has_succeeded=False, error=StuckError()), lambda: True)
    with pytest.raises(CommitOutcomeUnknownError, match="stuck"):
        committing(client).commit("group", OFFSETS)
    assert client.calls == []


def test_a_commit_does_not_send_the_same_offsets_again() -> None:
    def lose() -> bool:
        producer._log.log(20, "%s%s%s", "FAIL", "", LOST)
        return True

    sending = Sending()
    producer = committing(Client(sending, lose))
    producer.send_offsets("group", OFFSETS)
    assert producer.commit("group", OFFSETS) == {}
    assert sending.ended == 1


def test_a_connection_lost_while_offsets_are_sent_ahead_ends_the_producer() -> None:
    class Losing(Sending):
        def end(self, _: float) -> None:
            producer._log.log(20, "%s%s%s", "FAIL", "", LOST)

    producer = committing(Client(Losing(), lambda: True))
    with pytest.raises(CommitOutcomeUnknownError, match=r"send offsets: .* may arrive late"):
        producer.send_offsets("group", OFFSETS)
    with pytest.raises(CommitOutcomeUnknownError):
        producer.commit("group", OFFSETS)


@pytest.mark.parametrize(
    ("error", "raised", "calls"),
    [
        (FENCED, FencedError, []),
        (StuckError(), CommitOutcomeUnknownError, []),
        (
            KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer")),
            TransactionAbortedError,
            ["abort_transaction"],
        ),
    ],
)
def test_offsets_that_cannot_be_sent_ahead_end_the_transaction(
    error: Exception, raised: type[Exception], calls: list[str]
) -> None:
    client = Client(Sending(has_succeeded=False, error=error), lambda: True)
    producer = committing(client)
    with pytest.raises(raised):
        producer.send_offsets("group", OFFSETS)
    assert client.calls == calls
