"""Quix Streams' side of the suite throughput: for each job the program its documentation would have you write.

Arguments are NAME=VALUE pairs, the same for every peer. Runs until SIGTERM, then stops cleanly
(Quix Streams makes a last checkpoint). It runs in an environment of its own, without Tidewheel.
What no argument names keeps Quix Streams' own default.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

# Not installed where our types are checked: it has an environment of its own.
from quixstreams import Application, State  # type: ignore[import-not-found]


def count(_value: Any, state: State) -> int:
    """Return how often the key was seen, this record included."""
    seen: int = state.get("count", 0) + 1
    state.set("count", seen)
    return seen


def numbers(left: str, right: str) -> str:
    """Return what joins make of two values: the numbers they begin with."""
    return f"{left[:12]} {right[:12]}"


def stateless_json(app: Application, parameters: Mapping[str, str]) -> None:
    """Parse, filter, map."""
    events = app.topic(
        parameters["input_topic"], key_deserializer="string", value_deserializer="json"
    )
    sales = app.topic(parameters["output_topic"], key_serializer="string", value_serializer="json")
    (
        app.dataframe(events)
        .filter(lambda event: event["cents"] >= 5_000)
        .apply(
            lambda event: {
                "id": event["id"],
                "user": event["user"],
                "kind": event["kind"],
                "cents": event["cents"] * 119 // 100,
            }
        )
        .to_topic(sales, key=lambda sale: sale["user"])
    )


def count_by_key(app: Application, parameters: Mapping[str, str]) -> None:
    """Count how often each key was seen."""
    _stream(app, parameters).apply(count, stateful=True).to_topic(_counts(app, parameters))


def tumbling_count(app: Application, parameters: Mapping[str, str]) -> None:
    """Count how often each key was seen in each minute."""
    windowed = _stream(app, parameters).tumbling_window(60_000).count().current()
    windowed.to_topic(_counts(app, parameters))


def session_count(app: Application, parameters: Mapping[str, str]) -> None:
    """Count how often each key was seen without a pause of more than 20 seconds."""
    windowed = _stream(app, parameters).session_window(20_000).count().current()
    windowed.to_topic(_counts(app, parameters))


def stream_table_join(app: Application, parameters: Mapping[str, str]) -> None:
    """Join each record with what the other topic had for its key at its time."""
    joined = _texts(app, parameters["input_topic"]).join_asof(
        _texts(app, parameters["other_topic"]), how="inner", on_merge=numbers
    )
    joined.to_topic(_joined(app, parameters))


def stream_stream_join(app: Application, parameters: Mapping[str, str]) -> None:
    """Join records of a key that are at most 10 seconds apart."""
    joined = _texts(app, parameters["input_topic"]).join_interval(
        _texts(app, parameters["other_topic"]),
        how="inner",
        on_merge=numbers,
        backward_ms=10_000,
        forward_ms=10_000,
        grace_ms=60_000,
    )
    joined.to_topic(_joined(app, parameters))


def word_count(app: Application, parameters: Mapping[str, str]) -> None:
    """Count the words of all lines, which are of all partitions."""
    words = _texts(app, parameters["input_topic"]).apply(str.split, expand=True)
    (
        words.group_by(
            lambda word: word,
            name="words",
            key_serializer="string",
            key_deserializer="string",
            value_serializer="string",
            value_deserializer="string",
        )
        .apply(count, stateful=True)
        .to_topic(
            app.topic(parameters["output_topic"], key_serializer="string", value_serializer="json")
        )
    )


def _stream(app: Application, parameters: Mapping[str, str]) -> Any:
    topic = app.topic(
        parameters["input_topic"], key_deserializer="bytes", value_deserializer="bytes"
    )
    return app.dataframe(topic)


def _texts(app: Application, topic: str) -> Any:
    return app.dataframe(app.topic(topic, key_deserializer="string", value_deserializer="string"))


def _counts(app: Application, parameters: Mapping[str, str]) -> Any:
    return app.topic(parameters["output_topic"], key_serializer="bytes", value_serializer="json")


def _joined(app: Application, parameters: Mapping[str, str]) -> Any:
    return app.topic(parameters["output_topic"], key_serializer="string", value_serializer="string")


JOBS: Mapping[str, Callable[[Application, Mapping[str, str]], None]] = {
    "stateless_json": stateless_json,
    "count_by_key": count_by_key,
    "count_by_key_hot": count_by_key,
    "count_by_key_large": count_by_key,
    "tumbling_count": tumbling_count,
    "session_count": session_count,
    "stream_table_join": stream_table_join,
    "stream_stream_join": stream_stream_join,
    "word_count": word_count,
}


def run(
    parameters: Mapping[str, str], job: Callable[[Application, Mapping[str, str]], None]
) -> None:
    """Run an application with one job until a signal stops it."""
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
    job(app, parameters)
    app.run()


if __name__ == "__main__":
    arguments = dict(argument.split("=", 1) for argument in sys.argv[1:])
    run(arguments, JOBS[arguments["job"]])
