"""The client alone: consume and produce, no state. What a Python program could at most reach.

Arguments are NAME=VALUE pairs, the same for every peer. Every record is written to the output
with its key and value as they came. exactly_once commits the offsets in the transaction of the
outputs; at_least_once flushes and then commits them. Runs until SIGTERM, then commits and ends.
"""

import signal
import sys
import time
from dataclasses import dataclass

from confluent_kafka import Consumer, Message, Producer, TopicPartition

BATCH_RECORDS = 10_000
TIMEOUT_S = 30


@dataclass(slots=True)
class Stop:
    """Set by the signal's handler, read between batches."""

    asked: bool = False

    def ask(self, *_: object) -> None:
        """Ask the loop to end after the batch it is in."""
        self.asked = True


def commit(
    consumer: Consumer, producer: Producer, offsets: dict[int, int], *, topic: str, exact: bool
) -> None:
    """Make what was produced durable, then say how far the input is done."""
    done = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
    if exact:
        group = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction(done, group, TIMEOUT_S)
        producer.commit_transaction(TIMEOUT_S)
        producer.begin_transaction()
        return
    left = producer.flush(TIMEOUT_S)
    if left:
        raise TimeoutError(
            f"{left} records were not delivered within {TIMEOUT_S} s: see the broker"
        )
    consumer.commit(offsets=done, asynchronous=False)


def copy(producer: Producer, messages: list[Message], offsets: dict[int, int], topic: str) -> None:
    """Produce each message's key and value, and remember how far its partition is read."""
    for message in messages:
        error = message.error()
        if error is not None:
            raise RuntimeError(f"reading the input failed: {error}")
        key, value = message.key(), message.value()
        while True:
            try:
                producer.produce(topic, value, key)
                break
            except BufferError:  # the client's queue is full: let it send first
                producer.poll(0.01)
        offsets[message.partition() or 0] = (message.offset() or 0) + 1
    producer.poll(0)


def main(parameters: dict[str, str]) -> None:
    """Copy the input to the output until a signal stops it."""
    stop = Stop()
    signal.signal(signal.SIGTERM, stop.ask)
    exact = parameters["guarantee"] == "exactly_once"
    interval_s = int(parameters["commit_interval_ms"]) / 1000
    servers = parameters["bootstrap_servers"]
    name, source = parameters["application_id"], parameters["input_topic"]
    # fetch.queue.backoff.ms: when its queue is full the client waits this long before it fetches
    # again, by default a second, in which this program would run dry.
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "fetch.queue.backoff.ms": 5,
            "group.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    # retry.backoff.ms: a transaction that follows the last one at once is told to come again,
    # and the default would have it wait 100 ms each time.
    settings: dict[str, str | int | bool] = {
        "bootstrap.servers": servers,
        "enable.idempotence": True,
        "partitioner": "murmur2_random",
        "queue.buffering.max.messages": 200_000,
        "retry.backoff.ms": 5,
    }
    producer = Producer(settings | ({"transactional.id": name} if exact else {}))
    if exact:
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
    consumer.subscribe([source])
    offsets: dict[int, int] = {}
    due = time.monotonic() + interval_s
    while not stop.asked:
        messages = consumer.consume(BATCH_RECORDS, timeout=min(0.05, interval_s / 2))
        copy(producer, messages, offsets, parameters["output_topic"])
        if time.monotonic() >= due:
            if offsets:
                commit(consumer, producer, offsets, topic=source, exact=exact)
                offsets.clear()
            due = time.monotonic() + interval_s
    if offsets:
        commit(consumer, producer, offsets, topic=source, exact=exact)
    if exact:
        producer.abort_transaction(TIMEOUT_S)
    consumer.close()


if __name__ == "__main__":
    main(dict(argument.split("=", 1) for argument in sys.argv[1:]))
