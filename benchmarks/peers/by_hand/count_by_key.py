"""Count by key without a framework, on the same clients and RocksDB.

A yardstick for Python frameworks: columns of whole batches, counts in memory, and one changelog
record and one database row per key and commit. It has no restore, checks or error handling.
"""

import signal
import struct
import sys
import time
from dataclasses import dataclass, field
from itertools import groupby, islice, repeat
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rocksdict import Options, Rdict, WriteBatch, WriteOptions

BATCH_RECORDS = 10_000
TIMEOUT_S = 30
#: Records between two polls of the producer for free space.
CHUNK = 1_000
QUEUED_MAX = 400_000
int64 = struct.Struct(">q").pack


@dataclass(slots=True)
class Stop:
    asked: bool = False

    def ask(self, *_: object) -> None:
        self.asked = True


@dataclass(slots=True)
class Partition:
    database: Any
    offset: int = 0
    counts: dict[bytes, int] = field(default_factory=dict[bytes, int])
    times: dict[bytes, int] = field(default_factory=dict[bytes, int])
    changed: dict[bytes, None] = field(default_factory=dict[bytes, None])

    def count(self, keys: list[bytes], times: list[int]) -> list[bytes]:
        counts, results = self.counts, list[int]()
        for key in keys:
            count = counts[key] = counts.get(key, 0) + 1
            results.append(count)
        self.times.update(zip(keys, times, strict=True))
        self.changed.update(zip(keys, repeat(None)))
        return list(map(int64, results))


class CountByKey:
    def __init__(self, parameters: dict[str, str]) -> None:
        self.exact = parameters["guarantee"] == "exactly_once"
        self.caches = int(parameters["cache_bytes"]) > 0
        self.source, self.target = parameters["input_topic"], parameters["output_topic"]
        name = parameters["application_id"]
        self.changelog = f"{name}-counts-changelog"
        servers = parameters["bootstrap_servers"]
        self.consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "fetch.queue.backoff.ms": 5,
                "group.id": name,
                "enable.auto.commit": False,
            }
        )
        settings: dict[str, str | int | bool] = {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": 2 * QUEUED_MAX,
            "delivery.report.only.error": True,
            "retry.backoff.ms": 5,
        }
        self.producer = Producer(settings | ({"transactional.id": name} if self.exact else {}))
        self.partitions = self._partitions(servers, Path(parameters["state_dir"]))
        if self.exact:
            self.producer.init_transactions(TIMEOUT_S)
            self.producer.begin_transaction()

    def _partitions(self, servers: str, state_dir: Path) -> dict[int, Partition]:
        known = self.consumer.list_topics(self.source, timeout=TIMEOUT_S).topics[self.source]
        numbers = sorted(known.partitions or {})
        admin = AdminClient({"bootstrap.servers": servers})
        made = admin.create_topics([NewTopic(self.changelog, len(numbers), 1)])
        made[self.changelog].result(TIMEOUT_S)
        self.consumer.assign([TopicPartition(self.source, number, 0) for number in numbers])
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        state_dir.mkdir(parents=True, exist_ok=True)
        return {
            number: Partition(Rdict(str(state_dir / str(number)), options)) for number in numbers
        }

    def work(self) -> None:
        messages = self.consumer.consume(BATCH_RECORDS, 0.02)
        for message in filter(Message.error, messages):
            raise RuntimeError(f"reading the input failed: {message.error()}")
        for number, run in groupby(messages, Message.partition):
            records, partition = list(run), self.partitions[number or 0]
            keys: list[Any] = list(map(Message.key, records))
            _: list[Any] = list(map(Message.value, records))  # any program would read them
            times = [time_ms for _, time_ms in map(Message.timestamp, records)]
            values = partition.count(keys, times)
            partition.offset = (records[-1].offset() or 0) + 1
            if not self.caches:
                self._produce(self.target, -1, keys, values, times)

    def _produce(
        self, topic: str, partition: int, keys: list[bytes], values: list[bytes], times: list[int]
    ) -> None:
        produce: Any = self.producer.produce
        rows = zip(values, keys, times, strict=True)
        while chunk := list(islice(rows, CHUNK)):
            while len(self.producer) > QUEUED_MAX:
                self.producer.poll(0.01)
            some, some_keys, some_times = zip(*chunk, strict=True)
            nothing = repeat(None)
            list(
                map(
                    produce, repeat(topic, len(chunk)), some, some_keys, repeat(partition),
                    nothing, nothing, some_times,
                )
            )  # fmt: skip

    def commit(self) -> None:
        batches: list[tuple[Any, Any]] = []
        for number, partition in self.partitions.items():
            keys = sorted(partition.changed)
            partition.changed.clear()
            values = list(map(int64, map(partition.counts.__getitem__, keys)))
            times = list(map(partition.times.__getitem__, keys))
            if self.caches:
                self._produce(self.target, -1, keys, values, times)
            self._produce(self.changelog, number, keys, values, times)
            batch = WriteBatch(raw_mode=True)
            for key, value, time_ms in zip(keys, values, times, strict=True):
                batch.put(key, int64(time_ms) + value)
            batches.append((partition.database, batch))
        offsets = [
            TopicPartition(self.source, number, each.offset)
            for number, each in self.partitions.items()
            if each.offset
        ]
        if self.exact:
            group = self.consumer.consumer_group_metadata()
            self.producer.send_offsets_to_transaction(offsets, group, TIMEOUT_S)
            self.producer.commit_transaction(TIMEOUT_S)
            self.producer.begin_transaction()
        else:
            left = self.producer.flush(TIMEOUT_S)
            if left:
                raise TimeoutError(f"{left} records were not delivered within {TIMEOUT_S} s")
            if offsets:
                self.consumer.commit(offsets=offsets, asynchronous=False)
        options = WriteOptions()
        options.disable_wal = True  # type: ignore[method-assign,assignment] # the stub is wrong; the changelog is the log
        for database, batch in batches:
            database.write(batch, options)

    def close(self) -> None:
        if self.exact:
            self.producer.abort_transaction(TIMEOUT_S)
        self.consumer.close()
        for partition in self.partitions.values():
            partition.database.close()


def main(parameters: dict[str, str]) -> None:
    stop = Stop()
    signal.signal(signal.SIGTERM, stop.ask)
    interval_s = int(parameters["commit_interval_ms"]) / 1000
    program = CountByKey(parameters)
    due_s = time.monotonic() + interval_s
    while not stop.asked:
        program.work()
        if time.monotonic() >= due_s:
            program.commit()
            due_s = time.monotonic() + interval_s
    program.commit()
    program.close()


if __name__ == "__main__":
    main(dict(argument.split("=", 1) for argument in sys.argv[1:]))
