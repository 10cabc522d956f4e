"""Stream joins: names, repartitioning, co-partitioning and errors.

Expected texts are `describe()` outputs of Kafka Streams 4.3.1.
"""

from collections.abc import Callable
from textwrap import dedent
from typing import Any

import pytest

from tidewheel import (
    JoinWindows,
    KStream,
    KTable,
    Materialized,
    StreamsBuilder,
    StreamsConfig,
    StreamsError,
    Topology,
    TopologyError,
)
from tidewheel.tasks.kafka.internal_topics import plan_application
from tidewheel.testing import TopologyTestDriver

NEAR = JoinWindows(10)
TEXT: dict[str, Any] = {"key_serde": str, "value_serde": str}
VERSIONED = Materialized("T", store_type="versioned", history_retention=1_000)


def stream(builder: StreamsBuilder, topic: str) -> KStream[str, str]:
    return builder.stream(topic, **TEXT)


def same(key: str, value: str) -> tuple[str, str]:
    return key, value


def pair(left: str | None, right: str | None) -> str:
    return f"{left}-{right}"


def left_join_of_a_rekeyed_stream(builder: StreamsBuilder) -> KStream[str, str]:
    left, right = stream(builder, "left"), stream(builder, "right").map(same)
    return left.left_join(right, pair, within=NEAR, name="x-y", **TEXT, other_value_serde=str)


def rekeyed_stream_with_table(builder: StreamsBuilder) -> KStream[str, str]:
    left = stream(builder, "left").map(same)
    table = builder.table("right", **TEXT, store=VERSIONED)
    return left.left_join(table, pair, grace=10, **TEXT)


def self_join(builder: StreamsBuilder) -> KStream[str, str]:
    left = stream(builder, "left")
    return left.join(left, pair, within=NEAR)


TEXTS: dict[Callable[[StreamsBuilder], KStream[str, str]], str] = {
    left_join_of_a_rekeyed_stream: """
    Topologies:
       Sub-topology: 0
        Source: KSTREAM-SOURCE-0000000000 (topics: [left])
          --> x-y-this-windowed
        Source: x-y-right-repartition-source (topics: [x-y-right-repartition])
          --> x-y-other-windowed
        Processor: x-y-other-windowed (stores: [x-y-outer-other-join-store])
          --> x-y-outer-other-join
          <-- x-y-right-repartition-source
        Processor: x-y-this-windowed (stores: [x-y-this-join-store])
          --> x-y-this-join
          <-- KSTREAM-SOURCE-0000000000
        Processor: x-y-outer-other-join (stores: [x-y-this-join-store, x-y-left-shared-join-store])
          --> x-y-merge
          <-- x-y-other-windowed
        Processor: x-y-this-join (stores: [x-y-left-shared-join-store, x-y-outer-other-join-store])
          --> x-y-merge
          <-- x-y-this-windowed
        Processor: x-y-merge (stores: [])
          --> KSTREAM-SINK-0000000011
          <-- x-y-this-join, x-y-outer-other-join
        Sink: KSTREAM-SINK-0000000011 (topic: output)
          <-- x-y-merge

      Sub-topology: 1
        Source: KSTREAM-SOURCE-0000000001 (topics: [right])
          --> KSTREAM-MAP-0000000002
        Processor: KSTREAM-MAP-0000000002 (stores: [])
          --> x-y-right-repartition-filter
          <-- KSTREAM-SOURCE-0000000001
        Processor: x-y-right-repartition-filter (stores: [])
          --> x-y-right-repartition-sink
          <-- KSTREAM-MAP-0000000002
        Sink: x-y-right-repartition-sink (topic: x-y-right-repartition)
          <-- x-y-right-repartition-filter
    """,
    rekeyed_stream_with_table: """
    Topologies:
       Sub-topology: 0
        Source: KSTREAM-SOURCE-0000000000 (topics: [left])
          --> KSTREAM-MAP-0000000001
        Processor: KSTREAM-MAP-0000000001 (stores: [])
          --> KSTREAM-FILTER-0000000005
          <-- KSTREAM-SOURCE-0000000000
        Processor: KSTREAM-FILTER-0000000005 (stores: [])
          --> KSTREAM-SINK-0000000004
          <-- KSTREAM-MAP-0000000001
        Sink: KSTREAM-SINK-0000000004 (topic: KSTREAM-MAP-0000000001-repartition)
          <-- KSTREAM-FILTER-0000000005

      Sub-topology: 1
        Source: KSTREAM-SOURCE-0000000006 (topics: [KSTREAM-MAP-0000000001-repartition])
          --> KSTREAM-LEFTJOIN-0000000007
        Processor: KSTREAM-LEFTJOIN-0000000007 (stores: [T, KSTREAM-LEFTJOIN-0000000007-Buffer])
          --> KSTREAM-SINK-0000000008
          <-- KSTREAM-SOURCE-0000000006
        Source: KSTREAM-SOURCE-0000000002 (topics: [right])
          --> KTABLE-SOURCE-0000000003
        Sink: KSTREAM-SINK-0000000008 (topic: output)
          <-- KSTREAM-LEFTJOIN-0000000007
        Processor: KTABLE-SOURCE-0000000003 (stores: [T])
          --> none
          <-- KSTREAM-SOURCE-0000000002
    """,
    self_join: """
    Topologies:
       Sub-topology: 0
        Source: KSTREAM-SOURCE-0000000000 (topics: [left])
          --> KSTREAM-WINDOWED-0000000001
        Processor: KSTREAM-WINDOWED-0000000001 (stores: [KSTREAM-JOINTHIS-0000000003-store])
          --> KSTREAM-MERGE-0000000005
          <-- KSTREAM-SOURCE-0000000000
        Processor: KSTREAM-MERGE-0000000005 (stores: [KSTREAM-JOINTHIS-0000000003-store])
          --> KSTREAM-SINK-0000000006
          <-- KSTREAM-WINDOWED-0000000001
        Sink: KSTREAM-SINK-0000000006 (topic: output)
          <-- KSTREAM-MERGE-0000000005
    """,
}


