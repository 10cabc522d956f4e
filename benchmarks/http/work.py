"""One counting application on one topic, for the benchmarks of HTTP."""

import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tidewheel import KafkaStreams, StreamsBuilder, StreamsConfig

KEYS = 10_000
PATIENCE_S = 600.0


def make_topic(servers: str, partitions: int = 2) -> str:
    topic = f"http-bench-{secrets.token_hex(4)}"
    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(60)
    return topic


class Feed:
    """Producer of records with keys from 0 to `KEYS`."""

    def __init__(self, servers: str, topic: str) -> None:
        # Queries find keys where Kafka's own partitioner places them.
        self._producer: Any = Producer(
            {"bootstrap.servers": servers, "linger.ms": 20, "partitioner": "murmur2_random"}
        )
        self._topic = topic
        self._number = 0

    def send(self, count: int) -> None:
        for _ in range(count):
            self._number += 1
            while True:
                try:
                    self._producer.produce(self._topic, b"value", b"%d" % (self._number % KEYS))
                    break
                except BufferError:
                    self._producer.poll(0.1)
        self._producer.poll(0)

    def flush(self) -> None:
        self._producer.flush()


def topology(topic: str) -> StreamsBuilder:
    builder = StreamsBuilder()
    stream = builder.stream(topic, key_serde=str, value_serde=str)
    stream.map_values(str.upper, name="upper").group_by_key().count(store="counts")
    return builder


@contextmanager
def running(servers: str, topic: str, **settings: Any) -> Iterator[KafkaStreams]:
    """Run the application on empty state, from the topic's begin."""
    with tempfile.TemporaryDirectory() as folder:
        config = StreamsConfig(
            application_id=f"http-bench-{secrets.token_hex(4)}",
            bootstrap_servers=servers,
            state_dir=folder,
            task_assignor="fixed",
            statestore_cache_max_bytes=0,
        ).replace(**settings)
        app = KafkaStreams(topology(topic).build(config), config)
        app.start()
        try:
            yield app
        finally:
            app.close()


def wait_for(app: KafkaStreams, records: int) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while app.metrics().get("process-total", 0) < records:
        if app.error is not None or time.monotonic() > until_s:
            raise RuntimeError(f"the application did not process {records} records: {app.error}")
        time.sleep(0.005)
