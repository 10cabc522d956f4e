from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tidewheel import (
    FixedKeyProcessor,
    FixedKeyRecord,
    GlobalKTable,
    KStream,
    Materialized,
    Processor,
    Record,
    RecordFailedError,
    Serdes,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    StreamsError,
    Topology,
    TopologyError,
    ValueAndTimestamp,
)
from tidewheel.testing import TestRecord, TopologyTestDriver

STRING = Serdes.string()


def config(**settings: Any) -> StreamsConfig:
    return StreamsConfig(
        application_id="globals", bootstrap_servers="unused:9092", statestore_cache_max_bytes=0, **settings
    )  # fmt: skip


class Driver(TopologyTestDriver):
    def __init__(
        self, topology: Topology, *, record_by_record: bool = False, **settings: Any
    ) -> None:
        super().__init__(topology, config(**settings), record_by_record=record_by_record)
        self.left = self.create_input_topic("left", key_serde=STRING, value_serde=STRING)
        self.table = self.create_input_topic("table", key_serde=STRING, value_serde=STRING)
        self.output = self.create_output_topic("out", key_serde=STRING, value_serde=STRING)


Use = Callable[[KStream[str, str], GlobalKTable[str, str]], KStream[Any, Any]]


def built(use: Use, **options: Any) -> Topology:
    builder = StreamsBuilder()
    table = builder.global_table("table", key_serde=STRING, value_serde=STRING, **options)
    stream = use(builder.stream("left", key_serde=STRING, value_serde=STRING), table)
    stream.to("out", key_serde=STRING, value_serde=STRING)
    return builder.build()


def joined(left: str, right: str | None) -> str:
    return f"{left}+{right}"


def test_the_description_is_that_of_kafka_streams() -> None:
    topology = built(lambda s, t: s.join(t, joined, key_selector=lambda value: value))
    assert (
        str(topology.describe())
        == """\
Topologies:
   Sub-topology: 0 for global store (will not generate tasks)
    Source: KSTREAM-SOURCE-0000000001 (topics: [table])
      --> KTABLE-SOURCE-0000000002
    Processor: KTABLE-SOURCE-0000000002 (stores: [table-STATE-STORE-0000000000])
      --> none
      <-- KSTREAM-SOURCE-0000000001
  Sub-topology: 1
    Source: KSTREAM-SOURCE-0000000003 (topics: [left])
      --> KSTREAM-LEFTJOIN-0000000004
    Processor: KSTREAM-LEFTJOIN-0000000004 (stores: [])
      --> KSTREAM-SINK-0000000005
      <-- KSTREAM-SOURCE-0000000003
    Sink: KSTREAM-SINK-0000000005 (topic: out)
      <-- KSTREAM-LEFTJOIN-0000000004

"""
    )
    (task,) = [each.id for each in topology.spec().subtopologies]
    assert task == 1  # numbers include the sub-topologies, as in Kafka Streams