def built(program: Callable[[StreamsBuilder], KStream[str, str]], *, optimized: bool) -> Topology:
    builder = StreamsBuilder()
    program(builder).to("output", **TEXT)
    config = StreamsConfig(application_id="joins", bootstrap_servers="unused:9092")
    return builder.build(config if optimized else None)


@pytest.mark.parametrize("program", TEXTS, ids=lambda program: program.__name__)
def test_the_text_is_that_of_kafka_streams(
    program: Callable[[StreamsBuilder], KStream[str, str]],
) -> None:
    expected = dedent(TEXTS[program]).strip("\n")
    assert (
        str(built(program, optimized=program is self_join).describe()).strip() == expected.strip()
    )


def store_names(**options: Any) -> tuple[str, ...]:
    builder = StreamsBuilder()
    left, right = stream(builder, "left"), stream(builder, "right")
    left.outer_join(right, pair, within=NEAR, **options)
    return builder.build().store_names


@pytest.mark.parametrize("options", [{"store": "s"}, {"store": "s", "name": "n"}, {"name": "s"}])
def test_stores_are_named_after_store_or_else_name(options: dict[str, str]) -> None:
    """As in Kafka Streams' `StreamJoined.withStoreName`."""
    assert store_names(**options) == (
        "s-outer-other-join-store",
        "s-outer-shared-join-store",
        "s-outer-this-join-store",
    )


def test_nodes_may_have_a_name_while_stores_keep_generated_ones() -> None:
    """As in Kafka Streams' `StreamJoined.withName`."""
    assert store_names(name="n", store=Materialized()) == store_names()


def test_generated_store_names_have_the_numbers_of_their_nodes() -> None:
    assert store_names() == (
        "KSTREAM-OUTEROTHER-0000000005-store",
        "KSTREAM-OUTERSHARED-0000000004-store",
        "KSTREAM-OUTERTHIS-0000000004-store",
    )


