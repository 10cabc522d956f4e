from collections.abc import Callable
from typing import Any

import pytest

from tidewheel import (
    CalendarWindows,
    KGroupedStream,
    KTable,
    Materialized,
    Serdes,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    StreamsConfig,
    TimeWindows,
    TopologyError,
    UnlimitedWindows,
    Windowed,
)
from tidewheel.state_stores.spec import StoreKind, StoreSpec
from tidewheel.streams.serdes.windowed import SessionWindowedSerde, TimeWindowedSerde
from tidewheel.streams.windows import FixedWindows
from tidewheel.testing import TopologyTestDriver

KINDS: list[Any] = [
    TimeWindows(10),
    SlidingWindows(10),
    SessionWindows(10),
    CalendarWindows("day"),
    UnlimitedWindows(),
]
CONFIG = StreamsConfig(
    application_id="windowed", bootstrap_servers="unused:9092", statestore_cache_max_bytes=0
)


def grouped(builder: StreamsBuilder, topic: str = "in") -> KGroupedStream[str, str]:
    return builder.stream(topic, key_serde=str, value_serde=str).group_by_key()


def append(_key: str, value: str, seen: str) -> str:
    return seen + value


def join(_key: str, one: str, two: str) -> str:
    return one + two


def merger_for(windows: Any) -> Any:
    return join if isinstance(windows, SessionWindows) else None


def store_of(builder: StreamsBuilder) -> StoreSpec:
    (subtopology,) = builder.build().spec(CONFIG).subtopologies
    (store,) = subtopology.stores
    return store


@pytest.mark.parametrize("windows", KINDS)
@pytest.mark.parametrize(
    ("use", "node", "store"),
    [
        (lambda cut, **more: cut.count(**more), "KSTREAM-AGGREGATE-", "KSTREAM-AGGREGATE-"),
        (lambda cut, **more: cut.reduce(max, **more), "KSTREAM-REDUCE-", "KSTREAM-REDUCE-"),
        (
            lambda cut, **more: cut.aggregate(
                str, append, merger=merger_for(cut._windows), value_serde=str, **more
            ),
            "KSTREAM-AGGREGATE-",
            "KSTREAM-AGGREGATE-",
        ),
    ],
)
def test_nodes_and_stores_are_called_as_in_kafka_streams(
    windows: Any, use: Any, node: str, store: str
) -> None:
    builder = StreamsBuilder()
    table = use(grouped(builder).windowed_by(windows))
    assert repr(table) == f"<KTable {node}0000000002>"
    assert store_of(builder).name == f"{store}STATE-STORE-0000000001"
    assert table.queryable_store_name is None

    builder = StreamsBuilder()
    table = use(grouped(builder).windowed_by(windows), name="mine")
    assert repr(table) == "<KTable mine>"
    assert table.queryable_store_name == store_of(builder).name == "mine"


@pytest.mark.parametrize(
    ("windows", "number"), [(TimeWindows(10), 3), (SessionWindows(10), 3), (SlidingWindows(10), 2)]
)
def test_a_count_uses_up_as_many_numbers_as_kafka_streams_does(windows: Any, number: int) -> None:
    table = grouped(StreamsBuilder()).windowed_by(windows).count(store=Materialized())
    assert repr(table) == f"<KTable KSTREAM-AGGREGATE-{number:010d}>"


def test_windowed_aggregations_share_a_named_repartition_topic() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=str, value_serde=str)
    by_value = stream.group_by(lambda value: value, key_serde=str, value_serde=str, name="by-value")
    by_value.count()
    by_value.windowed_by(TimeWindows(10)).count()
    by_value.windowed_by(SessionWindows(10)).count()
    spec = builder.build().spec(CONFIG)
    assert list(spec.repartition_topics) == ["by-value-repartition"]