def test_numbers_and_names_count_as_in_kafka_streams() -> None:
    """The text is Kafka Streams 4.3.1's."""

    class Fixed(FixedKeyProcessor[str, str, str]):
        def process(self, record: FixedKeyRecord[str, str]) -> None:
            self.context.forward(record)

    builder = StreamsBuilder()
    first = builder.global_table("g1", key_serde=str, value_serde=str)
    second = builder.global_table("g2", key_serde=str, value_serde=str, store="rows", name="named")
    stream = builder.stream("left", key_serde=str, value_serde=str)
    once = stream.join(first, joined, key_selector=lambda value: value)
    twice = once.left_join(second, joined, key_selector=lambda value: value, name="my-join")
    twice.process_values(Fixed).to("out", value_serde=str)
    store = Stores.key_value("store", key_serde=str, value_serde=str)
    builder.add_global_store(store, "g3", Newest, key_serde=str, value_serde=str)
    stream.process_values(Fixed, name="pv").group_by_key(key_serde=str, value_serde=str).count()
    assert (
        str(builder.build().describe())
        == """\
Topologies:
   Sub-topology: 0 for global store (will not generate tasks)
    Source: KSTREAM-SOURCE-0000000001 (topics: [g1])
      --> KTABLE-SOURCE-0000000002
    Processor: KTABLE-SOURCE-0000000002 (stores: [g1-STATE-STORE-0000000000])
      --> none
      <-- KSTREAM-SOURCE-0000000001
  Sub-topology: 1 for global store (will not generate tasks)
    Source: named-source (topics: [g2])
      --> named
    Processor: named (stores: [rows])
      --> none
      <-- named-source
  Sub-topology: 2
    Source: KSTREAM-SOURCE-0000000005 (topics: [left])
      --> KSTREAM-LEFTJOIN-0000000006, pv
    Processor: KSTREAM-LEFTJOIN-0000000006 (stores: [])
      --> my-join
      <-- KSTREAM-SOURCE-0000000005
    Processor: my-join (stores: [])
      --> KSTREAM-PROCESSVALUES-0000000008
      <-- KSTREAM-LEFTJOIN-0000000006
    Processor: KSTREAM-PROCESSVALUES-0000000008 (stores: [])
      --> KSTREAM-SINK-0000000009
      <-- my-join
    Processor: pv (stores: [])
      --> KSTREAM-AGGREGATE-0000000013
      <-- KSTREAM-SOURCE-0000000005
    Processor: KSTREAM-AGGREGATE-0000000013 (stores: [KSTREAM-AGGREGATE-STATE-STORE-0000000012])
      --> none
      <-- pv
    Sink: KSTREAM-SINK-0000000009 (topic: out)
      <-- KSTREAM-PROCESSVALUES-0000000008

  Sub-topology: 3 for global store (will not generate tasks)
    Source: KSTREAM-SOURCE-0000000010 (topics: [g3])
      --> KTABLE-SOURCE-0000000011
    Processor: KTABLE-SOURCE-0000000011 (stores: [store])
      --> none
      <-- KSTREAM-SOURCE-0000000010
"""
    )


def test_given_names_are_used_for_node_and_store() -> None:
    topology = built(
        lambda s, t: s.left_join(t, joined, key_selector=lambda value: value, name="my-join"),
        name="my-table",
        store="my-store",
    )
    text = str(topology.describe())
    assert "Source: my-table-source (topics: [table])" in text
    assert "Processor: my-table (stores: [my-store])" in text
    assert "Processor: my-join (stores: [])" in text
    assert topology.store_names == ("my-store",)
    assert topology.source_topics == ("left", "table")


def test_a_global_table_is_part_of_the_drawing_and_of_the_hash() -> None:
    topology = built(lambda s, t: s.join(t, joined, key_selector=lambda value: value))
    (table,) = topology.describe().to_dict()["global_stores"]
    assert table["source"]["topics"] == ["table"]
    assert table["processor"]["predecessors"] == ["KSTREAM-SOURCE-0000000001"]
    drawing = topology.describe().to_mermaid()
    assert 'subgraph sub0["Global store 0"]' in drawing
    assert 'store0_0[("table-STATE-STORE-0000000000")]' in drawing
    other = built(lambda s, t: s.join(t, joined, key_selector=lambda value: value), store="another")
    assert topology.hash() != other.hash()
    assert "global_stores" not in Topology().add_source("a", "in").describe().to_dict()


def test_the_store_is_queryable_only_by_a_name_of_the_users() -> None:
    builder = StreamsBuilder()
    named = builder.global_table("a", key_serde=str, value_serde=str, store="rows")
    unnamed = builder.global_table("b", key_serde=str, value_serde=str)
    assert (named.queryable_store_name, unnamed.queryable_store_name) == ("rows", None)
    assert builder.build().store_names == ("b-STATE-STORE-0000000002", "rows")


