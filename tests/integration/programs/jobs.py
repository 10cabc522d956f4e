"""Topologies of integration tests, built from topic names."""

from collections.abc import Callable
from typing import Final

from tests.integration.programs import slow_calls
from tests.integration.programs.large_jobs import LARGE_JOBS
from tests.integration.programs.rest_jobs import REST_JOBS
from tests.integration.programs.shard_jobs import SHARD_JOBS
from tests.integration.programs.sink_jobs import SINK_JOBS
from tests.integration.programs.smoke import smoke
from tidewheel import Materialized, Serdes, StreamsBuilder

STORE: Final = "counts"


def count_by_key(source: str, sink: str) -> StreamsBuilder:
    builder = StreamsBuilder()
    (
        builder.stream(source, key_serde=Serdes.string(), value_serde=Serdes.bytes())
        .group_by_key()
        .count(store=STORE)
        .to_stream()
        .to(sink, key_serde=Serdes.string(), value_serde=Serdes.int64())
    )
    return builder


def hold_and_count_by_key(source: str, sink: str) -> StreamsBuilder:
    return _call_and_count_by_key(source, sink, slow_calls.hold_once)


def nap_and_count_by_key(source: str, sink: str) -> StreamsBuilder:
    return _call_and_count_by_key(source, sink, slow_calls.nap_while)


def _call_and_count_by_key(
    source: str, sink: str, function: Callable[[bytes], bytes]
) -> StreamsBuilder:
    builder = StreamsBuilder()
    (
        builder.stream(source, key_serde=Serdes.string(), value_serde=Serdes.bytes())
        .map_values(function)
        .group_by_key(key_serde=Serdes.string(), value_serde=Serdes.bytes())
        .count(store=STORE)
        .to_stream()
        .to(sink, key_serde=Serdes.string(), value_serde=Serdes.int64())
    )
    return builder


def word_count(source: str, sink: str) -> StreamsBuilder:
    builder = StreamsBuilder()
    (
        builder.stream(source, key_serde=Serdes.bytes(), value_serde=Serdes.string())
        .flat_map_values(str.split)
        .group_by(lambda word: word, key_serde=Serdes.string(), value_serde=Serdes.string())
        .count(store=STORE)
        .to_stream()
        .to(sink, key_serde=Serdes.string(), value_serde=Serdes.int64())
    )
    return builder


def count_in_memory(source: str, sink: str) -> StreamsBuilder:
    builder = StreamsBuilder()
    (
        builder.stream(source, key_serde=Serdes.string(), value_serde=Serdes.bytes())
        .group_by_key()
        .count(store=Materialized(STORE, store_type="in_memory"))
        .to_stream()
        .to(sink, key_serde=Serdes.string(), value_serde=Serdes.int64())
    )
    return builder


def copy(source: str, sink: str) -> StreamsBuilder:
    builder = StreamsBuilder()
    (
        builder.stream(source, key_serde=Serdes.bytes(), value_serde=Serdes.bytes()).to(
            sink, key_serde=Serdes.bytes(), value_serde=Serdes.bytes()
        )
    )
    return builder


JOBS: Final[dict[str, Callable[[str, str], StreamsBuilder]]] = {
    job.__name__: job
    for job in (
        count_by_key,
        hold_and_count_by_key,
        nap_and_count_by_key,
        word_count,
        count_in_memory,
        copy,
        smoke,
        *LARGE_JOBS,
        *REST_JOBS,
        *SHARD_JOBS,
        *SINK_JOBS,
        slow_calls.slow_async,
        slow_calls.slow_call,
        slow_calls.slow_holding,
        slow_calls.slow_init,
        slow_calls.slow_punctuation,
        slow_calls.slow_serde,
    )
}
