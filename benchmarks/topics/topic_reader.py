"""Reader of whole topics, committed records only, for checks after a run."""

import time
from collections.abc import Iterable, Iterator
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from benchmarks.environment.peer_process import RunFailedError
from benchmarks.topics.input_topic import quiet_admin

READ_TIMEOUT_S = 30.0
BATCH_RECORDS = 10_000


def partition_count(bootstrap_servers: str, topic: str) -> int:
    consumer = _consumer(bootstrap_servers)
    try:
        found = consumer.list_topics(topic, timeout=READ_TIMEOUT_S).topics[topic]
    finally:
        consumer.close()
    if found.error is not None:
        raise RunFailedError(f"topic {topic} cannot be read: {found.error}")
    return len(found.partitions)


def read_to_end(
    bootstrap_servers: str, topic: str, partitions: Iterable[int]
) -> Iterator[list[Message]]:
    """Yield the committed records of partitions in batches, until their ends.

    Open transactions are waited for: offsets become visible before their records.

    Raises:
        RunFailedError: The broker refuses; the text has its reason.
        TimeoutError: No record came for `READ_TIMEOUT_S` before the end.
    """
    consumer = _consumer(bootstrap_servers)
    try:
        left = _log_ends(bootstrap_servers, topic, partitions)
        consumer.assign(
            [TopicPartition(topic, number, OFFSET_BEGINNING) for number in sorted(left)]
        )
        deadline = time.monotonic() + READ_TIMEOUT_S
        while left:
            # Short: consume() waits for a full batch, also after the end.
            messages = consumer.consume(BATCH_RECORDS, timeout=0.1)
            batch: list[Message] = []
            for message in messages:
                error = message.error()
                if error is None:
                    batch.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its only name
                    partition = message.partition() or 0
                    if (message.offset() or 0) >= left.get(partition, 0):
                        left.pop(partition, None)
                else:
                    raise RunFailedError(f"reading topic {topic} failed: {error}")
            if messages:
                deadline = time.monotonic() + READ_TIMEOUT_S
            elif time.monotonic() > deadline:
                raise TimeoutError(
                    f"topic {topic}, partitions {sorted(left)}: no record and no end within"
                    f" {READ_TIMEOUT_S:.0f} s; look at the broker's log"
                )
            if batch:
                yield batch
    finally:
        consumer.close()


def _log_ends(bootstrap_servers: str, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    admin = quiet_admin(bootstrap_servers)  # must live until its answer
    answers = admin.list_offsets(
        {TopicPartition(topic, partition): latest for partition in partitions},
        isolation_level=IsolationLevel.READ_UNCOMMITTED,
        request_timeout=READ_TIMEOUT_S,
    )
    return {
        each.partition: answer.result(READ_TIMEOUT_S).offset for each, answer in answers.items()
    }


def _consumer(bootstrap_servers: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "bench-reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