def test_cogroup_is_described_as_by_kafka_streams() -> None:
    builder = StreamsBuilder()
    both = grouped(builder, "one").cogroup(append).cogroup(grouped(builder, "two"), append)
    table = both.aggregate(str, name="test", store="store", value_serde=str)
    table.to_stream().to("output")
    assert str(builder.build().describe()).strip() == (
        "Topologies:\n"
        "   Sub-topology: 0\n"
        "    Source: KSTREAM-SOURCE-0000000000 (topics: [one])\n"
        "      --> test-cogroup-agg-0\n"
        "    Source: KSTREAM-SOURCE-0000000001 (topics: [two])\n"
        "      --> test-cogroup-agg-1\n"
        "    Processor: test-cogroup-agg-0 (stores: [store])\n"
        "      --> test-cogroup-merge\n"
        "      <-- KSTREAM-SOURCE-0000000000\n"
        "    Processor: test-cogroup-agg-1 (stores: [store])\n"
        "      --> test-cogroup-merge\n"
        "      <-- KSTREAM-SOURCE-0000000001\n"
        "    Processor: test-cogroup-merge (stores: [])\n"
        "      --> KTABLE-TOSTREAM-0000000005\n"
        "      <-- test-cogroup-agg-0, test-cogroup-agg-1\n"
        "    Processor: KTABLE-TOSTREAM-0000000005 (stores: [])\n"
        "      --> KSTREAM-SINK-0000000006\n"
        "      <-- test-cogroup-merge\n"
        "    Sink: KSTREAM-SINK-0000000006 (topic: output)\n"
        "      <-- KTABLE-TOSTREAM-0000000005"
    )


def test_cogroups_of_a_stream_that_is_repartitioned_have_a_topic_each() -> None:
    builder = StreamsBuilder()
    one = builder.stream("one", key_serde=str, value_serde=str)
    moved = one.map(lambda key, value: (value, key)).group_by_key(key_serde=str, value_serde=str)
    two = grouped(builder, "two")
    first = moved.cogroup(append).cogroup(two, append).aggregate(str, value_serde=str)
    second = moved.cogroup(append).cogroup(two, append).aggregate(str, value_serde=str)
    assert (repr(first), repr(second)) == (
        "<KTable COGROUPKSTREAM-MERGE-0000000009>",
        "<KTable COGROUPKSTREAM-MERGE-0000000016>",
    )
    spec = builder.build().spec(StreamsConfig(application_id="a", bootstrap_servers="b:1"))
    names = {node.name for each in spec.subtopologies for node in each.nodes}
    assert {f"COGROUPKSTREAM-AGGREGATE-{number:010d}" for number in (7, 8, 14, 15)} <= names
    assert "COGROUPKSTREAM-AGGREGATE-STATE-STORE-0000000003-repartition" in spec.repartition_topics


def test_aggregating_a_cogroup_twice_uses_its_repartition_topic_again() -> None:
    builder = StreamsBuilder()
    one = builder.stream("one", key_serde=str, value_serde=str)
    moved = one.map(lambda key, value: (value, key)).group_by_key(key_serde=str, value_serde=str)
    both = moved.cogroup(append)
    both.aggregate(str, value_serde=str)
    both.aggregate(str, value_serde=str)
    spec = builder.build().spec(CONFIG)
    assert list(spec.repartition_topics) == [
        "COGROUPKSTREAM-AGGREGATE-STATE-STORE-0000000002-repartition"
    ]


def test_the_topics_of_a_cogroup_must_be_partitioned_alike() -> None:
    builder = StreamsBuilder()
    both = grouped(builder, "one").cogroup(append).cogroup(grouped(builder, "two"), append)
    both.windowed_by(TimeWindows(10)).aggregate(str, value_serde=str)
    (subtopology,) = builder.build().spec(CONFIG).subtopologies
    assert subtopology.copartition_groups == (frozenset({"one", "two"}),)