def test_join_stores_have_the_requested_type() -> None:
    builder = StreamsBuilder()
    left, right = stream(builder, "left"), stream(builder, "right")
    wishes = Materialized(
        "s",
        store_type="in_memory",
        changelog_config={"segment.ms": "7", "cleanup.policy": "compact"},
    )
    left.left_join(right, pair, within=JoinWindows(10, grace=5), store=wishes)
    specs = {spec.name: spec for sub in builder.build().spec().subtopologies for spec in sub.stores}
    this, other = specs["s-this-join-store"], specs["s-outer-other-join-store"]
    waiting = specs["s-left-shared-join-store"]
    assert not any(spec.persistent or spec.caching for spec in specs.values())
    assert all(spec.changelog_config["segment.ms"] == "7" for spec in specs.values())
    assert waiting.changelog_config["cleanup.policy"] == "compact"
    for spec in (this, other):
        assert spec.changelog_config["cleanup.policy"] == "delete"
        assert spec.retain_duplicates
        assert (spec.window_size_ms, spec.retention_ms) == (20, 25)


def test_explicit_naming_lists_the_generated_names_of_a_join() -> None:
    builder = StreamsBuilder()
    left, right = stream(builder, "left").map(same), stream(builder, "right")
    left.left_join(right, pair, within=NEAR, **TEXT)
    config = StreamsConfig(
        application_id="joins", bootstrap_servers="unused:9092", ensure_explicit_naming=True
    )
    with pytest.raises(TopologyError) as caught:
        builder.build(config)
    for name in ("JOINTHIS", "OUTEROTHER", "OUTERSHARED", "KSTREAM-MAP-0000000001-repartition"):
        assert name in str(caught.value)


def test_one_topic_serves_several_joins_without_a_name() -> None:
    builder = StreamsBuilder()
    left = stream(builder, "left").map(same)
    table = builder.table("right", **TEXT)
    results = [left.join(table, pair, **TEXT) for _ in range(2)]
    assert [str(result) for result in results] == [
        "<KStream KSTREAM-JOIN-0000000008>",
        "<KStream KSTREAM-JOIN-0000000012>",
    ]
    left.join(table, pair, name="third", **TEXT)
    topics = builder.build().spec().repartition_topics
    assert set(topics) == {"KSTREAM-MAP-0000000001-repartition", "third-repartition"}


def counts(topology: Topology, **topics: int) -> dict[str, int]:
    plan = plan_application(topology.spec(), "app", topics)
    return {
        topic.name.removeprefix("app-"): topic.partitions
        for topic in (*plan.repartition_topics, *plan.changelog_topics)
    }


@pytest.mark.parametrize("with_table", [False, True])
def test_both_sides_must_have_equal_partition_counts(*, with_table: bool) -> None:
    builder = StreamsBuilder()
    left = stream(builder, "left").filter(lambda value: value != "")
    if with_table:
        left.join(builder.table("right", **TEXT).filter(lambda value: value != ""), pair)
    else:
        left.join(stream(builder, "right"), pair, within=NEAR)
    topology = builder.build()
    assert set(counts(topology, left=3, right=3).values()) == {3}
    with pytest.raises(StreamsError, match="left has 3, right has 4"):
        counts(topology, left=3, right=4)


def test_a_repartition_topic_has_the_partition_count_of_the_other_side() -> None:
    builder = StreamsBuilder()
    left, right = stream(builder, "left").map(same), stream(builder, "right")
    left.join(right, pair, within=NEAR, name="j", **TEXT)
    assert counts(builder.build(), left=7, right=2)["j-left-repartition"] == 2


@pytest.mark.parametrize("kind", ["join", "left_join"])
@pytest.mark.parametrize("with_table", [False, True])
def test_a_repartition_forwards_null_keys_to_a_left_join(kind: str, *, with_table: bool) -> None:
    builder = StreamsBuilder()
    left = stream(builder, "left").map(same)
    join: Any = getattr(left, kind)
    other: KStream[str, str] | KTable[str, str] = (
        builder.table("right", **TEXT) if with_table else stream(builder, "right")
    )
    join(other, pair, **TEXT, **({} if with_table else {"within": NEAR})).to("output", **TEXT)
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("left", **TEXT).pipe_input(None, "a", 5)
        output = driver.create_output_topic("output", **TEXT)
        assert output.read_key_values() == ([(None, "a-None")] if kind == "left_join" else [])


