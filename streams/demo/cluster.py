"""The demo's cluster access: topics, loading, progress and results."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import orjson

from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.serdes import Serdes
from tidewheel.tasks.kafka.internal_topics import internal_prefix
from tidewheel.tasks.kafka.ports import Admin, ChangelogReader, NewTopic, SinkProducer
from tidewheel.tasks.processing.engine.output import OutputColumns

_PARTITIONS: Final = 4
#: No retention limit: brokers would delete the demo's records of 2013 as expired.
_NO_RETENTION: Final = {"retention.ms": "-1"}
_READ_RECORDS: Final = 10_000
_READ_WAIT_S: Final = 0.2
#: Reads without a record, together five minutes: brokers of a busy machine answer late.
_IDLE_READS_MAX: Final = 1_500
_INT64: Final = Serdes.int64()
_INT64_BYTES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupProgress:
    done: int
    total: int
    finished: bool


def create_topics(admin: Admin, names: Iterable[str]) -> None:
    topic_names = list(names)
    existing = sorted(set(topic_names).intersection(admin.list_topics()))
    if existing:
        raise StreamsError(
            f"topics {', '.join(existing)} exist already on this cluster, and the demo does not write into topics that it "
            "did not make; use another cluster, or leave --bootstrap-servers out"
        )
    admin.create_topics(
        [NewTopic(name=name, partitions=_PARTITIONS, config=_NO_RETENTION) for name in topic_names]
    )


def wait_for_coordinators(admin: Admin, application_id: str) -> None:
    """Wait until the cluster answers for the group and for transactions.

    A new Kafka creates its offsets topic at the first group request. If that asks for committed
    offsets, librdkafka crashes (issue 5040); a request for members is safe. The first transactional
    id creates a topic of 50 partitions, which takes a busy machine longer than a worker waits.
    """
    admin.group_members(application_id)
    admin.fence([f"{application_id}-ready"])


def load(
    producer: SinkProducer, batches: Iterable[OutputColumns], advance: Callable[[int], None]
) -> int:
    sent = 0
    for batch in batches:
        producer.produce(batch)
        sent += len(batch)
        advance(sent)
    failures = producer.flush()
    if failures:
        raise StreamsError(
            f"{len(failures)} records could not be written to topic {failures[0].columns.topic}: {failures[0].error}"
        )
    return sent


def group_progress(
    admin: Admin, application_id: str, inputs: Mapping[TopicPartition, int]
) -> GroupProgress:
    """Return the number of committed input records.

    `finished`: all of them, and all repartition records, are committed.
    """
    committed = {
        partition: entry.offset
        for partition, entry in admin.committed(application_id, None, stable=False).items()
    }
    done = sum(min(committed.get(partition, 0), end) for partition, end in inputs.items())
    total = sum(inputs.values())
    finished = done == total and _repartitions_finished(admin, application_id, committed)
    return GroupProgress(done=done, total=total, finished=finished)


def _repartitions_finished(
    admin: Admin, application_id: str, committed: Mapping[TopicPartition, int]
) -> bool:
    prefix = internal_prefix(application_id)
    partitions = [
        TopicPartition(topic, partition)
        for topic, count in admin.list_topics().items()
        if topic.startswith(prefix) and topic.endswith("-repartition")
        for partition in range(count)
    ]
    # `end - 1`: a topic's last offset is a transaction marker, which needs no commit.
    ends = admin.end_offsets(partitions)
    return all(committed.get(partition, 0) >= end - 1 for partition, end in ends.items())


def input_ends(admin: Admin, topics: Iterable[str]) -> dict[TopicPartition, int]:
    counts = admin.list_topics()
    partitions = [
        TopicPartition(topic, number) for topic in topics for number in range(counts[topic])
    ]
    return admin.end_offsets(partitions)


def read_newest(
    admin: Admin, make_reader: Callable[[], ChangelogReader], topics: Iterable[str]
) -> dict[str, dict[str, Any]]:
    topic_names = list(topics)
    values: dict[str, dict[str, Any]] = {topic: {} for topic in topic_names}
    ends = {partition: end for partition, end in input_ends(admin, topic_names).items() if end > 0}
    if not ends:
        return values
    with closing(make_reader()) as reader:
        reader.assign(dict.fromkeys(ends, 0))
        idle = 0
        while any(reader.positions().get(partition, 0) < end for partition, end in ends.items()):
            runs = reader.poll(_READ_RECORDS, _READ_WAIT_S)
            idle = 0 if runs else idle + 1
            if idle > _IDLE_READS_MAX:
                raise StreamsError(
                    f"topics {', '.join(topic_names)}: no more records came, though their ends were not reached"
                )
            for run in runs:
                values[run.topic].update(
                    (_text(key), _value(value))
                    for key, value in zip(run.raw_keys, run.raw_values, strict=True)
                )
    return values


def delete_all(admin: Admin, application_id: str, topics: Iterable[str]) -> None:
    prefix = internal_prefix(application_id)
    prefixed = {topic for topic in admin.list_topics() if topic.startswith(prefix)}
    admin.delete_topics(sorted(prefixed.union(topics)))
    admin.delete_group(application_id)


def _text(key: bytes | None) -> str:
    return "" if key is None else key.decode()


def _value(value: bytes | None) -> Any:
    if value is None:
        return None
    if not value.startswith(b"{") and len(value) == _INT64_BYTES:
        return _INT64.deserialize("", value)
    return orjson.loads(value)
