"""Search for refused records, on a model of the cluster."""

from collections.abc import Sequence

import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.cluster import columns
from tidewheel.streams.kafka.producers.refused_search import (
    BATCH_BYTES,
    Batch,
    RefusedSearch,
    Row,
    Trial,
)
from tidewheel.tasks.commit.output_collector import record_bytes
from tidewheel.tasks.kafka.ports import TransactionAbortedError
from tidewheel.tasks.processing.engine.output import ANY_PARTITION, OutputColumns

TOO_LARGE = KafkaError.MSG_SIZE_TOO_LARGE
INVALID = KafkaError.INVALID_RECORD
TIMESTAMP = KafkaError.INVALID_TIMESTAMP
POLICY = KafkaError.POLICY_VIOLATION
FORBIDDEN = KafkaError.TOPIC_AUTHORIZATION_FAILED
DIFFERENT = KafkaError._INVALID_DIFFERENT_RECORD


class ModelCluster:
    """A broker with librdkafka.

    A batch is accepted or refused as a whole. If the broker names at least two records, the client
    answers the others as different; otherwise all get the batch's error. After a refusal the rest
    of the trial is not answered. An accepted batch after a refusal in its partition fails: its
    sequence number is wrong.
    """

    def __init__(
        self,
        bad: dict[Row, int],
        *,
        names_records: bool = True,
        limit_bytes: int = 1_000_000,
        forbidden: frozenset[str] = frozenset(),
    ) -> None:
        self.bad = bad
        self.names_records = names_records
        self.limit_bytes = limit_bytes
        self.forbidden = forbidden
        self.trials = 0
        self.accepted: set[Row] = set()
        self._gaps: set[tuple[str, int]] = set()

    def trial(self, parts: Sequence[OutputColumns], batches: Sequence[Batch], /) -> Trial:
        self.trials += 1
        answers: list[dict[int, KafkaError | None]] = [{} for _ in batches]
        if self.forbidden.intersection(batch.topic for batch in batches):
            return Trial(answers, KafkaError(FORBIDDEN))
        for batch, answer in zip(batches, answers, strict=True):
            place = batch.topic, batch.partition
            refusal = self._refusal(parts, batch)
            if refusal is not None:
                self._gaps.add(place)
                answer.update(refusal)
                return Trial(answers, next(iter(refusal.values())))
            if place in self._gaps:
                self._gaps.clear()
                return Trial(answers, KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER))
            assert not batch.has_canary, "a canary is never appended"
            self.accepted.update(batch.rows)
            answer.update(dict.fromkeys(range(len(batch.rows))))
        return Trial(answers, None)

    def _refusal(
        self, parts: Sequence[OutputColumns], batch: Batch
    ) -> dict[int, KafkaError] | None:
        size = batch.copies * sum(record_bytes(parts[row.part], row.at) for row in batch.rows)
        errors = {at: self.bad[row] for at, row in enumerate(batch.rows) if row in self.bad}
        count = len(batch.rows) + batch.has_canary
        if size > self.limit_bytes or TOO_LARGE in errors.values():
            return {at: KafkaError(TOO_LARGE) for at in range(count)}
        if not errors:
            return None
        code = next(iter(errors.values()))
        if self.names_records and code != POLICY and len(errors) * batch.copies > 1:
            return {at: KafkaError(INVALID if at in errors else DIFFERENT) for at in range(count)}
        return {at: KafkaError(code) for at in range(count)}


def search(cluster: ModelCluster, *parts: OutputColumns) -> list[tuple[int, int]]:
    found = RefusedSearch(cluster, parts).run()
    assert not any(failure.retriable for failure in found)
    numbers = {id(part): number for number, part in enumerate(parts)}
    return [(numbers[id(failure.columns)], failure.index) for failure in found]


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[OutputColumns], dict[Row, int]]:
    parts: list[OutputColumns] = []
    bad: dict[Row, int] = {}
    for number in range(draw(st.integers(1, 3))):
        count = draw(st.integers(1, 40))
        partitions = draw(
            st.just(ANY_PARTITION) | st.lists(st.integers(0, 2), min_size=count, max_size=count)
        )
        topic = draw(st.sampled_from(["a", "b"]))
        values = [b"v" * (index % 7) for index in range(count)]
        parts.append(columns(topic, *values, partitions=partitions))
        kinds = st.sampled_from([INVALID, TIMESTAMP, POLICY, TOO_LARGE])
        few = draw(st.dictionaries(st.integers(0, count - 1), kinds, max_size=4))
        every = dict.fromkeys(range(count), draw(kinds))
        chosen = draw(st.sampled_from([few, few, few, every]))
        bad |= {Row(number, index): code for index, code in chosen.items()}
    return parts, bad


@given(cases(), st.booleans(), st.sampled_from([1_000_000, 1_500]))
def test_the_search_finds_exactly_the_bad_records(
    case: tuple[list[OutputColumns], dict[Row, int]], names_records: bool, limit_bytes: int
) -> None:
    parts, bad = case
    cluster = ModelCluster(bad, names_records=names_records, limit_bytes=limit_bytes)
    assert search(cluster, *parts) == sorted(bad)
    assert not cluster.accepted & set(bad)


def test_good_records_cost_one_trial() -> None:
    cluster = ModelCluster({})
    assert search(cluster, columns("t", *[b"v"] * 100)) == []
    assert cluster.trials == 1


@pytest.mark.parametrize("code", [INVALID, TIMESTAMP])
@pytest.mark.parametrize("count", [1, 20, 200])
def test_the_bad_records_of_a_batch_cost_few_trials_together(code: int, count: int) -> None:
    cluster = ModelCluster({Row(0, index * 200 // count): code for index in range(count)})
    assert len(search(cluster, columns("t", *[b"v"] * 200))) == count
    assert cluster.trials <= 3


def test_twenty_thousand_records_cost_few_trials() -> None:
    bad = {Row(0, index * 397): INVALID for index in range(50)}
    cluster = ModelCluster(bad)
    assert search(cluster, columns("t", *[b"v"] * 20_000)) == sorted(bad)
    assert cluster.trials < 50


def test_a_bad_record_is_found_without_the_brokers_help() -> None:
    cluster = ModelCluster({Row(0, 1_234): POLICY})
    assert search(cluster, columns("t", *[b"v"] * 4_000)) == [(0, 1_234)]
    assert cluster.trials < 60


def test_a_topic_without_permission_is_found_among_others() -> None:
    parts = [columns(topic, *[b"v"] * 50) for topic in ("a", "secret", "b")]
    cluster = ModelCluster({Row(2, 7): INVALID}, forbidden=frozenset({"secret"}))
    found = search(cluster, *parts)
    assert found == [*((1, index) for index in range(50)), (2, 7)]
    assert cluster.trials <= 8


def test_oversized_batches_without_a_bad_record_determine_the_accepted_size() -> None:
    cluster = ModelCluster({}, limit_bytes=2_000)
    looking = RefusedSearch(cluster, [columns("t", *[b"v"] * 200)])
    assert looking.run() == []
    assert 200 < looking.batch_bytes["t"] <= 2_000
    assert BATCH_BYTES > 2_000


def test_a_cluster_that_does_not_answer_ends_the_search() -> None:
    class Silent(ModelCluster):
        def trial(self, _: Sequence[OutputColumns], batches: Sequence[Batch], /) -> Trial:
            return Trial([{} for _ in batches], None)

    with pytest.raises(TransactionAbortedError) as failure:
        search(Silent({}), columns("t", b"v"))
    assert not failure.value.record_refused