@pytest.mark.parametrize(
    ("kind", "windows", "stores"),
    [
        ("join", NEAR, 1),
        ("join", JoinWindows(before=-1, after=5), 2),
        ("left_join", NEAR, 1),
        ("outer_join", NEAR, 1),
        ("left_join", JoinWindows(before=-1, after=5), 3),
        ("outer_join", JoinWindows(before=5, after=-1), 3),
    ],
)
def test_one_store_is_enough_only_where_results_stay_the_same(
    kind: str, windows: JoinWindows, stores: int
) -> None:
    """Kafka Streams omits the check: results change if the window excludes the record itself."""

    def program(builder: StreamsBuilder) -> KStream[str, str]:
        joined: KStream[str, str] = getattr(stream(builder, "left"), kind)(
            stream(builder, "left"), pair, within=windows
        )
        return joined

    assert len(built(program, optimized=True).store_names) == stores


SELF_JOIN = """
Topologies:
   Sub-topology: 0
    Source: KSTREAM-SOURCE-0000000000 (topics: [left])
      --> KSTREAM-WINDOWED-0000000001
    Processor: KSTREAM-WINDOWED-0000000001 (stores: [KSTREAM-{0}-0000000003-store])
      --> KSTREAM-MERGE-0000000005
      <-- KSTREAM-SOURCE-0000000000
    Processor: KSTREAM-MERGE-0000000005 (stores: [KSTREAM-{0}-0000000003-store])
      --> KSTREAM-SINK-0000000006
      <-- KSTREAM-WINDOWED-0000000001
    Sink: KSTREAM-SINK-0000000006 (topic: output)
      <-- KSTREAM-MERGE-0000000005
"""


@pytest.mark.parametrize(("kind", "side"), [("left_join", "JOINTHIS"), ("outer_join", "OUTERTHIS")])
def test_an_optimised_outer_self_join_is_described_as_in_kafka_streams(
    kind: str, side: str
) -> None:
    def program(builder: StreamsBuilder) -> KStream[str, str]:
        left = stream(builder, "left")
        joined: KStream[str, str] = getattr(left, kind)(left, pair, within=NEAR)
        return joined

    text = str(built(program, optimized=True).describe())
    assert text.strip() == SELF_JOIN.format(side).strip()


@pytest.mark.parametrize("record_by_record", [False, True])
@pytest.mark.parametrize("kind", ["join", "left_join", "outer_join"])
def test_an_optimised_self_join_has_the_results_of_a_plain_self_join(
    kind: str, record_by_record: bool
) -> None:
    rows = [
        ("a", "1", 0),
        (None, "2", 1),
        ("a", "3", 4),
        ("a", None, 5),
        ("b", "4", 3),
        ("a", "5", 9),
    ]

    def results(optimization: str) -> list[Any]:
        config = StreamsConfig(
            application_id="t", bootstrap_servers="unused:9092", topology_optimization=optimization
        )
        builder = StreamsBuilder()
        left = stream(builder, "left")
        getattr(left, kind)(left, pair, within=NEAR).to("output", **TEXT)
        with TopologyTestDriver(
            builder.build(config), config, record_by_record=record_by_record
        ) as driver:
            source = driver.create_input_topic("left", **TEXT)
            for row in rows:
                source.pipe_input(*row)
            output = driver.create_output_topic("output", **TEXT)
            return [(row.key, row.value, row.timestamp) for row in output.read_records()]

    assert results("all") == results("none")
    alone = {"join": [], "left_join": ["2-None"], "outer_join": ["2-None", "None-2"]}[kind]
    assert [value for key, value, _ in results("all") if key is None] == alone


Sides = tuple[Any, Any, Any]

