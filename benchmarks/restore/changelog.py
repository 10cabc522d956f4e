"""The changelog that every system restores: seeded records, and their expected content."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from typing import Any

from confluent_kafka import Producer

from benchmarks.topics import input_topic
from benchmarks.topics.generator import InputSpec, record_blocks

TIMEOUT_S = 120.0
_DIGEST_MASK = (1 << 64) - 1
#: Headers that Quix Streams writes to each changelog record and needs on reading.
_QUIX_HEADERS = [
    ("__column_family__", b"default"),
    ("__processed_tp_offsets__", b"null"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Expected content of a restored store: number of rows, and the sum of their checksums."""

    rows: int
    digest: int


def digest_of(key: bytes, value: bytes) -> int:
    """Return the checksum of a row; Java's `CRC32` gives the same."""
    return zlib.crc32(key + value)


@cache
def expected_content(spec: InputSpec) -> Content:
    last: dict[bytes, bytes] = {}
    for block in record_blocks(spec):
        last.update(block)
    digest = sum(digest_of(key, value) for key, value in last.items()) & _DIGEST_MASK
    return Content(rows=len(last), digest=digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changelog:
    """Topics of one run of the suite.

    Attributes:
        application_id: Shared by all systems.
        tail: Number of records after the snapshot.
    """

    application_id: str
    spec: InputSpec
    tail: int

    @property
    def input(self) -> str:
        return f"{self.application_id}-in"

    @property
    def topic(self) -> str:
        """Changelog of the store `table`, by the name of Kafka Streams and Tidewheel."""
        return f"{self.application_id}-table-changelog"

    @property
    def quix_topic(self) -> str:
        return f"changelog__{self.application_id}--{self.input}--default"

    def create(self, bootstrap_servers: str) -> None:
        admin = input_topic.quiet_admin(bootstrap_servers)
        for topic in (self.input, self.topic, self.quix_topic):
            input_topic.create_topic(admin, topic, self.spec.partitions)

    def fill(self, bootstrap_servers: str, start: int, stop: int) -> None:
        _fill(bootstrap_servers, self.topic, self._records(start, stop), headers=False)

    def fill_quix(self, bootstrap_servers: str) -> None:
        records = self._records(0, self.spec.records)
        _fill(bootstrap_servers, self.quix_topic, records, headers=True)

    def _records(self, start: int, stop: int) -> Iterator[tuple[bytes, bytes]]:
        return islice(chain.from_iterable(record_blocks(self.spec)), start, stop)


def _fill(
    bootstrap_servers: str, topic: str, records: Iterator[tuple[bytes, bytes]], *, headers: bool
) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "linger.ms": 20,
            "batch.size": 512 * 1024,
            "queue.buffering.max.messages": 500_000,
        }
    )
    more: dict[str, Any] = {"headers": _QUIX_HEADERS} if headers else {}
    for number, (key, value) in enumerate(records):
        while True:
            try:
                producer.produce(topic, value, key, **more)
                break
            except BufferError:  # the client's queue is full: let it send first
                producer.poll(0.05)
        if number % 10_000 == 0:
            producer.poll(0)
    left = producer.flush(TIMEOUT_S)
    if left:
        raise TimeoutError(f"{left} records of {topic} were not delivered in time")
