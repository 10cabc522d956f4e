import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tidewheel.state_stores.spec import StoreKind
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.definitions.materialized import StoreBuilder
from tidewheel.streams.definitions.stores import Stores
from tidewheel.streams.dsl.builder import StreamsBuilder
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.serdes import Serdes
from tidewheel.streams.topology.topology import Topology
from tidewheel.streams.windows import TimeWindows
from tidewheel.tasks.processing.api.processor import Processor
from tidewheel.tasks.processing.api.topology_spec import ProcessorSpec, SinkSpec
from tidewheel.testing import TopologyTestDriver

Any4 = Processor[Any, Any, Any, Any]


def store(name: str = "store") -> StoreBuilder:
    return Stores.key_value(name, key_serde=str, value_serde=int)


def source(topology: Topology, name: str, topic: str) -> Topology:
    return topology.add_source(name, topic, key_serde=str, value_serde=str)


def groups(topology: Topology) -> list[list[str]]:
    return [[node.name for node in sub.nodes] for sub in topology.draft().subtopologies]


def test_unconnected_sources_are_sub_topologies_in_the_order_they_were_added() -> None:
    topology = Topology()
    source(source(topology, "z", "t1"), "a", "t2")
    topology.add_processor("p2", Any4, ["a"]).add_processor("p1", Any4, ["z"])
    assert groups(topology) == [["z", "p1"], ["a", "p2"]]


def test_a_common_child_joins_sources() -> None:
    topology = Topology()
    for index in (1, 2, 3):
        source(topology, f"s{index}", f"t{index}").add_processor(f"p{index}", Any4, f"s{index}")
    topology.add_sink("sink", "out", ["p1", "p3"])
    assert groups(topology) == [["s1", "p1", "s3", "p3", "sink"], ["s2", "p2"]]


def test_shared_stores_join_sub_topologies() -> None:
    topology = Topology()
    for index in (1, 2, 3, 4):
        source(topology, f"s{index}", f"t{index}").add_processor(f"p{index}", Any4, f"s{index}")
    topology.add_state_store(store("one"), ["p1", "p2"])
    topology.add_state_store(store("two"), ["p4"])
    topology.connect_processor_and_state_stores("p2", ["two"])
    assert groups(topology) == [["s1", "p1", "s2", "p2", "s4", "p4"], ["s3", "p3"]]


def test_the_spec_contains_the_given_nodes() -> None:
    topology = source(Topology(), "read", "in")
    topology.add_processor("work", Any4, ["read"])
    topology.add_sink(
        "write", "out", "work", key_serde=str, value_serde=int, partitioner=lambda t, k, v, n: 0
    )
    topology.add_state_store(store(), "work")
    (sub,) = topology.spec().subtopologies
    reading, working, writing = sub.nodes
    assert reading == sub.sources[0]
    assert sub.sources[0].topics == ("in",)
    assert sub.sources[0].key_serde is Serdes.string()
    assert isinstance(working, ProcessorSpec)
    assert working.supplier is Any4
    assert working.stores == ("store",)
    assert isinstance(writing, SinkSpec)
    assert writing.value_serde is Serdes.int64()
    assert writing.partitioner is not None
    assert writing.partitioner("out", "k", 1, 3) == 0
    assert [spec.name for spec in sub.stores] == ["store"]
    assert sub.stores[0].kind is StoreKind.KEY_VALUE
    assert topology.spec().repartition_topics == {}
    assert "test_topology.py:" in reading.location


def test_reading_the_spec_changes_nothing() -> None:
    class Defaults:
        def __init__(self, serde: Any) -> None:
            self.default_key_serde = serde
            self.default_value_serde = serde
            self.dsl_store_suppliers = None
            self.dsl_store_format = "DEFAULT"

    topology = Topology().add_source("read", "in")
    for serde in (Serdes.string(), Serdes.bytes()):
        assert topology.spec(Defaults(serde)).subtopologies[0].sources[0].key_serde is serde