def test_updates_of_the_table_trigger_no_output() -> None:
    with Driver(built(lambda s, t: s.join(t, joined, key_selector=lambda v: v[0]))) as driver:
        driver.left.pipe_input("k", "a1", 1)
        driver.table.pipe_input("a", "A", 100)
        driver.left.pipe_input("k", "a2", 2, (("h", b"x"),))
        driver.table.pipe_input("a", None, 101)
        driver.left.pipe_input("k", "a3", 3)
        driver.table.pipe_input("a", "AA", 50)
        driver.left.pipe_input("k", "a4", 4)
        assert driver.output.read_records() == [
            TestRecord("k", "a2+A", 2, (("h", b"x"),)),
            TestRecord("k", "a4+AA", 4),
        ]


def test_the_key_selector_and_the_joiner_receive_their_declared_arguments() -> None:
    use: Use = lambda s, t: s.join(  # noqa: E731 - read in one go
        t,
        lambda key, left, right: f"{key}:{left}:{right}",
        key_selector=lambda key, value: key + value,
    )
    with Driver(built(use)) as driver:
        driver.table.pipe_input("ab", "row", 1)
        driver.left.pipe_input("a", "b", 2)
        assert driver.output.read_value() == "a:b:row"


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_a_joiner_may_receive_both_keys(left: bool, one_by_one: bool) -> None:
    def select(key: str, value: str) -> Any:
        return {"x": 7, "n": None}.get(value, value)

    def both(key: str, mapped: Any, mine: str, row: str | None) -> str:
        return f"{key}/{mapped}/{mine}/{row}"

    def use(stream: KStream[str, str], table: GlobalKTable[str, str]) -> KStream[str, str]:
        join = stream.left_join if left else stream.join
        return join(table, both, key_selector=select)

    with Driver(
        built(use), record_by_record=one_by_one, processing_exception_handler="continue"
    ) as driver:
        driver.table.pipe_batch([("a", "A", 0), ("b", "B", 0)])
        driver.left.pipe_batch(
            [(f"k{number}", value, number) for number, value in enumerate("axncba", 1)]
        )
        unmatched = ["k3/None/n/None", "k4/c/c/None"] if left else []
        assert [record.value for record in driver.output.read_records()] == [
            "k1/a/a/A", *unmatched, "k5/b/b/B", "k6/a/a/A",
        ]  # fmt: skip


def itself(value: str) -> str:
    return value


def test_only_a_global_table_has_a_mapped_key() -> None:
    def joiner(key: str, mapped: str, left: str, right: str) -> str:
        return f"{key}{mapped}{left}{right}"

    builder = StreamsBuilder()
    stream = builder.stream("left", key_serde=STRING, value_serde=STRING)
    table = builder.table("right", key_serde=STRING, value_serde=STRING)
    join: Any = stream.join
    with pytest.raises(TopologyError, match=r"must take \(left, right\) or \(key, left, right\) "):
        join(table, joiner)


IN_MEMORY = Materialized("rows", store_type="in_memory")

LEFTS = st.lists(
    st.tuples(
        st.sampled_from(["left", "table"]),
        st.sampled_from([None, "a", "b"]),
        st.sampled_from([None, "", "a", "b", "c"]),
        st.integers(0, 9),
    ),
    max_size=30,
)


