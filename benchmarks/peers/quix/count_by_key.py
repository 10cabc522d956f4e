"""Quix Streams' side of the job count_by_key: the program its documentation would have you write.

Arguments are NAME=VALUE pairs, the same for every peer. Runs until SIGTERM, then stops cleanly
(Quix Streams makes a last checkpoint). It runs in an environment of its own, without Tidewheel.
What no argument names keeps Quix Streams' own default.
"""

import sys
from collections.abc import Callable

# Not installed where our types are checked: it has an environment of its own.
from quixstreams import Application, State  # type: ignore[import-not-found]


def count(_value: bytes, state: State) -> int:
    """Return how often the key was seen, this record included."""
    seen: int = state.get("count", 0) + 1
    state.set("count", seen)
    return seen


def run(parameters: dict[str, str], work: Callable[[bytes, State], int]) -> None:
    """Run an application with one stateful function until a signal stops it."""
    exactly_once = parameters["guarantee"] == "exactly_once"
    app = Application(
        broker_address=parameters["bootstrap_servers"],
        consumer_group=parameters["application_id"],
        processing_guarantee="exactly-once" if exactly_once else "at-least-once",
        commit_interval=int(parameters["commit_interval_ms"]) / 1000,
        state_dir=parameters["state_dir"],
        auto_offset_reset="earliest",
        loglevel="WARNING",
    )
    records = app.topic(
        parameters["input_topic"], key_deserializer="bytes", value_deserializer="bytes"
    )
    counts = app.topic(parameters["output_topic"], key_serializer="bytes", value_serializer="json")
    app.dataframe(records).apply(work, stateful=True).to_topic(counts)
    app.run()


if __name__ == "__main__":
    run(dict(argument.split("=", 1) for argument in sys.argv[1:]), count)
