"""Tidewheel's programs of the suite throughput, in the style of its documentation.

Settings without an argument keep Tidewheel's defaults. With several workers it becomes `tidewheel
run --workers N`, whose workers read job and topics from the environment.
"""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from tidewheel import (
    JoinWindows,
    KafkaStreams,
    KGroupedStream,
    KStream,
    KTable,
    Materialized,
    Serdes,
    SessionWindows,
    StreamsBuilder,
    StreamsConfig,
    TimeWindows,
    Topology,
)


class Event(msgspec.Struct):
    id: int
    user: str
    kind: str
    cents: int
    note: str


class Sale(msgspec.Struct):
    id: int
    kind: str
    cents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    input: str
    output: str
    other: str
    caching: bool

    @property
    def counts(self) -> Materialized:
        return Materialized("counts", caching=self.caching)


def stateless_json(builder: StreamsBuilder, topics: Topics) -> None:
    (
        builder.stream(topics.input, key_serde=Serdes.string(), value_serde=Serdes.json(Event))
        .filter(lambda event: event.cents >= 5_000)
        .map(
            lambda _key, event: (
                event.user,
                Sale(id=event.id, kind=event.kind, cents=event.cents * 119 // 100),
            )
        )
        .to(topics.output, key_serde=Serdes.string(), value_serde=Serdes.json(Sale))
    )


def count_by_key(builder: StreamsBuilder, topics: Topics) -> None:
    counts = _by_key(builder, topics).count(store=topics.counts)
    counts.to_stream().to(topics.output, key_serde=Serdes.string(), value_serde=Serdes.int64())


def tumbling_count(builder: StreamsBuilder, topics: Topics) -> None:
    windowed = _by_key(builder, topics).windowed_by(TimeWindows(60_000))
    counts = windowed.count(store=topics.counts)
    counts.to_stream().to(topics.output, value_serde=Serdes.int64())


def session_count(builder: StreamsBuilder, topics: Topics) -> None:
    """Sessions end after a pause of 20 seconds."""
    windowed = _by_key(builder, topics).windowed_by(SessionWindows(20_000))
    counts = windowed.count(store=topics.counts)
    counts.to_stream().to(topics.output, value_serde=Serdes.int64())


def stream_table_join(builder: StreamsBuilder, topics: Topics) -> None:
    joined = _stream(builder, topics.input).join(_table(builder, topics.other), numbers)
    joined.to(topics.output, key_serde=Serdes.string(), value_serde=Serdes.bytes())


def stream_stream_join(builder: StreamsBuilder, topics: Topics) -> None:
    """Join records of a key that are at most 10 seconds apart."""
    joined = _stream(builder, topics.input).join(
        _stream(builder, topics.other), numbers, within=JoinWindows(10_000, grace=60_000)
    )
    joined.to(topics.output, key_serde=Serdes.string(), value_serde=Serdes.bytes())


def foreign_key_join(builder: StreamsBuilder, topics: Topics) -> None:
    joined = _table(builder, topics.input).join(
        _table(builder, topics.other), numbers, foreign_key=lambda row: row[12:21].decode()
    )
    joined.to_stream().to(topics.output, key_serde=Serdes.string(), value_serde=Serdes.bytes())


def word_count(builder: StreamsBuilder, topics: Topics) -> None:
    (
        builder.stream(topics.input, key_serde=Serdes.bytes(), value_serde=Serdes.string())
        .flat_map_values(str.split)
        .group_by(lambda word: word, key_serde=Serdes.string(), value_serde=Serdes.string())
        .count(store=topics.counts)
        .to_stream()
        .to(topics.output, key_serde=Serdes.string(), value_serde=Serdes.int64())
    )


def numbers(left: bytes, right: bytes) -> bytes:
    return left[:12] + b" " + right[:12]


def _stream(builder: StreamsBuilder, topic: str) -> KStream[str, bytes]:
    return builder.stream(topic, key_serde=Serdes.string(), value_serde=Serdes.bytes())


def _table(builder: StreamsBuilder, topic: str) -> KTable[str, bytes]:
    return builder.table(topic, key_serde=Serdes.string(), value_serde=Serdes.bytes())


def _by_key(builder: StreamsBuilder, topics: Topics) -> KGroupedStream[str, bytes]:
    return _stream(builder, topics.input).group_by_key()


JOBS: Mapping[str, Callable[[StreamsBuilder, Topics], None]] = {
    "stateless_json": stateless_json,
    "count_by_key": count_by_key,
    "count_by_key_hot": count_by_key,
    "count_by_key_large": count_by_key,
    "tumbling_count": tumbling_count,
    "session_count": session_count,
    "stream_table_join": stream_table_join,
    "interleaved_join": stream_table_join,
    "stream_stream_join": stream_stream_join,
    "foreign_key_join": foreign_key_join,
    "word_count": word_count,
}


def topology(parameters: Mapping[str, str]) -> Topology:
    builder = StreamsBuilder()
    topics = Topics(
        input=parameters["input_topic"],
        output=parameters["output_topic"],
        other=parameters.get("other_topic", ""),
        caching=parameters["cache_bytes"] != "0",
    )
    JOBS[parameters["job"]](builder, topics)
    return builder.build()


def topology_of_environment() -> Topology:
    return topology(msgspec.json.decode(os.environ["JOB"], type=dict[str, str]))


def run_workers(parameters: dict[str, str]) -> None:
    settings = {
        "processing_guarantee": parameters["guarantee"],
        "commit_interval_ms": parameters["commit_interval_ms"],
        # Per process; the other systems' settings are per program too.
        "statestore_cache_max_bytes": str(
            int(parameters["cache_bytes"]) // int(parameters["workers"])
        ),
    }
    command = [sys.executable, "-m", "tidewheel", "run", f"{__file__}:topology_of_environment"]
    for name in ("bootstrap_servers", "application_id", "state_dir", "workers"):
        command += [f"--{name.replace('_', '-')}", parameters[name]]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    job = {"JOB": msgspec.json.encode(parameters).decode()}
    os.execve(sys.executable, command, {**os.environ, **job})  # noqa: S606 - our own program


def main(parameters: dict[str, str]) -> None:
    if int(parameters.get("workers", "1")) > 1:
        run_workers(parameters)
    guarantee: Literal["exactly_once", "at_least_once"] = (
        "exactly_once" if parameters["guarantee"] == "exactly_once" else "at_least_once"
    )
    config = StreamsConfig(
        application_id=parameters["application_id"],
        bootstrap_servers=parameters["bootstrap_servers"],
        state_dir=parameters["state_dir"],
        processing_guarantee=guarantee,
        commit_interval_ms=int(parameters["commit_interval_ms"]),
        statestore_cache_max_bytes=int(parameters["cache_bytes"]),
    )
    KafkaStreams(topology(parameters), config).run()


if __name__ == "__main__":
    main(dict(argument.split("=", 1) for argument in sys.argv[1:]))
