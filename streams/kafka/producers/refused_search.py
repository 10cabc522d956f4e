"""Search for the records of an aborted transaction that the cluster refuses.

A broker refuses a whole batch for one record. librdkafka gives the batch's error to every record
unless the broker named at least two (KIP-467); the others are then answered
`_INVALID_DIFFERENT_RECORD`. The search sends each record twice, in one batch per partition. The
broker then names bad records twice, and one batch shows exactly the bad ones.

A record counts as refused only if it was refused alone, or if the broker named it and not the
others of its batch. An error of a topic or partition (no permission, no such partition) counts for
all its records.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple, Protocol

from confluent_kafka import KafkaError

from tidewheel.streams.kafka.client.codes import (
    INVALID_DIFFERENT_RECORD,
    NO_PARTITION,
    TOO_LARGE,
    TOPIC_REFUSED,
)
from tidewheel.streams.kafka.client.failures import failed_delivery
from tidewheel.tasks.commit.output_collector import record_bytes
from tidewheel.tasks.kafka.ports import FailedDelivery, TransactionAbortedError
from tidewheel.tasks.processing.engine.output import ANY_PARTITION, OutputColumns

#: The search fails after this many consecutive trials without a new answer. One is normal: after a
#: refusal, the client may need a trial to increase its producer epoch.
_FRUITLESS_TRIALS: Final = 6

#: Most records of a batch. Each is sent twice; the client batches at most 10,000 messages.
_BATCH_RECORDS: Final = 4_000
#: Most bytes of a batch, both copies included. A broker's default limit is 1 MiB.
BATCH_BYTES: Final = 400_000
#: Most bytes of a trial: the client sends five batches before it waits for an answer, and a refusal
#: ends the trial.
_TRIAL_BYTES: Final = 5 * BATCH_BYTES


class Row(NamedTuple):
    part: int
    at: int


class Batch(NamedTuple):
    """Records of one partition for one batch.

    Attributes:
        copies: 2, or 1 for a record sent alone: librdkafka reports which record is bad only if the
            broker names two.
        has_canary: Also sends a harmless record: if the broker names others but not it, the named
            ones are bad. Only for batches that the broker has refused.
    """

    topic: str
    partition: int
    rows: Sequence[Row]
    copies: int
    has_canary: bool = False


class Trial(NamedTuple):
    """Result of sending batches in a transaction.

    Attributes:
        answers: Per batch: error (None: accepted) by index of the row; the canary's is the last.
            Rows without an answer or with a temporary error are missing, to be sent again.
        failure: Error that failed the transaction.
    """

    answers: Sequence[dict[int, KafkaError | None]]
    failure: KafkaError | None


class Trials(Protocol):
    def trial(self, columns: Sequence[OutputColumns], batches: Sequence[Batch], /) -> Trial: ...


@dataclass(slots=True)
class _TopicSizes:
    batch_bytes: int = BATCH_BYTES
    accepted_bytes: int = 0


@dataclass(slots=True)
class _Lane:
    """One partition's records, neither accepted nor refused yet (`open`), in order.

    `alone`: records to send alone next. `unanimous`: records of a completely refused batch, to be
    sent again with a canary.
    """

    topic: str
    partition: int
    open: dict[Row, None] = field(default_factory=dict[Row, None])
    alone: list[Row] = field(default_factory=list[Row])
    unanimous: list[Row] = field(default_factory=list[Row])
    batch_records: int = _BATCH_RECORDS


class RefusedSearch:
    def __init__(self, trials: Trials, columns: Sequence[OutputColumns]) -> None:
        self._trials = trials
        self._columns = columns
        self._refused: dict[Row, KafkaError] = {}
        self._topics = {output.topic: _TopicSizes() for output in columns}
        self._lanes: dict[tuple[str, int], _Lane] = {}
        #: True if the last trial failed for one of several topics: the next has one topic.
        self._one_topic = False
        for number, part in enumerate(columns):
            for index in range(len(part)):
                place = part.topic, _partition_of(part, index)
                lane = self._lanes.get(place)
                if lane is None:
                    lane = self._lanes[place] = _Lane(*place)
                lane.open[Row(number, index)] = None

    @property
    def batch_bytes(self) -> dict[str, int]:
        return {
            name: topic.batch_bytes
            for name, topic in self._topics.items()
            if topic.batch_bytes < BATCH_BYTES
        }

    def run(self) -> list[FailedDelivery]:
        """Return the refused records; raise `TransactionAbortedError` if answers stop."""
        fruitless = 0
        while batches := self._next_batches():
            trial = self._trials.trial(self._columns, batches)
            learned = [
                self._learn(self._lanes[batch.topic, batch.partition], batch, answers)
                for batch, answers in zip(batches, trial.answers, strict=True)
            ]
            topics = sorted({batch.topic for batch in batches})
            if trial.failure is not None and not any(learned):
                learned = [self._learn_of_topics(topics, trial.failure)]
            fruitless = 0 if any(learned) else fruitless + 1
            if fruitless >= _FRUITLESS_TRIALS:
                why = f": {trial.failure.str()}" if trial.failure is not None else ""
                raise TransactionAbortedError(
                    f"can't find the records that are refused, because the cluster gives no answer for topic "
                    f"{', '.join(topics)}{why}"
                )
        return [
            failed_delivery(self._columns[row.part], row.at, error)
            for row, error in sorted(self._refused.items(), key=lambda found: found[0])
        ]

    def _next_batches(self) -> list[Batch]:
        batches: list[Batch] = []
        left_bytes = _TRIAL_BYTES
        for lane in self._lanes.values():
            if not lane.open:
                continue
            if self._one_topic and batches and batches[0].topic != lane.topic:
                continue
            batch, size = self._batch_of(lane)
            if batches and size > left_bytes:
                break
            batches.append(batch)
            left_bytes -= size
        return batches

    def _batch_of(self, lane: _Lane) -> tuple[Batch, int]:
        if lane.alone:
            row = lane.alone[0]
            return Batch(lane.topic, lane.partition, [row], 1), self._bytes(row)
        if lane.unanimous:
            rows = lane.unanimous
            total = 2 * sum(map(self._bytes, rows))
            return Batch(lane.topic, lane.partition, rows, 2, has_canary=True), total
        limit = self._topics[lane.topic].batch_bytes
        rows, total = [], 0
        for row in islice(lane.open, lane.batch_records):
            size = 2 * self._bytes(row)
            if rows and total + size > limit:
                break
            rows.append(row)
            total += size
        copies = 1 if len(rows) == 1 and total > limit else 2
        return Batch(lane.topic, lane.partition, rows, copies), total

    def _bytes(self, row: Row) -> int:
        return record_bytes(self._columns[row.part], row.at)

    def _learn(self, lane: _Lane, batch: Batch, answers: dict[int, KafkaError | None]) -> bool:
        canary = answers.get(len(batch.rows))
        failed: dict[Row, KafkaError] = {}
        accepted: list[Row] = []
        for position, row in enumerate(batch.rows):
            if position in answers:
                error = answers[position]
                if error is None:
                    accepted.append(row)
                else:
                    failed[row] = error
        if answers:
            lane.unanimous = []
        self._accept(lane, accepted)
        if not failed:
            if accepted:
                lane.batch_records = min(2 * lane.batch_records, _BATCH_RECORDS)
            return bool(accepted)
        if len(failed) == 1 and next(iter(failed.values())).code() == INVALID_DIFFERENT_RECORD:
            return bool(accepted)
        self._learn_refused(lane, batch, failed, canary)
        return True

    def _learn_refused(
        self, lane: _Lane, batch: Batch, failed: dict[Row, KafkaError], canary: KafkaError | None
    ) -> None:
        first = next(iter(failed.values()))
        if first.code() in TOPIC_REFUSED:
            lanes = [lane] if first.code() in NO_PARTITION else self._lanes_of([lane.topic])
            self._refuse_lanes(lanes, first)
        elif first.code() in TOO_LARGE:
            self._learn_too_large(lane, batch, failed)
        elif len(failed) == 1:
            self._refuse(lane, failed)
        else:
            self._learn_named(lane, batch, failed, canary)

    def _learn_named(
        self, lane: _Lane, batch: Batch, failed: dict[Row, KafkaError], canary: KafkaError | None
    ) -> None:
        others = [row for row, error in failed.items() if error.code() == INVALID_DIFFERENT_RECORD]
        is_named = canary is not None and canary.code() == INVALID_DIFFERENT_RECORD
        if len(others) < len(failed) and (others or is_named):
            self._accept(lane, others)
            self._refuse(lane, {row: failed[row] for row in failed.keys() - set(others)})
        elif not others and not batch.has_canary and _is_invalid_record(failed):
            lane.unanimous = list(failed)
        else:
            lane.batch_records = len(failed) // 2

    def _learn_too_large(self, lane: _Lane, batch: Batch, failed: dict[Row, KafkaError]) -> None:
        if len(failed) == 1:
            if batch.copies == 1 and not batch.has_canary:
                self._refuse(lane, failed)
            else:
                lane.alone = list(failed)
            return
        topic = self._topics[lane.topic]
        by_size = sorted(failed, key=self._bytes, reverse=True)
        lane.alone = [row for row in by_size if self._bytes(row) > topic.accepted_bytes]
        if not lane.alone:
            topic.batch_bytes = max(sum(map(self._bytes, failed)) * batch.copies // 2, 1)

    def _learn_of_topics(self, topics: Sequence[str], failure: KafkaError) -> bool:
        if failure.code() not in TOPIC_REFUSED:
            return False
        if len(topics) > 1:
            self._one_topic = True
        else:
            self._refuse_lanes(self._lanes_of(topics), failure)
            self._one_topic = False
        return True

    def _accept(self, lane: _Lane, rows: Collection[Row]) -> None:
        topic = self._topics[lane.topic]
        for row in rows:
            lane.open.pop(row, None)
            if row in lane.alone:
                lane.alone = []
                topic.accepted_bytes = max(topic.accepted_bytes, self._bytes(row))

    def _refuse(self, lane: _Lane, errors: dict[Row, KafkaError]) -> None:
        self._refused |= errors
        for row in errors:
            lane.open.pop(row, None)
        lane.alone = [row for row in lane.alone if row not in errors]

    def _lanes_of(self, topics: Collection[str]) -> list[_Lane]:
        return [lane for lane in self._lanes.values() if lane.topic in topics]

    def _refuse_lanes(self, lanes: Sequence[_Lane], error: KafkaError) -> None:
        for lane in lanes:
            self._refuse(lane, dict.fromkeys(lane.open, error))


def _partition_of(columns: OutputColumns, index: int) -> int:
    partitions = columns.partitions
    partition = partitions if isinstance(partitions, int) else partitions[index]
    return 0 if partition == ANY_PARTITION else partition


def _is_invalid_record(failed: dict[Row, KafkaError]) -> bool:
    return all(error.code() == KafkaError.INVALID_RECORD for error in failed.values())