WRONG: dict[str, tuple[Callable[[Sides], object], str]] = {
    "no windows": (lambda s: s[0].join(s[1], pair), "there is no within=; give within=JoinWindows"),
    "windows of another type": (
        lambda s: s[0].left_join(s[1], pair, within=10),
        "there is within= of type int",
    ),
    "grace with a stream": (
        lambda s: s[0].join(s[1], pair, within=NEAR, grace=5),
        "grace= belongs to joins with a table",
    ),
    "windows with a table": (
        lambda s: s[0].join(s[2], pair, within=NEAR),
        "within= belongs to joins of two streams",
    ),
    "outer with a table": (
        lambda s: s[0].outer_join(s[2], pair),
        "a stream has no outer join with a table, whose rows are no events; use left_join()",
    ),
    "outer with a table and windows": (
        lambda s: s[0].outer_join(s[2], pair, within=NEAR),
        "a stream has no outer join with a table",
    ),
    "outer without windows": (
        lambda s: s[0].outer_join(s[1], pair),
        "there is no within=; give within=JoinWindows(...)",
    ),
    "grace with a plain table": (
        lambda s: s[0].join(s[2], pair, grace=5),
        "the table is not versioned",
    ),
    "a store without grace": (
        lambda s: s[0].join(s[2], pair, store="s"),
        "keeps nothing unless it has a grace",
    ),
    "an unsupported type": (
        lambda s: s[0].join("clicks", pair),
        "an object of type str can't be joined",
    ),
    "another builder": (
        lambda s: s[0].join(stream(StreamsBuilder(), "right"), pair, within=NEAR),
        "the stream comes from a different builder",
    ),
    "a table of another builder": (
        lambda s: s[0].join(StreamsBuilder().table("right", **TEXT), pair),
        "the table comes from a different builder",
    ),
    "a joiner of one value": (
        lambda s: s[0].join(s[1], str.upper, within=NEAR),
        "it must take (left, right) or (key, left, right)",
    ),
    "a store with serdes": (
        lambda s: s[0].join(s[1], pair, within=NEAR, store=Materialized("s", key_serde=str)),
        "leave them out of Materialized",
    ),
    "a store of another type": (
        lambda s: s[0].join(s[1], pair, within=NEAR, store=VERSIONED),
        "in a store of type 'versioned'",
    ),
    "a store with unsupported settings": (
        lambda s: s[0].join(s[1], pair, within=NEAR, store=Materialized("s", retention=5)),
        "leave retention= and ttl= out",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_of_wrong_calls_name_cause_and_line(name: str) -> None:
    call, message = WRONG[name]
    builder = StreamsBuilder()
    sides = stream(builder, "left"), stream(builder, "right"), builder.table("table", **TEXT)
    with pytest.raises(TopologyError) as caught:
        call(sides)
    assert message in str(caught.value)
    assert "test_kstream_joins.py:" in str(caught.value)


@pytest.mark.parametrize("counts", [(2, 3), (2, 2), (2, None)])
def test_joined_repartitions_have_equal_partition_counts(
    counts: tuple[int | None, int | None],
) -> None:
    builder = StreamsBuilder()
    left, right = (
        stream(builder, name).repartition(name=name, partitions=count)
        for name, count in zip(("left", "right"), counts, strict=True)
    )
    left.join(right, pair, within=NEAR)
    if counts != (2, 3):
        assert builder.build().source_topics == ("left", "right")
        return
    with pytest.raises(
        TopologyError,
        match=r"^join \(.*test_kstream_joins.py:\d+\): .*\(left-repartition: 2, right-repartition: 3\); give all the same",
    ):
        builder.build()


def test_the_history_retention_must_cover_the_grace_period() -> None:
    builder = StreamsBuilder()
    table = builder.table("right", **TEXT, store=VERSIONED)
    stream(builder, "left").join(table, pair, grace=1_001)
    with pytest.raises(TopologyError, match=r"grace is 1001 ms.*'T' has a history of 1000 ms"):
        builder.build()


def test_a_join_waits_for_its_table_even_if_that_is_written_later() -> None:
    builder = StreamsBuilder()
    grouped = stream(builder, "right").group_by(lambda value: value, **TEXT, name="shared")
    first = grouped.count(store="first")
    joined = stream(builder, "left").join(first, lambda left, count: f"{left}{count}")
    grouped.count(store="second")
    joined.to("output", **TEXT)
    assert builder.build().store_names == ("first", "second")