def test_names_of_topics_and_stores() -> None:
    topology = Topology().add_source("b", ["z", "y"]).add_source("a", "x")
    topology.add_source("p", re.compile("q.*"))
    topology.add_processor("work", Any4, ["a"])
    topology.add_state_store(store("two"), "work").add_state_store(store("one"), "work")
    assert topology.source_topics == ("x", "y", "z")
    assert topology.store_names == ("one", "two")


def test_the_same_store_builder_twice_is_one_store() -> None:
    shared = store()
    topology = source(source(Topology(), "a", "t1"), "b", "t2")
    topology.add_processor("pa", Any4, "a").add_processor("pb", Any4, "b")
    topology.add_state_store(shared, "pa").add_state_store(shared, "pb")
    assert topology.store_names == ("store",)
    assert len(topology.spec().subtopologies) == 1


def base() -> Topology:
    topology = source(Topology(), "read", "in")
    topology.add_processor("work", Any4, ["read"])
    return topology.add_sink("write", "out", ["work"], key_serde=str, value_serde=str)


def connect(topology: Topology) -> None:
    topology.add_state_store(store()).connect_processor_and_state_stores("wrok", ["store"])


REFUSED: dict[str, tuple[Callable[[Any], object], str]] = {
    "duplicate node": (
        lambda t: t.add_source("work", "t"),
        r"'work' \(.*test_topology.py:\d+\): the topology has a node of this name already \(.*:\d+\); give",
    ),
    "unknown parent": (
        lambda t: t.add_processor("p", Any4, ["raed"]),
        r"'p' \(.*\): parent 'raed' is not in the topology; did you mean 'read'\?",
    ),
    "own parent": (lambda t: t.add_processor("p", Any4, ["p"]), "can't be its own parent"),
    "sink as parent": (lambda t: t.add_processor("p", Any4, ["write"]), "'write' is a sink"),
    "no parent": (lambda t: t.add_sink("s", "t", []), "no parent; name at least one"),
    "parent twice": (lambda t: t.add_sink("s", "t", ["work", "work"]), "'work' is given twice"),
    "topic read twice": (
        lambda t: t.add_source("again", "in"),
        r"'again' \(.*\): topic 'in' is read already by 'read' \(.*\)",
    ),
    "topic listed twice": (lambda t: t.add_source("s", ["a", "a"]), "'a' is given twice"),
    "pattern over a topic": (
        lambda t: t.add_source("s", re.compile("i.")),
        "also matches topic 'in', which 'read'",
    ),
    "topic under a pattern": (
        lambda t: t.add_source("p", re.compile("x.*")).add_source("s", "xy"),
        "topic 'xy' is read already by 'p'",
    ),
    "pattern of bytes": (lambda t: t.add_source("s", re.compile(b"x")), "pattern is one of bytes"),
    "no topic": (lambda t: t.add_source("s", []), "no topic is named"),
    "topic of another type": (lambda t: t.add_source("s", 7), "topics is of type int; give a list"),
    "illegal topic": (
        lambda t: t.add_sink("s", "a b", "work"),
        "topic 'a b' has ' ' at position 1",
    ),
    "long topic": (
        lambda t: t.add_sink("s", "a" * 250, "work"),
        "has 250 characters; 249 are allowed",
    ),
    "dots": (lambda t: t.add_source("s", ".."), r"topic '\.\.' is not allowed"),
    "empty name": (lambda t: t.add_source("", "t"), "name is empty"),
    "list for a name": (lambda t: t.add_source(["s"], "t"), "name is of type list, not a name"),
    "list for a sink's topic": (
        lambda t: t.add_sink("s", ["a"], "work"),
        r"add_sink 's' \(.*\): topic is of type list, not a name; give one string",
    ),
    "topic function of two": (
        lambda t: t.add_sink("s", lambda k, v: k, "work"),
        r"topic must take 3 parameters: \(key, value, context\)",
    ),
    "partitioner": (
        lambda t: t.add_sink("s", "t", "work", partitioner=lambda key: 0),
        r"partitioner must take 4 parameters: \(topic, key, value, partitions\)",
    ),
    "extractor": (
        lambda t: t.add_source("s", "t", timestamp_extractor="ts"),
        "timestamp_extractor is of type str, not a function",
    ),
    "reset": (
        lambda t: t.add_source("s", "t", offset_reset="newest"),
        "offset_reset='newest' is unknown; give 'earliest', 'latest', 'none' or a timedelta",
    ),
    "reset to an unhashable": (
        lambda t: t.add_source("s", "t", offset_reset=["latest"]),
        "offset_reset=\\['latest'\\] is unknown",
    ),
    "reset into the future": (
        lambda t: t.add_source("s", "t", offset_reset=timedelta(hours=-1)),
        "offset_reset=.* is too short; give at least 1 ms",
    ),
    "a processor object": (
        lambda t: t.add_processor("p", Any4(), "read"),
        "the supplier is an object of type Processor, but each task",
    ),
    "a supplier that is none": (
        lambda t: t.add_processor("p", "P", "read"),
        "the supplier is of type str; give a Processor class",
    ),
    "a supplier with arguments": (
        lambda t: t.add_processor("p", lambda limit: Any4(), "read"),
        "the supplier needs arguments",
    ),
    "not a serde": (
        lambda t: t.add_source("s", "t", key_serde=Serdes.string),
        r"key_serde=Serdes.string \(not called\?\) is not a serde",
    ),
    "another store of the name": (
        lambda t: t.add_state_store(store()).add_state_store(store()),
        r"store 'store' \(.*\): there is another store of this name \(.*\)",
    ),
    "not a store": (
        lambda t: t.add_state_store("counts"),
        "the store is of type str; give one of Stores",
    ),
    "store of an unknown processor": (
        connect,
        "processor 'wrok' is not in the topology; did you mean 'work'",
    ),
    "unknown store": (
        lambda t: t.connect_processor_and_state_stores("work", ["store"]),
        "store 'store' is not in the topology",
    ),
    "no store named": (
        lambda t: t.connect_processor_and_state_stores("work", []),
        "no store is named",
    ),
    "store of a sink": (
        lambda t: t.add_state_store(store(), ["write"]),
        "'write' is a sink, which can't use store 'store'",
    ),
    "store of a source": (lambda t: t.add_state_store(store(), ["read"]), "'read' is a source"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    add, message = REFUSED[what]
    with pytest.raises(TopologyError, match=message):
        add(base())


def test_a_store_without_processors_is_omitted() -> None:
    """As in Kafka Streams."""
    topology = base().add_state_store(Stores.key_value("unused", key_serde=str, value_serde=str))
    assert topology.store_names == ("unused",)
    assert [sub.stores for sub in topology.spec().subtopologies] == [()]


def test_empty_topology_has_no_spec() -> None:
    with pytest.raises(
        TopologyError, match=r"the topology is empty.*start with stream\(\) or table\(\)"
    ):
        Topology().spec()


def test_missing_serdes_name_the_node() -> None:
    topology = Topology().add_source("read", "in", key_serde=str)
    message = r"'read' \(.*test_topology.py:\d+\): no value serde; .* or set default_value_serde"
    with pytest.raises(TopologyError, match=message):
        topology.spec()


@pytest.mark.parametrize(
    ("topic", "what"),
    [
        ("app-wide-repartition", "the repartition topic of "),
        ("app-counts-changelog", "the changelog of store counts"),
        ("wide-repartition", None),
        ("counts-changelog", None),
    ],
)
def test_internal_topics_are_not_written_by_hand(topic: str, what: str | None) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=str, value_serde=str)
    stream.repartition(name="wide").group_by_key().count(store="counts")
    stream.to(topic)
    config = StreamsConfig(application_id="app")
    if what is None:
        TopologyTestDriver(builder.build(), config).close()
        return
    with pytest.raises(TopologyError, match=rf"test_topology.py.*topic '{topic}' is {what}"):
        TopologyTestDriver(builder.build(), config)


def test_the_hash_does_not_depend_on_the_order_of_a_description() -> None:
    builder = StreamsBuilder()
    one, two = (
        builder.stream(topics, key_serde=str, value_serde=str) for topics in (["z", "in1"], ["in2"])
    )
    for _ in range(2):
        counts = two.group_by_key().windowed_by(TimeWindows(5)).count()
        counts.to_stream().select_key(lambda key: "")
    one.merge(two)
    assert builder.build().hash() == "4311db22d950bac4"