@given(LEFTS, st.booleans(), st.booleans())
def test_joins_of_global_tables_follow_the_rules(
    records: list[tuple[str, str | None, str | None, int]], left: bool, one_by_one: bool
) -> None:
    asked: list[str | None] = []

    def select(value: str) -> str | None:
        asked.append(value)
        return value or None

    def use(stream: KStream[str, str], table: GlobalKTable[str, str]) -> KStream[str, str]:
        join = stream.left_join if left else stream.join
        return join(table, joined, key_selector=select)

    rows: dict[str, str] = {}
    expected: list[TestRecord[Any, Any]] = []
    dropped = 0
    with Driver(built(use, store=IN_MEMORY), record_by_record=one_by_one) as driver:
        for topic, key, value, timestamp in records:
            if topic == "table":
                driver.table.pipe_input(key, value, timestamp)
                if key is not None and value is not None:
                    rows[key] = value
                elif key is not None:
                    rows.pop(key, None)
                continue
            driver.left.pipe_input(key, value, timestamp)
            row = rows.get(value or "")
            if value is None or (value == "" and not left):
                dropped += 1
            elif left or row is not None:
                expected.append(TestRecord(key, f"{value}+{row}", timestamp))
        assert driver.output.read_records() == expected
        assert driver.metrics()["1_0"]["dropped-records-total"] == dropped
    assert asked == [
        value for topic, _, value, _ in records if topic == "left" and value is not None
    ]
    event("something joined" if expected else "nothing joined")


@given(
    st.lists(
        st.tuples(st.sampled_from("xyz"), st.sampled_from(["", "a", "b", "boom", "c"])),
        min_size=1,
        max_size=20,
    )
)
def test_batches_equal_single_records(records: list[tuple[str, str]]) -> None:
    calls: list[Any] = []

    def select(value: str) -> str | None:
        calls.append(value)
        if value == "boom":
            raise ValueError("as told")
        return value or None

    def join(key: str, mine: str, row: str | None) -> str:
        calls.append((key, mine))
        if mine == "c":
            raise ValueError("as told")
        return f"{mine}{row}"

    def run(one_by_one: bool) -> Any:
        calls.clear()
        topology = built(lambda s, t: s.left_join(t, join, key_selector=select), store=IN_MEMORY)
        with Driver(
            topology, record_by_record=one_by_one, processing_exception_handler="continue"
        ) as driver:
            driver.table.pipe_input("a", "A", 0)
            driver.left.pipe_batch(
                [(key, value, number) for number, (key, value) in enumerate(records)]
            )
            return driver.output.read_records(), sorted(map(repr, calls)), driver.metrics()

    assert run(one_by_one=False) == run(one_by_one=True)


def test_a_selected_key_that_does_not_serialise_is_passed_to_the_processing_handler() -> None:
    def select(value: str) -> Any:
        return 7 if value == "x" else value

    topology = built(lambda s, t: s.left_join(t, joined, key_selector=select))
    with Driver(topology, processing_exception_handler="continue") as driver:
        driver.left.pipe_batch([("k", "a", 1), ("k", "x", 2), ("k", "b", 3)])
        assert [record.value for record in driver.output.read_records()] == ["a+None", "b+None"]


def test_a_join_keeps_the_partitioning_of_its_stream() -> None:
    def topics(use: Use) -> str:
        builder = StreamsBuilder()
        table = builder.global_table("table", key_serde=STRING, value_serde=STRING)
        stream = use(builder.stream("left", key_serde=STRING, value_serde=STRING), table)
        stream.group_by_key(key_serde=STRING, value_serde=STRING).count()
        return str(builder.build().describe())

    assert "repartition" not in topics(lambda s, t: s.join(t, joined, key_selector=lambda v: v))
    assert "repartition" in topics(
        lambda s, t: s.select_key(lambda v: v).join(
            t, joined, key_selector=lambda v: v, key_serde=str
        )
    )


