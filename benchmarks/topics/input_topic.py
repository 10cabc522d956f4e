"""Input topics, filled with seeded records before the measurement."""

import time
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.jobs.contents import input_blocks
from benchmarks.topics.generator import InputSpec

if TYPE_CHECKING:
    from concurrent.futures import Future

TIMEOUT_S = 30.0
ERRORS_ONLY = 3  # syslog's numbers, as librdkafka has them


class TopicError(Exception):
    pass


def ensure_input(bootstrap_servers: str, spec: InputSpec) -> None:
    admin = quiet_admin(bootstrap_servers)
    if spec.topic in admin.list_topics(timeout=TIMEOUT_S).topics:
        if record_count(bootstrap_servers, spec.topic, spec.partitions) == spec.records:
            return
        delete_topics(admin, [spec.topic])  # an interrupted filling
    create_topic(admin, spec.topic, spec.partitions)
    started = time.monotonic()
    _fill(bootstrap_servers, spec)
    found = record_count(bootstrap_servers, spec.topic, spec.partitions)
    if found != spec.records:
        raise TopicError(
            f"{spec.topic} has {found} records instead of {spec.records} after it was filled: does somebody else write to it?"
        )
    print(f"filled {spec.topic} in {time.monotonic() - started:.0f} s", flush=True)


def quiet_admin(bootstrap_servers: str) -> AdminClient:
    """Return an admin client that logs errors only: other lines would disturb the progress bar."""
    return AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": ERRORS_ONLY})


def record_count(bootstrap_servers: str, topic: str, partitions: int) -> int:
    """Return the number of used offsets of a topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "bench-reader"})
    try:
        total = 0
        for partition in range(partitions):
            place = TopicPartition(topic, partition)
            marks = consumer.get_watermark_offsets(place, timeout=TIMEOUT_S)
            if marks is None:
                raise TimeoutError(f"{topic} partition {partition}: no end offset came in time")
            total += marks[1] - marks[0]
        return total
    finally:
        consumer.close()


def create_topic(admin: AdminClient, topic: str, partitions: int) -> None:
    """Create a topic that keeps its records; wait while an old one of the name is deleted."""
    config = {"retention.ms": "-1"}
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        new = NewTopic(topic, num_partitions=partitions, config=config)
        created: Future[None] = admin.create_topics([new])[topic]
        try:
            created.result(TIMEOUT_S)
        except KafkaException as error:
            exists = error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
            if not exists or time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


def delete_topics(admin: AdminClient, topics: list[str]) -> None:
    """Delete topics, and wait until the broker no longer lists them.

    The controller answers once it has stored the deletion; the broker's metadata follow later.
    """
    if not topics:
        return
    for topic, deleted in admin.delete_topics(topics).items():
        try:
            deleted.result(TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise TopicError(f"topic {topic} could not be deleted: {error}") from error
    deadline = time.monotonic() + TIMEOUT_S
    while left := admin.list_topics(timeout=TIMEOUT_S).topics.keys() & set(topics):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{sorted(left)}: deleted, but still listed after {TIMEOUT_S} s")
        time.sleep(0.1)


def _fill(bootstrap_servers: str, spec: InputSpec) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "log_level": ERRORS_ONLY,
            "enable.idempotence": True,  # in order and once: every filling is the same
            "partitioner": "murmur2_random",
            "linger.ms": 20,
            "batch.size": 512 * 1024,
            "queue.buffering.max.messages": 500_000,
        }
    )
    for block in input_blocks(spec):
        for key, value, timestamp_ms, partition in block:
            while True:
                try:
                    producer.produce(spec.topic, value, key, partition, timestamp=timestamp_ms)
                    break
                except BufferError:  # the client's queue is full: let it send first
                    producer.poll(0.05)
        producer.poll(0)
    left = producer.flush(TIMEOUT_S)
    if left:
        raise TimeoutError(f"{left} records of {spec.topic} were not delivered in time")
