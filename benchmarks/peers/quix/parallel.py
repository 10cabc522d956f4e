"""Quix Streams' side of the suite parallel: a count per key, with a call between read and write that blocks.

Arguments are NAME=VALUE pairs, the same for every peer, and `job`. Runs until SIGTERM, then stops cleanly. It runs in
an environment of its own, without Tidewheel. What no argument names keeps Quix Streams' own default.
"""

import sys
import time
import zlib
from collections.abc import Mapping

# Not installed where our types are checked: it has an environment of its own.
from quixstreams import Application, State  # type: ignore[import-not-found]
from throughput import run  # lies beside this program

WAITS_S = {
    "blocking_10ms": lambda _value: 0.010,
    "sleep_0_5ms": lambda value: zlib.crc32(value) % 5_001 / 1e6,
}


def main(parameters: dict[str, str]) -> None:
    """Run the application until a signal stops it."""
    wait_s = WAITS_S[parameters["job"]]

    def count(value: bytes, state: State) -> int:
        """Return how often the key was seen, this record included."""
        seen: int = state.get("count", 0)
        time.sleep(wait_s(value))
        state.set("count", seen + 1)
        return seen + 1

    def with_state(app: Application, names: Mapping[str, str]) -> None:
        """Read, do the work, write."""
        source = app.topic(
            names["input_topic"], key_deserializer="bytes", value_deserializer="bytes"
        )
        counts = app.topic(names["output_topic"], key_serializer="bytes", value_serializer="json")
        app.dataframe(source).apply(count, stateful=True).to_topic(counts)

    run(parameters, with_state)


if __name__ == "__main__":
    main(dict(argument.split("=", 1) for argument in sys.argv[1:]))
