"""A group member for tests: counts per key, signs each result, and records when tasks worked.

Each task appends to `<folder>/<instance>-<task>.windows` the number of each 250 ms window of
CLOCK_MONOTONIC in which it processed a record.
"""

import logging
import os
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.integration.programs.worker import read_line
from tidewheel import (
    FixedKeyProcessor,
    FixedKeyRecord,
    KafkaStreams,
    Materialized,
    Serdes,
    StreamsBuilder,
    StreamsConfig,
    Topology,
)

WINDOWS_PER_S: Final = 4
STORE: Final = "counts"


class Tap(FixedKeyProcessor[bytes, bytes, bytes]):
    def __init__(self, folder: Path, instance: str) -> None:
        self._folder, self._instance = folder, instance
        self._last = -1
        self._file: Any = None

    def init(self, context: Any) -> None:
        self._context = context
        path = self._folder / f"{self._instance}-{context.task_id}.windows"
        self._file = path.open("a", buffering=1)

    def process(self, record: FixedKeyRecord[bytes, bytes]) -> None:
        window = int(time.monotonic() * WINDOWS_PER_S)
        if window != self._last:
            self._last = window
            self._file.write(f"{window}\n")
        self._context.forward(record)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def topology(source: str, sink: str, folder: Path | None, instance: str) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream(source, key_serde=Serdes.bytes(), value_serde=Serdes.bytes())
    if folder is not None:
        stream = stream.process_values(lambda: Tap(folder, instance))
    (
        stream.group_by_key(key_serde=Serdes.bytes(), value_serde=Serdes.bytes())
        .count(store=Materialized(STORE, caching=False))
        .to_stream()
        .map_values(lambda count: f"{count} {instance}")
        .to(sink, key_serde=Serdes.bytes(), value_serde=Serdes.string())
    )
    return builder.build()


class Orders(msgspec.Struct, kw_only=True):
    folder: str
    instance: str
    source: str
    sink: str
    config: dict[str, Any]
    records_windows: bool = True  # A processor, which keeps partitions whole.


def main() -> None:
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s.%(msecs)03d %(name)s %(message)s",
        datefmt="%H:%M:%S",
    )
    line = read_line()
    if not line:
        return
    orders = msgspec.json.decode(line, type=Orders)
    logging.getLogger("tidewheel").info("instance %s is process %d", orders.instance, os.getpid())
    folder = Path(orders.folder) if orders.records_windows else None
    job = topology(orders.source, orders.sink, folder, orders.instance)
    KafkaStreams(job, StreamsConfig(**orders.config)).run()


if __name__ == "__main__":
    main()
