"""Quix Streams' program of the suite parallel: a count per key with a blocking call.

Settings without an argument keep Quix Streams' defaults.
"""

import sys
import time
import zlib
from collections.abc import Mapping

# Not installed in the type checker's environment.
from quixstreams import Application, State  # type: ignore[import-not-found]
from throughput import run  # next to this program

WAITS_S = {
    "blocking_10ms": lambda _value: 0.010,
    "sleep_0_5ms": lambda value: zlib.crc32(value) % 5_001 / 1e6,
}


def main(parameters: dict[str, str]) -> None:
    wait_s = WAITS_S[parameters["job"]]

    def count(value: bytes, state: State) -> int:
        seen: int = state.get("count", 0)
        time.sleep(wait_s(value))
        state.set("count", seen + 1)
        return seen + 1

    def with_state(app: Application, names: Mapping[str, str]) -> None:
        source = app.topic(
            names["input_topic"], key_deserializer="bytes", value_deserializer="bytes"
        )
        counts = app.topic(names["output_topic"], key_serializer="bytes", value_serializer="json")
        app.dataframe(source).apply(count, stateful=True).to_topic(counts)

    run(parameters, with_state)


if __name__ == "__main__":
    main(dict(argument.split("=", 1) for argument in sys.argv[1:]))
