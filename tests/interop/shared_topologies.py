"""The applications of `SharedTopics.java` in Python, with equal stores and topics."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidewheel import (
    AggregationWithHeaders,
    BufferConfig,
    JoinWindows,
    Materialized,
    Processor,
    Record,
    Serdes,
    SessionWindows,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    ValueTimestampHeaders,
    Windowed,
)

WINDOW_MS = 10_000
_GRACE_MS = 5_000
KEEPING = ("by-key", "by-window", "by-session")
_TEXT: dict[str, Any] = {"key_serde": str, "value_serde": str}


def _joiner(left: str | None, right: str | None) -> str:
    return "-".join("null" if side is None else side for side in (left, right))


def _counts(builder: StreamsBuilder, prefix: str) -> None:
    by_value = builder.stream(f"{prefix}-left", **_TEXT).group_by(
        lambda value: value, name="by-value", **_TEXT
    )
    counted = by_value.count(store="counts")
    counted.to_stream().to(f"{prefix}-out", key_serde=str, value_serde=int)


def _windows(builder: StreamsBuilder, prefix: str) -> None:
    grouped = builder.stream(f"{prefix}-left", **_TEXT).group_by_key()
    windows = TimeWindows(WINDOW_MS, grace=_GRACE_MS)
    windowed = grouped.windowed_by(windows).count(store="windows")
    keys = Serdes.windowed(str, WINDOW_MS)
    windowed.to_stream().to(f"{prefix}-out", key_serde=keys, value_serde=int)
    closed = Suppressed.until_window_closes(BufferConfig.unbounded())
    final = windowed.suppress(closed, name="final")
    final.to_stream().to(f"{prefix}-final", key_serde=keys, value_serde=int)
    sessions = grouped.windowed_by(SessionWindows(5_000, grace=_GRACE_MS)).count(store="sessions")
    keys = Serdes.session_windowed(str)
    sessions.to_stream().to(f"{prefix}-sessions", key_serde=keys, value_serde=int)


def _stream_join(builder: StreamsBuilder, prefix: str) -> None:
    left, right = (builder.stream(f"{prefix}-{side}", **_TEXT) for side in ("left", "right"))
    within = JoinWindows(before=WINDOW_MS, after=WINDOW_MS, grace=_GRACE_MS)
    joined = left.outer_join(
        right,
        _joiner,
        within=within,
        key_serde=str,
        value_serde=str,
        other_value_serde=str,
        name="join",
        store="join",
    )
    joined.to(f"{prefix}-out", **_TEXT)


def _table_join(builder: StreamsBuilder, prefix: str) -> None:
    left = builder.table(f"{prefix}-left", store="left", **_TEXT)
    right = builder.table(f"{prefix}-right", store="right", **_TEXT)
    by_foreign_key = left.left_join(
        right,
        _joiner,
        foreign_key=lambda value: value[:1],
        store=Materialized("by-foreign-key", value_serde=str),
    )
    by_foreign_key.to_stream().to(f"{prefix}-out", **_TEXT)
    by_key = left.outer_join(right, _joiner, store=Materialized("by-key", value_serde=str))
    by_key.to_stream().to(f"{prefix}-same", **_TEXT)


def _versions(builder: StreamsBuilder, prefix: str) -> None:
    versioned = Materialized("versions", store_type="versioned", history_retention=600_000)
    table = builder.table(f"{prefix}-right", store=versioned, **_TEXT)
    joined = builder.stream(f"{prefix}-left", **_TEXT).left_join(
        table, _joiner, grace=_GRACE_MS, name="join"
    )
    joined.to(f"{prefix}-out", **_TEXT)


class _Before(Processor[str, str, str, str]):
    def process(self, record: Record[str, str]) -> None:
        by_key, by_window, by_session = map(self.context.get_state_store, KEEPING)
        key, start = record.key, record.timestamp // WINDOW_MS * WINDOW_MS
        kept = ValueTimestampHeaders(record.value, record.timestamp, record.headers)
        self._forward(record, by_key.get(key))
        by_key.put(key, kept)
        self._forward(record, by_window.fetch(key, start))
        by_window.put(key, kept, start)
        before: AggregationWithHeaders[str] | None = by_session.fetch_session(key, start, start + 1)
        if before is not None:
            self.context.forward(record.replace(value=before.aggregation, headers=before.headers))
        by_session.put(
            Windowed(key, start, start + 1), AggregationWithHeaders(record.value, record.headers)
        )

    def _forward(self, record: Record[str, str], before: ValueTimestampHeaders[str] | None) -> None:
        if before is not None:
            self.context.forward(Record(record.key, before.value, before.timestamp, before.headers))


def _headers(builder: StreamsBuilder, prefix: str) -> None:
    _versions(builder, prefix)
    stream = builder.stream(f"{prefix}-left", **_TEXT)
    grouped = stream.group_by_key()
    counts = grouped.count(store="counts")
    counts.to_stream().to(f"{prefix}-counts", key_serde=str, value_serde=int)
    windows = grouped.windowed_by(TimeWindows(WINDOW_MS, grace=_GRACE_MS)).count(store="windows")
    keys = Serdes.windowed(str, WINDOW_MS)
    windows.to_stream().to(f"{prefix}-windows", key_serde=keys, value_serde=int)
    by_key, by_window, by_session = KEEPING
    retained: dict[str, Any] = {"retention": 3_600_000, **_TEXT}
    builder.add_state_store(Stores.timestamped_key_value_with_headers(by_key, **_TEXT))
    builder.add_state_store(
        Stores.timestamped_window_with_headers(by_window, window_size=WINDOW_MS, **retained)
    )
    builder.add_state_store(Stores.session_with_headers(by_session, **retained))
    stream.process(_Before, stores=KEEPING).to(f"{prefix}-before", **_TEXT)


TOPOLOGIES: Mapping[str, Callable[[StreamsBuilder, str], None]] = {
    "counts": _counts,
    "windows": _windows,
    "stream_join": _stream_join,
    "table_join": _table_join,
    "versions_and_headers": _headers,
}

TWO_SIDED = frozenset(("stream_join", "table_join", "versions_and_headers"))

#: Two partitions exchange records: intermediate results depend on the order.
TABLES = frozenset(("counts", "table_join"))

OUTPUTS: Mapping[str, Sequence[str]] = {
    "counts": ("out",),
    "windows": ("out", "final", "sessions"),
    "stream_join": ("out",),
    "table_join": ("out", "same"),
    "versions_and_headers": ("out", "counts", "windows", "before"),
}

STORES: Mapping[str, Sequence[str]] = {
    "counts": ("counts",),
    "windows": ("windows", "sessions"),
    "stream_join": (
        "join-outer-this-join-store",
        "join-outer-other-join-store",
        "join-outer-shared-join-store",
    ),
    "table_join": (
        "left",
        "right",
        "KTABLE-FK-JOIN-SUBSCRIPTION-STATE-STORE-0000000008",
        "by-foreign-key",
        "by-key",
    ),
    "versions_and_headers": ("versions", "counts", "windows", *KEEPING),
}