@pytest.mark.parametrize(
    ("windows", "kind", "least_ms"),
    [
        (TimeWindows(10, grace=5), StoreKind.TIMESTAMPED_WINDOW, 15),
        (SlidingWindows(10, grace=5), StoreKind.TIMESTAMPED_WINDOW, 25),
        (SessionWindows(10, grace=5), StoreKind.SESSION, 15),
    ],
)
def test_a_store_keeps_windows_as_long_as_they_change(
    windows: Any, kind: StoreKind, least_ms: int
) -> None:
    builder = StreamsBuilder()
    grouped(builder).windowed_by(windows).count()
    spec = store_of(builder)
    assert spec.kind is kind
    assert least_ms <= spec.retention_ms <= least_ms + 2

    builder = StreamsBuilder()
    grouped(builder).windowed_by(windows).count(store=Materialized(retention=10_000))
    assert store_of(builder).retention_ms == 10_000

    with pytest.raises(TopologyError, match=r"count \(.*\d\): retention=14 .* is too short"):
        grouped(StreamsBuilder()).windowed_by(windows).count(store=Materialized(retention=14))


def test_a_windowed_table_is_not_versioned() -> None:
    cut = grouped(StreamsBuilder()).windowed_by(TimeWindows(10))
    store = Materialized(store_type="versioned", history_retention=10)
    with pytest.raises(TopologyError, match=r"count \(.*: store_type='versioned' is not for"):
        cut.count(store=store)


@pytest.mark.parametrize("windows", KINDS)
def test_the_serde_of_windowed_keys_is_derived(windows: Any) -> None:
    builder = StreamsBuilder()
    table: KTable[Windowed[str], int] = grouped(builder).windowed_by(windows).count()
    table.to_stream().to("out")
    read: Any
    if isinstance(windows, SessionWindows):
        read = Serdes.session_windowed(str)
    else:
        read = Serdes.windowed(str, windows)
    with TopologyTestDriver(builder.build(CONFIG), CONFIG) as driver:
        driver.create_input_topic("in", key_serde=str, value_serde=str).pipe_input("a", "x", 25)
        output = driver.create_output_topic("out", key_serde=read, value_serde=int)
        record = output.read_record()
        assert record.value == 1
        assert record.key == Windowed("a", record.key.start, record.key.end)
        assert record.key.start <= 25 <= record.key.end


def test_a_filter_of_a_windowed_table_keeps_its_serde() -> None:
    builder = StreamsBuilder()
    counts = grouped(builder).windowed_by(SessionWindows(10)).count()
    counts.filter(lambda count: count > 1, store="many").to_stream().to("out")
    (subtopology,) = builder.build().spec(CONFIG).subtopologies
    many = next(store for store in subtopology.stores if store.name == "many")
    assert isinstance(many.key_serde, SessionWindowedSerde)


def test_the_default_key_serde_is_that_of_the_key_inside() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", value_serde=str).group_by_key().windowed_by(TimeWindows(10))
    stream.count().filter(lambda count: count > 1, store="many")
    config = CONFIG.replace(default_key_serde=str)
    (subtopology,) = builder.build(config).spec(config).subtopologies
    serdes = {store.name: store.key_serde for store in subtopology.stores}
    many = serdes.pop("many")
    assert isinstance(many, TimeWindowedSerde)
    assert [many.inner] == list(serdes.values()) == [Serdes.string()]


FEW = (
    ("one", [("k", "a", 1), ("l", "b", 2)]),
    ("two", [("k", "c", 3), ("k", "d", 14), ("l", "e", 4)]),
    ("one", [("k", "f", 5)]),
)


