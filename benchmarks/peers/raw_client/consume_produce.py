"""The plain client: consume and produce in a loop, without state.

With `processes=N`, N of them share the partitions. Each record is written unchanged. exactly_once
commits the offsets in the transaction of the outputs; at_least_once flushes and then commits.
"""

import signal
import subprocess
import sys
import time
from dataclasses import dataclass

from confluent_kafka import Consumer, Message, Producer, TopicPartition

BATCH_RECORDS = 10_000
TIMEOUT_S = 30


@dataclass(slots=True)
class Stop:
    asked: bool = False

    def ask(self, *_: object) -> None:
        self.asked = True


def commit(
    consumer: Consumer, producer: Producer, offsets: dict[int, int], *, topic: str, exact: bool
) -> None:
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


def share_of(consumer: Consumer, topic: str, share: str) -> list[TopicPartition]:
    """Return the partitions of one process; `share` is its number and the total, such as 1/2."""
    number, processes = map(int, share.split("/"))
    partitions = consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
    return [
        TopicPartition(topic, partition)
        for partition in partitions
        if partition % processes == number
    ]


def run_processes(processes: int, arguments: list[str]) -> int:
    """Run this many processes until SIGTERM, or until one ends by itself; return the exit code."""
    end = Stop()
    signal.signal(signal.SIGTERM, end.ask)
    running = [
        subprocess.Popen([sys.executable, __file__, *arguments, f"share={number}/{processes}"])
        for number in range(processes)
    ]
    while not end.asked and all(each.poll() is None for each in running):
        time.sleep(0.05)
    for each in running:
        each.terminate()
    return max(abs(each.wait()) for each in running) or int(not end.asked)


def main(parameters: dict[str, str]) -> None:
    stop = Stop()
    signal.signal(signal.SIGTERM, stop.ask)
    share = parameters.get("share", "")
    exact = parameters["guarantee"] == "exactly_once"
    interval_s = int(parameters["commit_interval_ms"]) / 1000
    servers = parameters["bootstrap_servers"]
    name, source = parameters["application_id"], parameters["input_topic"]
    # fetch.queue.backoff.ms: with a full queue the client waits this long before its next fetch.
    # The default of a second would leave this program without records.
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "fetch.queue.backoff.ms": 5,
            "group.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    # retry.backoff.ms: the broker rejects a transaction that follows the last one immediately. The
    # default would then wait 100 ms each time.
    settings: dict[str, str | int | bool] = {
        "bootstrap.servers": servers,
        "enable.idempotence": True,
        "partitioner": "murmur2_random",
        "queue.buffering.max.messages": 200_000,
        "retry.backoff.ms": 5,
    }
    transactional = {"transactional.id": f"{name}-{share}"} if exact else {}
    producer = Producer(settings | transactional)
    if exact:
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
    if share:
        consumer.assign(share_of(consumer, source, share))
    else:
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
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    together = int(given.pop("processes", "1"))
    if together > 1:
        sys.exit(run_processes(together, [f"{name}={value}" for name, value in given.items()]))
    main(given)