REFUSED: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "no selector": (lambda s, t: s.join(t, joined), r"join \(.*\): a join with a global table needs key_selector="),
    "window": (
        lambda s, t: s.join(t, joined, key_selector=itself, store="kept"),
        "looks a row up as it is now and keeps nothing",
    ),
    "grace": (
        lambda s, t: s.left_join(t, joined, key_selector=itself, grace=5),
        r"left_join \(.*\): .*leave within=, grace= and store= out",
    ),
    "selector for a stream": (
        lambda s, t: s.join(s, joined, key_selector=itself),
        "key_selector= belongs to joins with a global table",
    ),
    "another builder": (
        lambda s, t: s.join(
            StreamsBuilder().global_table("x", key_serde=str, value_serde=str), joined, key_selector=itself
        ),
        "comes from a different builder",
    ),
    "outer": (lambda s, t: s.outer_join(t, joined, within=None), r"outer_join \(.*\): a stream has no outer join with a global table"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_joins_that_are_refused(what: str) -> None:
    use, message = REFUSED[what]
    with pytest.raises(TopologyError, match=message):
        built(use)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"store": Materialized("s", store_type="versioned", history_retention=1_000)},
            "can't be of store_type='versioned'",
        ),
        (
            {"store": Materialized("s", ttl=1_000)},
            "has a ttl, but a global store has no stream time",
        ),
        ({"store": 7}, "store is of type int"),
        ({"name": "a b"}, "name 'a b' has ' '"),
    ],
)
def test_tables_that_are_refused(options: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=rf"global_table.*{message}|{message}"):
        built(lambda s, t: s.join(t, joined, key_selector=lambda v: v), **options)


def test_a_topic_is_read_once() -> None:
    """Kafka Streams rejects both, too."""
    for method in ("stream", "global_table"):
        builder = StreamsBuilder()
        builder.global_table("table", key_serde=str, value_serde=str)
        getattr(builder, method)("table", key_serde=str, value_serde=str)
        with pytest.raises(TopologyError, match="topic 'table' is read already by"):
            builder.build()


def test_an_in_memory_table() -> None:
    topology = built(
        lambda s, t: s.join(t, joined, key_selector=lambda v: v),
        store=Materialized("rows", store_type="in_memory"),
    )
    assert not topology.spec().global_stores[0].store.persistent
    with Driver(topology) as driver:
        driver.table.pipe_input("a", "A", 1)
        driver.left.pipe_input("k", "a", 2)
        assert [each.value for each in driver.output.read_records()] == ["a+A"]


def test_a_topology_may_write_its_own_global_topic() -> None:
    builder = StreamsBuilder()
    table = builder.global_table("table", key_serde=STRING, value_serde=STRING)
    left = builder.stream("left", key_serde=STRING, value_serde=STRING)
    left.left_join(table, joined, key_selector=lambda key, value: key).to("out", value_serde=STRING)
    left.to("table")
    with Driver(builder.build()) as driver:
        for value in ("1", "2", "3"):
            driver.left.pipe_input("k", value, 1)
        assert [each.value for each in driver.output.read_records()] == ["1+None", "2+1", "3+2"]


def test_a_topology_of_global_tables_only() -> None:
    builder = StreamsBuilder()
    builder.global_table("table", key_serde=STRING, value_serde=STRING, store="rows")
    with TopologyTestDriver(builder.build(), config()) as driver:
        topic = driver.create_input_topic("table", key_serde=STRING, value_serde=STRING)
        topic.pipe_input("a", "A", 7)
        assert driver.get_state_store("rows").get("a").value == "A"


def test_a_test_may_fill_a_global_table_through_its_store() -> None:
    with Driver(
        built(lambda s, t: s.join(t, joined, key_selector=lambda v: v), store="rows")
    ) as driver:
        store = driver.get_state_store("rows")
        store.put("a", ValueAndTimestamp("filled", 1))
        driver.left.pipe_input("k", "a", 2)
        driver.table.pipe_input("a", "piped", 3)
        driver.left.pipe_input("k", "a", 4)
        assert [each.value for each in driver.output.read_records()] == ["a+filled", "a+piped"]
        assert store.get("a").value == "piped"


def test_a_bad_record_of_the_table_is_passed_to_the_deserialisation_handler() -> None:
    builder = StreamsBuilder()
    builder.global_table("table", key_serde=STRING, value_serde=Serdes.int64(), store="rows")
    with TopologyTestDriver(builder.build(), config()) as driver:
        topic = driver.create_input_topic("table", key_serde=STRING, value_serde=STRING)
        with pytest.raises(
            RecordFailedError,
            match=r"deserialization at .* \(task global, defined at .*\), table-0 offset 0",
        ):
            topic.pipe_input("a", "no integer", 7)