def run_cogroup(
    windows: Any, batches: Any = FEW, *, cache: int = 0, record_by_record: bool = False
) -> list[Any]:
    builder = StreamsBuilder()
    one, two = grouped(builder, "one"), grouped(builder, "two")
    both: Any = one.cogroup(append).cogroup(two, lambda key, value, seen: f"{seen}{value.upper()}")
    options = {"value_serde": str, "store": "s"}
    if windows is None:
        stream = both.aggregate(str, **options).to_stream()
    else:
        table = both.windowed_by(windows).aggregate(str, merger=merger_for(windows), **options)
        stream = table.to_stream(lambda key, _value: f"{key.key}@{key.start}-{key.end}")
    stream.to("out", key_serde=str, value_serde=str)
    config = CONFIG.replace(statestore_cache_max_bytes=cache)
    found: list[Any] = []
    with TopologyTestDriver(
        builder.build(config), config, record_by_record=record_by_record
    ) as driver:
        inputs = {
            name: driver.create_input_topic(name, key_serde=str, value_serde=str)
            for name in ("one", "two")
        }
        output = driver.create_output_topic("out", key_serde=str, value_serde=str)
        for name, rows in batches:
            inputs[name].pipe_batch(rows)
            found.append(output.read_key_values())
    return found


@pytest.mark.parametrize(
    ("windows", "window"),
    [(TimeWindows(10), "k@10-20"), (SessionWindows(5), "k@11-12"), (SlidingWindows(5), "k@7-12")],
)
def test_windows_of_a_stream_that_is_behind_the_others_are_kept(windows: Any, window: str) -> None:
    """Kafka Streams' store expires them once any stream of the cogroup exceeds the retention."""
    batches = [("one", [("l", "a", 1_000)]), ("two", [("k", "b", 11)]), ("two", [("k", "c", 12)])]
    assert run_cogroup(windows, batches)[2][-1] == (window, "BC")


@pytest.mark.parametrize("record_by_record", [False, True])
def test_a_cogroup_folds_all_streams_into_one_row(record_by_record: bool) -> None:
    assert run_cogroup(None, record_by_record=record_by_record) == [
        [("k", "a"), ("l", "b")],
        [("k", "aC"), ("k", "aCD"), ("l", "bE")],
        [("k", "aCDf")],
    ]


@pytest.mark.parametrize("record_by_record", [False, True])
def test_a_cogroup_with_a_cache_forwards_the_last_change_once(record_by_record: bool) -> None:
    assert run_cogroup(None, cache=1 << 20, record_by_record=record_by_record) == [
        [("k", "a"), ("l", "b")],
        [("k", "aCD"), ("l", "bE")],
        [("k", "aCDf")],
    ]


@pytest.mark.parametrize("record_by_record", [False, True])
@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        (
            TimeWindows(10),
            [
                [("k@0-10", "a"), ("l@0-10", "b")],
                # The second stream's time is 14 at its last record.
                [("k@0-10", "aC"), ("k@10-20", "D")],
                [("k@0-10", "aCf")],
            ],
        ),
        (
            SessionWindows(5, grace=100),
            [
                [("k@1-1", "a"), ("l@2-2", "b")],
                [
                    ("k@1-1", None),
                    ("k@1-3", "aC"),
                    ("k@14-14", "D"),
                    ("l@2-2", None),
                    ("l@2-4", "bE"),
                ],
                [("k@1-3", None), ("k@1-5", "aCf")],
            ],
        ),
        (
            SlidingWindows(10, grace=100),
            [
                [("k@0-10", "a"), ("l@0-10", "b")],
                [
                    ("k@2-12", "C"),
                    ("k@0-10", "aC"),
                    # A window with two origins emits a result for each, as in Kafka Streams.
                    ("k@4-14", "D"),
                    ("k@4-14", "D"),
                    ("l@3-13", "E"),
                    ("l@0-10", "bE"),
                ],
                [("k@2-12", "Cf"), ("k@4-14", "Df"), ("k@6-16", "D"), ("k@0-10", "aCf")],
            ],
        ),
    ],
)
def test_a_cogroup_with_windows_folds_all_streams_into_one_window(
    windows: Any, expected: Any, record_by_record: bool
) -> None:
    assert run_cogroup(windows, record_by_record=record_by_record) == expected


