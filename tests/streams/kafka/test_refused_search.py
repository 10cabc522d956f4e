"""The search for refused records, with a cluster played by the test."""

from collections.abc import Sequence

import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st

from streams.errors import StreamsError
from streams.kafka.refused_search import RefusedSearch
from tasks.ports import TransactionAbortedError
from tasks.processing.output import OutputColumns
from tests.fakes.cluster import columns

TOO_LARGE = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
INVALID = KafkaError(KafkaError.INVALID_RECORD)
FORBIDDEN = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)


class PlayedCluster:
    """Takes batches of `batch` records in order, as the real one: a refusal ends the transaction, and the next
    attempt is without answers, because the epoch must be raised first.
    """

    def __init__(self, bad: dict[int, KafkaError], *, batch: int, total_limit: int = 1_000) -> None:
        self.bad = bad
        self.batch = batch
        self.total_limit = total_limit
        self.attempts = 0
        self._raising_epoch = False

    def trial(self, _: OutputColumns, indices: Sequence[int]) -> dict[int, KafkaError | None]:
        self.attempts += 1
        if self._raising_epoch:
            self._raising_epoch = False
            return {}
        answers: dict[int, KafkaError | None] = {}
        for start in range(0, len(indices), self.batch):
            part = indices[start : start + self.batch]
            bad = [self.bad[index] for index in part if index in self.bad]
            if TOO_LARGE in bad or len(part) > self.total_limit:
                answers |= dict.fromkeys(part, TOO_LARGE)
            elif INVALID in bad:
                different = KafkaError(KafkaError._INVALID_DIFFERENT_RECORD)
                answers |= {index: self.bad.get(index, different) for index in part}
            else:
                answers |= {index: self.bad.get(index) for index in part}
            if any(answers[index] is not None for index in part):
                self._raising_epoch = True
                return answers
        return answers


@given(
    st.integers(1, 40).flatmap(
        lambda count: st.tuples(
            st.just(count),
            st.dictionaries(
                st.integers(0, count - 1), st.sampled_from([TOO_LARGE, INVALID]), max_size=4
            ),
            st.integers(1, 12),
        )
    )
)
def test_exactly_the_culprits_are_found(case: tuple[int, dict[int, KafkaError], int]) -> None:
    """Whatever batches they came in."""
    count, bad, batch = case
    records = columns("t", *[b"v"] * count)
    found = RefusedSearch(PlayedCluster(bad, batch=batch), records).run()
    assert [each.index for each in found] == sorted(bad)
    assert all(each.columns is records and not each.retriable for each in found)


def test_good_records_cost_one_attempt() -> None:
    """Only a refusal is expensive."""
    played = PlayedCluster({}, batch=10)
    assert RefusedSearch(played, columns("t", *[b"v"] * 100)).run() == []
    assert played.attempts == 1


def test_a_topic_that_refuses_everything_is_asked_once() -> None:
    """No permission for one record is none for all."""
    played = PlayedCluster({0: FORBIDDEN}, batch=1)
    found = RefusedSearch(played, columns("t", *[b"v"] * 50)).run()
    assert ([each.index for each in found], played.attempts) == (list(range(50)), 1)


def test_batches_that_are_too_large_without_a_culprit_are_an_error_with_the_way_out() -> None:
    """Else the same commit would be refused again and again."""
    played = PlayedCluster({}, batch=50, total_limit=10)
    with pytest.raises(StreamsError, match=r"batch\.size"):
        RefusedSearch(played, columns("t", *[b"v"] * 50)).run()


def test_a_cluster_that_does_not_answer_ends_the_search() -> None:
    """The commit is tried again as a whole later."""

    class Silent(PlayedCluster):
        def trial(self, _: OutputColumns, indices: Sequence[int]) -> dict[int, KafkaError | None]:
            return {}

    with pytest.raises(TransactionAbortedError) as failure:
        RefusedSearch(Silent({}, batch=1), columns("t", b"v")).run()
    assert not failure.value.record_refused