class Newest(Processor[str, str, None, None]):
    def process(self, record: Record[str, str]) -> None:
        store = self.context.get_state_store("longest")
        if len(record.value) > len(store.get(record.key) or ""):
            store.put(record.key, record.value)


class Reads(Processor[str, str, str, str]):
    def process(self, record: Record[str, str]) -> None:
        store = self.context.get_state_store("longest")
        if record.value == "write":
            store.put(record.key, "mine")
        self.context.forward(record.replace(value=str(store.get(record.key))))


LONGEST = Stores.key_value("longest", key_serde=STRING, value_serde=STRING, caching=True)


def by_builder() -> Topology:
    builder = StreamsBuilder()
    builder.add_global_store(LONGEST, "table", Newest, key_serde=STRING, value_serde=STRING)
    stream = builder.stream("left", key_serde=STRING, value_serde=STRING)
    stream.process(Reads).to("out", key_serde=STRING, value_serde=STRING)
    return builder.build()


def by_hand() -> Topology:
    return (
        Topology()
        .add_global_store(
            LONGEST, "g-read", "table", "g-keep", Newest, key_serde=STRING, value_serde=STRING
        )
        .add_source("read", "left", key_serde=STRING, value_serde=STRING)
        .add_processor("look", Reads, "read")
        .add_sink("write", "out", "look", key_serde=STRING, value_serde=STRING)
    )


@pytest.mark.parametrize("make", [by_builder, by_hand])
def test_every_processor_reads_a_global_store(make: Callable[[], Topology]) -> None:
    topology = make()
    (spec,) = topology.spec().global_stores
    assert (spec.store.logging, spec.store.caching, spec.table) == (False, False, False)
    with Driver(topology) as driver:
        for value in ("a", "abc", "ab"):
            driver.table.pipe_input("k", value, 1)
            driver.left.pipe_input("k", "?", 1)
        assert [each.value for each in driver.output.read_records()] == ["a", "abc", "abc"]
        with pytest.raises(RecordFailedError, match="StreamsError: store longest is global"):
            driver.left.pipe_input("k", "write", 1)


def test_a_global_store_needs_no_connecting() -> None:
    """Kafka Streams rejects it, too: "can be used by a Processor without being specified"."""
    builder = StreamsBuilder()
    builder.add_global_store(LONGEST, "table", Newest, key_serde=STRING, value_serde=STRING)
    stream = builder.stream("left", key_serde=STRING, value_serde=STRING)
    stream.process(Reads, stores=["longest"])
    with pytest.raises(
        TopologyError, match="store 'longest' is global, which every processor can read"
    ):
        builder.build()


def test_a_global_store_has_no_child_nodes() -> None:
    topology = Topology().add_global_store(LONGEST, "g-read", "table", "g-keep", Newest)
    for parent in ("g-read", "g-keep"):
        with pytest.raises(
            TopologyError, match="belongs to the global store 'longest', which gives"
        ):
            topology.add_processor(f"below-{parent}", Reads, parent)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing", "table", Newest), "the store is of type str"),
        ((LONGEST, "a b", Newest), "topic 'a b' has ' '"),
        ((LONGEST, "table", 7), "the supplier is of type int"),
        ((LONGEST, ["table"], Newest), "topic is of type list"),
        (
            (Stores.window("w", key_serde=str, value_serde=str, retention=10, window_size=5), "table", Newest),
            "of kind window, but global stores hold keys and values",
        ),
    ],
)  # fmt: skip
def test_global_stores_that_are_refused(arguments: Any, message: str) -> None:
    builder = StreamsBuilder()
    with pytest.raises(StreamsError, match=message):
        builder.add_global_store(*arguments).build()
