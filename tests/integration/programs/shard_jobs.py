"""Topologies of kill tests of shards: one store each, every update is an output.

Values are event times in ms as text; the table of the join is the source's name with `-2`.
"""

from collections.abc import Callable
from typing import Any, Final

from tidewheel import Materialized, Serdes, SessionWindows, StreamsBuilder, TimeWindows

STORE: Final = "kept"
WINDOW_MS: Final = 500
GAP_MS: Final = 400
GRACE_MS: Final = 300

_TEXT: Final = Serdes.string()
_TEXTS: Final[dict[str, Any]] = {"key_serde": _TEXT, "value_serde": _TEXT}
_RESULT: Final[dict[str, Any]] = {"key_serde": _TEXT, "value_serde": Serdes.int64()}
#: Longer than the event time of any test.
_RETENTION_MS: Final = 86_400_000


def _event_time(record: Any, _partition_time_ms: int) -> int:
    return int(record.value)


def shard_counts(source: str, sink: str) -> StreamsBuilder:
    builder = StreamsBuilder()
    grouped = builder.stream(source, **_TEXTS).group_by_key()
    grouped.count(store=STORE).to_stream().to(sink, **_RESULT)
    return builder


def _windowed(source: str, sink: str, windows: Any, name: Callable[[Any], str]) -> StreamsBuilder:
    builder = StreamsBuilder()
    grouped = builder.stream(source, timestamp_extractor=_event_time, **_TEXTS).group_by_key()
    counts = grouped.windowed_by(windows).count(store=Materialized(STORE, retention=_RETENTION_MS))
    counts.to_stream(lambda key, _: name(key)).to(sink, **_RESULT)
    return builder


def shard_windows(source: str, sink: str) -> StreamsBuilder:
    windows = TimeWindows(WINDOW_MS, grace=GRACE_MS)
    return _windowed(source, sink, windows, lambda key: f"{key.key}@{key.start}")


def shard_sessions(source: str, sink: str) -> StreamsBuilder:
    sessions = SessionWindows(GAP_MS, grace=GRACE_MS)
    return _windowed(source, sink, sessions, lambda key: f"{key.key}@{key.start}-{key.end}")


def shard_join(source: str, sink: str) -> StreamsBuilder:
    builder = StreamsBuilder()
    table = builder.table(f"{source}-2", store=STORE, **_TEXTS)
    stream = builder.stream(source, **_TEXTS)
    stream.join(table, lambda left, right: f"{left}+{right}").to(sink, **_TEXTS)
    return builder


SHARD_JOBS: Final = (shard_counts, shard_windows, shard_sessions, shard_join)
