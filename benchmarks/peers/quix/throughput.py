"""Quix Streams' programs of the suite throughput, in the style of its documentation.

Settings without an argument keep Quix Streams' defaults. It makes a last checkpoint at SIGTERM.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

# Not installed in the type checker's environment.
from quixstreams import Application, State  # type: ignore[import-not-found]


def count(_value: Any, state: State) -> int:
    seen: int = state.get("count", 0) + 1
    state.set("count", seen)
    return seen


def numbers(left: str, right: str) -> str:
    return f"{left[:12]} {right[:12]}"


def stateless_json(app: Application, parameters: Mapping[str, str]) -> None:
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
    _stream(app, parameters).apply(count, stateful=True).to_topic(_counts(app, parameters))


def tumbling_count(app: Application, parameters: Mapping[str, str]) -> None:
    windowed = _stream(app, parameters).tumbling_window(60_000).count().current()
    windowed.to_topic(_counts(app, parameters))


def session_count(app: Application, parameters: Mapping[str, str]) -> None:
    """Sessions end after a pause of 20 seconds."""
    windowed = _stream(app, parameters).session_window(20_000).count().current()
    windowed.to_topic(_counts(app, parameters))


def stream_table_join(app: Application, parameters: Mapping[str, str]) -> None:
    """Join each record with the other topic's value for its key at its time."""
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
