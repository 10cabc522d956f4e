from datetime import timedelta
from typing import Any

import pytest

from tidewheel import (
    BufferConfig,
    KTable,
    Materialized,
    StreamsBuilder,
    StreamsConfig,
    Suppressed,
    TopologyError,
)
from tidewheel.streams.windows import (
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    UnlimitedWindows,
)

TEXT: dict[str, Any] = {"key_serde": str, "value_serde": str}
UNBOUNDED = BufferConfig.unbounded()


def counted(builder: StreamsBuilder) -> KTable[str, int]:
    return builder.stream("input", **TEXT).group_by_key().count()


def test_a_buffer_has_limits_and_one_action_when_full() -> None:
    """As in Kafka Streams, limited buffers emit early by default."""
    assert BufferConfig(None, None, emits_early=False) == UNBOUNDED
    assert BufferConfig.max_records(5) == BufferConfig(5, None, emits_early=True)
    assert BufferConfig.max_bytes(5) == BufferConfig(None, 5, emits_early=True)
    assert BufferConfig.max_records(1).with_max_bytes(2).shut_down_when_full() == (
        BufferConfig.max_bytes(2).shut_down_when_full().with_max_records(1)
    )
    assert UNBOUNDED.with_max_records(3).emit_early_when_full() == BufferConfig.max_records(3)


@pytest.mark.parametrize("limit", [-1, 1.5, True, None, "3"])
def test_a_limit_is_a_whole_number(limit: Any) -> None:
    for call in (BufferConfig.max_records, UNBOUNDED.with_max_bytes):
        with pytest.raises(TopologyError, match=r"test_suppressed.py:\d+\): .* is no limit"):
            call(limit)


def test_suppressed_has_a_time_limit_or_final_results() -> None:
    assert Suppressed.until_time_limit(timedelta(seconds=2), UNBOUNDED).limit_ms == 2_000
    assert Suppressed.until_time_limit(None, BufferConfig.max_records(1)).limit_ms is None
    assert Suppressed.until_window_closes(UNBOUNDED.with_max_records(2)).final


def test_final_results_are_not_emitted_early() -> None:
    early: Any = BufferConfig.max_records(1)
    with pytest.raises(TopologyError, match=r"until_window_closes .*add \.shut_down_when_full"):
        Suppressed.until_window_closes(early)
    strict = BufferConfig.max_records(1).shut_down_when_full()
    assert Suppressed.until_window_closes(strict).buffer == strict


def test_arguments_of_other_types_are_refused() -> None:
    wrong: Any = 5
    with pytest.raises(TopologyError, match="buffer is of type int; give a BufferConfig"):
        Suppressed.until_time_limit(1, wrong)
    with pytest.raises(TopologyError, match=r"until_time_limit .*: duration=-1 is too short"):
        Suppressed.until_time_limit(-1, UNBOUNDED)
    with pytest.raises(TopologyError, match=r"suppress \(.*suppressed is of type int"):
        counted(StreamsBuilder()).suppress(wrong)


@pytest.mark.parametrize(
    ("name", "node", "store", "after"),
    [
        (None, "KTABLE-SUPPRESS-0000000003", "KTABLE-SUPPRESS-STATE-STORE-0000000004", 5),
        ("asdf", "asdf", "asdf-store", 3),
    ],
)
def test_suppress_is_described_as_in_kafka_streams(
    name: str | None, node: str, store: str, after: int
) -> None:
    builder = StreamsBuilder()
    table = counted(builder).suppress(Suppressed.until_time_limit(1_000, UNBOUNDED), name=name)
    table.to_stream().to("output")
    assert table.queryable_store_name is None
    aggregate = "KSTREAM-AGGREGATE-0000000002"
    assert (
        str(builder.build().describe())
        == f"""Topologies:
   Sub-topology: 0
    Source: KSTREAM-SOURCE-0000000000 (topics: [input])
      --> {aggregate}
    Processor: {aggregate} (stores: [KSTREAM-AGGREGATE-STATE-STORE-0000000001])
      --> {node}
      <-- KSTREAM-SOURCE-0000000000
    Processor: {node} (stores: [{store}])
      --> KTABLE-TOSTREAM-{after:010d}
      <-- {aggregate}
    Processor: KTABLE-TOSTREAM-{after:010d} (stores: [])
      --> KSTREAM-SINK-{after + 1:010d}
      <-- {node}
    Sink: KSTREAM-SINK-{after + 1:010d} (topic: output)
      <-- KTABLE-TOSTREAM-{after:010d}

"""
    )


def test_explicit_naming_finds_the_suppression_store() -> None:
    config = StreamsConfig(
        application_id="t", bootstrap_servers="unused:9092", ensure_explicit_naming=True
    )
    builder = StreamsBuilder()
    table = builder.table("input", store="table", **TEXT)
    table.suppress(Suppressed.until_time_limit(1, UNBOUNDED), name="held")
    builder.build(config)
    table.suppress(Suppressed.until_time_limit(1, UNBOUNDED))
    with pytest.raises(TopologyError, match="store KTABLE-SUPPRESS-STATE-STORE-"):
        builder.build(config)


@pytest.mark.parametrize("filtered", [False, True])
def test_a_versioned_table_is_refused(filtered: bool) -> None:
    store = Materialized("store", store_type="versioned", history_retention=0)
    table = StreamsBuilder().table("input", store=store, **TEXT)
    if filtered:
        table = table.filter(lambda value: True)
    with pytest.raises(TopologyError, match="a versioned table can't be suppressed"):
        table.suppress(Suppressed.until_time_limit(0, UNBOUNDED))


@pytest.mark.parametrize(
    "windows", [TimeWindows(5), SlidingWindows(5), SessionWindows(5), TimeWindows(5, 1)]
)
def test_windows_are_found_through_other_operators(windows: Any) -> None:
    builder = StreamsBuilder()
    table: Any = builder.stream("input", **TEXT).group_by_key().windowed_by(windows).count()
    final = Suppressed.until_window_closes(UNBOUNDED)
    table.filter(lambda count: count > 1).suppress(final)
    table.to_stream().filter(lambda count: count > 1).to_table().suppress(final)
    builder.build()


def test_final_results_need_windows() -> None:
    final: Any = Suppressed.until_window_closes(UNBOUNDED)
    with pytest.raises(TopologyError, match=r"suppress \(.*'KSTREAM-SOURCE-\d+' has no windows"):
        counted(StreamsBuilder()).suppress(final)
    forever: Any = UnlimitedWindows()
    stream = StreamsBuilder().stream("input", **TEXT)
    endless: Any = stream.group_by_key().windowed_by(forever).count()
    with pytest.raises(TopologyError, match="unlimited windows never close"):
        endless.suppress(final)


def test_a_join_between_has_no_windows_of_a_table() -> None:
    final: Any = Suppressed.until_window_closes(UNBOUNDED)
    builder = StreamsBuilder()
    left, right = builder.stream("left", **TEXT), builder.stream("right", **TEXT)
    joined: Any = left.join(right, lambda one, two: one + two, within=JoinWindows(5))
    with pytest.raises(TopologyError, match="has no windows"):
        joined.to_table().suppress(final)