@pytest.mark.parametrize("windows", KINDS)
def test_two_groups_of_one_stream_update_the_same_rows(windows: Any) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=str, value_serde=str)
    both: Any = stream.group_by_key().cogroup(append).cogroup(stream.group_by_key(), append)
    cut = both.windowed_by(windows)
    table = cut.aggregate(str, merger=merger_for(windows), value_serde=str, store="s")
    table.to_stream(lambda key, _value: key.key).to("out", key_serde=str, value_serde=str)
    with TopologyTestDriver(builder.build(CONFIG), CONFIG) as driver:
        source = driver.create_input_topic("in", key_serde=str, value_serde=str)
        source.pipe_batch([("k", "a", 5), ("k", "b", 5)])
        output = driver.create_output_topic("out", key_serde=str, value_serde=str)
        assert output.read_key_values() == [("k", "a"), ("k", "aa"), ("k", "aab"), ("k", "aabb")]


@pytest.mark.parametrize(
    ("use", "operator", "message"),
    [
        (lambda one: one.windowed_by(10), "windowed_by", "of type int; give TimeWindows"),
        (lambda one: one.cogroup(append).windowed_by(None), "windowed_by", "of type NoneType"),
        (
            lambda one: one.windowed_by(TimeWindows(10)).emit_strategy("later"),
            "emit_strategy",
            "'later' is not a strategy; give 'on_window_update' or 'on_window_close'",
        ),
        (
            lambda one: one.windowed_by(UnlimitedWindows()).emit_strategy("on_window_close"),
            "emit_strategy",
            "unlimited windows never close",
        ),
        (
            lambda one: one.windowed_by(SessionWindows(10)).aggregate(str, append, value_serde=str),
            "aggregate",
            "give merger=f(key, aggregate1, aggregate2)",
        ),
        (
            lambda one: one.windowed_by(TimeWindows(10)).aggregate(str, append, merger=join),
            "aggregate",
            "only sessions merge; leave merger out",
        ),
        (
            lambda one: one.cogroup(append).windowed_by(SessionWindows(10)).aggregate(str),
            "aggregate",
            "give merger=f(key, aggregate1, aggregate2)",
        ),
        (
            lambda one: one.cogroup(append).aggregate(str, merger=join),
            "aggregate",
            "only sessions merge; leave merger out",
        ),
        (
            lambda one: one.windowed_by(SessionWindows(1)).aggregate(str, append, merger=lambda a: a),
            "aggregate",
            "it must take (key, aggregate1, aggregate2)",
        ),
        (lambda one: one.cogroup(lambda value: value), "cogroup", "(key, value, aggregate)"),
        (lambda one: one.cogroup(append).cogroup(5, append), "cogroup", "give a KGroupedStream"),
        (
            lambda one: one.cogroup(append).cogroup(one, append),
            "cogroup",
            "is in the cogroup already",
        ),
        (
            lambda one: one.cogroup(append).cogroup(grouped(StreamsBuilder()), append),
            "cogroup",
            "the streams come from different builders; make both with one StreamsBuilder",
        ),
    ],
)  # fmt: skip
def test_invalid_calls_are_refused_with_the_users_line(
    use: Callable[[Any], Any], operator: str, message: str
) -> None:
    with pytest.raises(TopologyError, match=rf"^{operator} \(.*\d\): ") as caught:
        use(grouped(StreamsBuilder()))
    assert message in str(caught.value)


def test_two_streams_of_a_cogroup_with_one_topic_name_are_refused() -> None:
    builder = StreamsBuilder()
    one, two = (
        builder.stream(name, key_serde=str, value_serde=str).group_by(
            lambda value: value, key_serde=str, value_serde=str
        )
        for name in ("one", "two")
    )
    both = one.cogroup(append).cogroup(two, append)
    with pytest.raises(TopologyError, match=r"aggregate \(.*: 2 of the streams .*give name="):
        both.aggregate(str, value_serde=str)


def test_the_repr_of_a_windowed_stream_names_node_and_windows() -> None:
    builder = StreamsBuilder()
    cut = grouped(builder).windowed_by(TimeWindows(10))
    assert repr(cut).startswith("<TimeWindowedKStream KSTREAM-SOURCE-0000000000 TimeWindows(")
    assert isinstance(cut._windows, FixedWindows)
