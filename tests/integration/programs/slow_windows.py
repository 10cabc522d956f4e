"""A worker that counts in windows, and whose function blocks for the value `HELD`."""

import logging
import sys
import threading
from typing import Any, Final

import msgspec

from tidewheel import (
    KafkaStreams,
    Materialized,
    RunOptions,
    Serdes,
    StreamsBuilder,
    StreamsConfig,
    TimeWindows,
    Topology,
)

WINDOW_MS: Final = 600_000
STORE: Final = "counts"
HELD: Final = "held"


class Orders(msgspec.Struct, kw_only=True):
    source: str
    sink: str
    config: dict[str, Any]
    holds: bool


def topology(orders: Orders) -> Topology:
    """Count per key and tumbling window, without grace and with the shortest retention."""

    def passed(value: str) -> str:
        if orders.holds and value == HELD:
            threading.Event().wait()
        return value

    builder = StreamsBuilder()
    text = Serdes.string()
    stream = builder.stream(orders.source, key_serde=text, value_serde=text).map_values(passed)
    windows = stream.group_by_key().windowed_by(TimeWindows(WINDOW_MS, grace=0))
    counts = windows.count(store=Materialized(STORE, retention=WINDOW_MS))
    counts.to_stream(lambda key, _count: f"{key.key} {key.start}").to(
        orders.sink, key_serde=text, value_serde=Serdes.json()
    )
    return builder.build()


def main(text: str) -> None:
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s.%(msecs)03d %(name)s %(message)s", stream=sys.stderr
    )
    orders = msgspec.json.decode(text, type=Orders)
    config = StreamsConfig(**orders.config)
    KafkaStreams(topology(orders), config, options=RunOptions(fixed=True)).run()


if __name__ == "__main__":
    main(sys.argv[1])
