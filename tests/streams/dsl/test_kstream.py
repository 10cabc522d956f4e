from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.definitions.materialized import Materialized
from tidewheel.streams.dsl.builder import StreamsBuilder
from tidewheel.streams.dsl.kstream import KStream
from tidewheel.streams.errors import ConfigError, TopologyError
from tidewheel.streams.operators import stateless
from tidewheel.streams.operators.aggregate import StreamAggregate, StreamCount, StreamReduce
from tidewheel.streams.operators.tables.table import TableFilter, TableMapValues, TableSource
from tidewheel.streams.topology.topology import Topology
from tidewheel.tasks.processing.api.processor import Processor
from tidewheel.tasks.processing.api.record import Record
from tidewheel.tasks.processing.api.topology_spec import ProcessorSpec, SinkSpec
from tidewheel.tasks.processing.engine.operator import OperatorSupplier

Stream = KStream[Any, Any]


class Own(Processor[Any, Any, Any, Any]):
    def process(self, record: Record[Any, Any]) -> None: ...


def built(use: Callable[[Stream], object]) -> Topology:
    builder = StreamsBuilder()
    use(builder.stream("in", key_serde=str, value_serde=str))
    return builder.build()


def names(topology: Topology) -> list[str]:
    return [node.name for sub in topology.draft().subtopologies for node in sub.nodes]


def node(topology: Topology, name: str) -> Any:
    nodes = {node.name: node for sub in topology.draft().subtopologies for node in sub.nodes}
    return nodes[name]


OPERATORS: dict[str, tuple[Callable[..., Any], str, type | None]] = {
    "filter": (lambda s, **o: s.filter(bool, **o), "KSTREAM-FILTER-", stateless.Filter),
    "filter_not": (lambda s, **o: s.filter_not(bool, **o), "KSTREAM-FILTER-", stateless.Filter),
    "map": (lambda s, **o: s.map(lambda k, v: (k, v), **o), "KSTREAM-MAP-", stateless.Map),
    "map_values": (
        lambda s, **o: s.map_values(len, **o),
        "KSTREAM-MAPVALUES-",
        stateless.MapValues,
    ),
    "flat_map": (
        lambda s, **o: s.flat_map(lambda k, v: [(k, v)], **o),
        "KSTREAM-FLATMAP-",
        stateless.FlatMap,
    ),
    "flat_map_values": (
        lambda s, **o: s.flat_map_values(str.split, **o),
        "KSTREAM-FLATMAPVALUES-",
        stateless.FlatMapValues,
    ),
    "select_key": (
        lambda s, **o: s.select_key(len, **o),
        "KSTREAM-KEY-SELECT-",
        stateless.SelectKey,
    ),
    "peek": (lambda s, **o: s.peek(print, **o), "KSTREAM-PEEK-", stateless.Peek),
    "foreach": (lambda s, **o: s.foreach(print, **o), "KSTREAM-FOREACH-", stateless.Foreach),
    "print": (lambda s, **o: s.print("seen", **o), "KSTREAM-PRINTER-", stateless.Foreach),
    "merge": (lambda s, **o: s.merge(s.peek(print), **o), "KSTREAM-MERGE-", stateless.PassThrough),
    "process": (lambda s, **o: s.process(Own, **o), "KSTREAM-PROCESSOR-", None),
    "to_table": (lambda s, **o: s.to_table(**o), "KSTREAM-TOTABLE-", TableSource),
    "count": (lambda s, **o: s.group_by_key().count(**o), "KSTREAM-AGGREGATE-", StreamCount),
    "reduce": (lambda s, **o: s.group_by_key().reduce(max, **o), "KSTREAM-REDUCE-", StreamReduce),
    "aggregate": (
        lambda s, **o: s.group_by_key().aggregate(int, lambda k, v, a: a, value_serde=int, **o),
        "KSTREAM-AGGREGATE-",
        StreamAggregate,
    ),
    "table filter": (
        lambda s, **o: s.to_table().filter(bool, **o),
        "KTABLE-FILTER-",
        TableFilter,
    ),
    "table filter_not": (
        lambda s, **o: s.to_table().filter_not(bool, **o),
        "KTABLE-FILTER-",
        TableFilter,
    ),
    "table map_values": (
        lambda s, **o: s.to_table().map_values(len, **o),
        "KTABLE-MAPVALUES-",
        TableMapValues,
    ),
    "to_stream": (
        lambda s, **o: s.to_table().to_stream(**o),
        "KTABLE-TOSTREAM-",
        stateless.ToStream,
    ),
}


@pytest.mark.parametrize("operator", OPERATORS)
def test_each_operator_makes_its_node(operator: str) -> None:
    use, prefix, made = OPERATORS[operator]
    generated, named = built(use), built(lambda stream: use(stream, name="mine"))
    (name,) = [name for name in names(generated) if name.startswith(prefix)]
    assert name.removeprefix(prefix).isdigit()
    assert len(name.removeprefix(prefix)) == 10
    assert names(named) == [other if other != name else "mine" for other in names(generated)]
    supplier = node(named, "mine").supplier
    if made is None:
        assert supplier is Own
    else:
        assert isinstance(supplier, OperatorSupplier)
        assert supplier.operator is made
        assert type(supplier()) is made


@pytest.mark.parametrize("operator", [name for name in OPERATORS if name != "process"])
def test_a_given_name_still_uses_up_the_number(operator: str) -> None:
    use = OPERATORS[operator][0]

    def with_more(stream: Stream, **options: Any) -> None:
        use(stream, **options)
        stream.to("out")

    assert names(built(with_more))[-1] == names(built(lambda s: with_more(s, name="mine")))[-1]


def test_name_of_an_aggregation_also_names_its_store_and_topic() -> None:
    topology = built(lambda s: s.group_by(len, key_serde=int).count(name="sizes"))
    assert topology.store_names == ("sizes",)
    assert topology.spec().repartition_topics == {"sizes-repartition": None}
    topology = built(lambda s: s.group_by(len, key_serde=int).count(name="sizes", store="kept"))
    assert topology.store_names == ("kept",)
    assert topology.spec().repartition_topics == {"kept-repartition": None}
    topology = built(lambda s: s.to_table(name="t").filter(bool, name="f"))
    assert topology.store_names == ()


def test_operators_receive_the_arguments_of_the_call() -> None:
    topology = built(lambda s: s.filter_not(lambda key, value: key == value, name="f"))
    function, negate = node(topology, "f").supplier.arguments
    assert function.takes_key
    assert negate is True
    topology = built(lambda s: s.group_by_key().reduce(max, store="best", name="r"))
    assert node(topology, "r").supplier.arguments == ("best", max)
    topology = built(lambda s: s.to_table(store="t").filter(bool, store="f", name="kept"))
    assert node(topology, "kept").supplier.arguments[1:3] == (False, "f")


def test_print_writes_a_label_to_stdout_or_to_the_given_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "seen.txt"

    def printing(stream: Any) -> None:
        stream.print(name="a")
        stream.print("seen", to=path, name="b")

    topology = built(printing)
    for name in ("a", "b", "b"):
        (function,) = node(topology, name).supplier.arguments
        assert function.takes_key
        function.call("k", None)
    assert capsys.readouterr().out == "[KSTREAM-SOURCE-0000000000]: k, None\n"
    assert path.read_text() == "[seen]: k, None\n[seen]: k, None\n"


@pytest.mark.parametrize("to", [".", "no/such/folder/seen.txt", "", "nul\0", 5])
def test_print_refuses_a_file_it_cannot_write(to: Any) -> None:
    with pytest.raises(
        TopologyError, match=r"print \(.*test_kstream.py:\d+\): can't append to to="
    ):
        built(lambda s: s.print("seen", to=to))


REKEYING = ("map", "flat_map", "select_key", "process")


@pytest.mark.parametrize(
    "operator", [name for name in OPERATORS if not name.startswith(("t", "c", "r", "a"))]
)
def test_a_repartition_topic_is_created_only_if_the_key_may_have_changed(operator: str) -> None:
    def use(stream: Stream) -> None:
        changed = OPERATORS[operator][0](stream) or stream
        changed.filter(bool).group_by_key(key_serde=str, value_serde=str).count(store="c")

    topics = built(use).spec().repartition_topics
    assert topics == ({"c-repartition": None} if operator in REKEYING else {})


def test_a_repartition_topic_accepts_settings() -> None:
    topology = built(lambda s: s.repartition(name="r", topic_config={"retention.ms": "5"}))
    assert topology.spec().repartition_configs == {"r-repartition": {"retention.ms": "5"}}


@pytest.mark.parametrize(
    "config",
    [
        {"cleanup.policy": "compact"},
        {"message.timestamp.type": "LogAppendTime"},
        {"retention.ms": 5},
        "retention.ms=5",
    ],
)
def test_settings_that_would_break_a_repartition_topic_are_refused(config: Any) -> None:
    with pytest.raises(TopologyError, match="topic_config"):
        built(lambda s: s.repartition(name="r", topic_config=config))
    with pytest.raises(ConfigError, match="repartition_topic_config"):
        StreamsConfig(
            application_id="app",
            bootstrap_servers="unused:9092",
            repartition_topic_config=config,
        )


def test_group_by_always_repartitions_and_a_repartitioned_stream_is_not_repartitioned() -> None:
    topology = built(lambda s: s.group_by(lambda key, value: key, key_serde=str).count(store="c"))
    assert topology.spec().repartition_topics == {"c-repartition": None}
    moved = built(
        lambda s: s.select_key(len).repartition(name="r", key_serde=int).group_by_key().count()
    )
    assert moved.spec().repartition_topics == {"r-repartition": None}


def test_a_group_without_an_aggregation_has_no_topic() -> None:
    def grouping(stream: Any) -> None:
        stream.group_by(len)
        stream.to("out")

    topology = built(grouping)
    assert topology.spec().repartition_topics == {}
    assert names(topology)[-1] == "KSTREAM-SINK-0000000002"


def test_unnamed_groups_repartition_once_per_aggregation() -> None:
    def use(stream: Stream) -> None:
        grouped = stream.group_by(len, key_serde=int)
        grouped.count(store="a")
        grouped.count(store="b")

    assert set(built(use).spec().repartition_topics) == {"a-repartition", "b-repartition"}


def test_named_groups_share_their_topic() -> None:
    def use(stream: Stream) -> None:
        grouped = stream.select_key(len).group_by_key(key_serde=int, name="grouping")
        grouped.count(store="a")
        grouped.count(store="b")
        stream.to("out")

    topology = built(use)
    assert topology.spec().repartition_topics == {"grouping-repartition": None}
    assert node(topology, "KSTREAM-AGGREGATE-0000000002").parents == (
        "grouping-repartition-source",
    )
    assert node(topology, "KSTREAM-AGGREGATE-0000000006").parents == (
        "grouping-repartition-source",
    )
    assert "KSTREAM-SINK-0000000010" in names(topology)
    assert len(topology.spec().subtopologies) == 2


def test_two_groups_of_one_name_are_refused() -> None:
    def use(stream: Stream) -> None:
        for _ in range(2):
            stream.select_key(len).group_by_key(key_serde=int, name="grouping").count()

    with pytest.raises(
        TopologyError, match=r"'grouping-repartition-filter' \(.*\): the topology has a node"
    ):
        built(use)


def test_a_name_that_ends_in_repartition_is_not_doubled() -> None:
    topology = built(lambda s: s.repartition(name="x-repartition"))
    assert topology.spec().repartition_topics == {"x-repartition": None}


def test_unnamed_repartition_gets_numbers() -> None:
    assert names(built(lambda s: s.repartition())) == [
        "KSTREAM-SOURCE-0000000000",
        "KSTREAM-FILTER-0000000003",
        "KSTREAM-SINK-0000000002",
        "KSTREAM-SOURCE-0000000004",
    ]


def test_null_keys_are_dropped_before_a_repartition() -> None:
    topology = built(lambda s: s.repartition(name="r"))
    assert node(topology, "r-repartition-filter").supplier.operator is stateless.DropNullKeys


def test_split_names_its_branches() -> None:
    found: dict[str, Stream] = {}

    def use(stream: Stream) -> None:
        found.update(stream.split({"-1": bool, "-2": lambda k, v: False}, name="branch-processor"))
        stream.split({"big": bool}, default="rest")["rest"].to("out")

    topology = built(use)
    assert list(found) == ["-1", "-2"]
    assert names(topology) == [
        "KSTREAM-SOURCE-0000000000",
        "branch-processor",
        "branch-processor-1",
        "branch-processor-2",
        "KSTREAM-BRANCH-0000000004",
        "KSTREAM-BRANCH-0000000004big",
        "KSTREAM-BRANCH-0000000004rest",
        "KSTREAM-SINK-0000000007",
    ]
    branches, default = node(topology, "KSTREAM-BRANCH-0000000004").supplier.arguments
    assert [name for _, name in branches] == ["KSTREAM-BRANCH-0000000004big"]
    assert default == "KSTREAM-BRANCH-0000000004rest"
    assert node(topology, "branch-processor").supplier.arguments[1] is None


def test_merge_of_several_is_a_chain() -> None:
    topology = built(lambda s: s.merge(s.peek(print), s.peek(print), name="all"))
    assert node(topology, "KSTREAM-MERGE-0000000003").parents == (
        "KSTREAM-SOURCE-0000000000",
        "KSTREAM-PEEK-0000000001",
    )
    assert node(topology, "all").parents == ("KSTREAM-MERGE-0000000003", "KSTREAM-PEEK-0000000002")


def test_to_a_topic_chosen_by_a_function() -> None:
    def choose(key: str, _value: str, _context: object) -> str:
        return key

    topology = built(lambda s: s.to(choose, name="sink"))
    sink = node(topology, "sink")
    assert isinstance(sink, SinkSpec)
    assert sink.topic is choose


def test_to_stream_with_a_key_mapper_selects_a_key_after_it() -> None:
    topology = built(
        lambda s: s.to_table().to_stream(len).group_by_key(key_serde=int).count(store="c")
    )
    assert names(topology)[:4] == [
        "KSTREAM-SOURCE-0000000000",
        "KSTREAM-TOTABLE-0000000001",
        "KTABLE-TOSTREAM-0000000003",
        "KSTREAM-KEY-SELECT-0000000004",
    ]
    assert topology.spec().repartition_topics == {"c-repartition": None}


def test_specs_name_the_users_line() -> None:
    topology = built(
        lambda s: s.select_key(len).group_by_key(key_serde=int).count().to_stream().to("o")
    )
    for sub in topology.spec().subtopologies:
        for spec in sub.nodes:
            assert "test_kstream.py:" in spec.location
            if isinstance(spec, ProcessorSpec):
                assert isinstance(spec.supplier, OperatorSupplier)


#: Untyped, for wrong calls.
ANY_BUILDER: Any = StreamsBuilder

REFUSED: dict[str, tuple[Callable[[Any], object], str]] = {
    "three parameters": (
        lambda s: s.filter(lambda a, b, c: True),
        r"filter \(.*test_kstream.py:\d+\): predicate .* it must take \(value\) or \(key, value\)",
    ),
    "not a function": (
        lambda s: s.map_values("upper"),
        r"map_values \(.*\): the mapper is of type str",
    ),
    "key mapper": (
        lambda s: s.to_table().to_stream(7),
        r"to_stream \(.*\): the mapper is of type int",
    ),
    "initializer": (
        lambda s: s.group_by_key().aggregate(lambda key: 0, lambda k, v, a: a),
        r"aggregate \(.*\): initializer",
    ),
    "aggregator": (
        lambda s: s.group_by_key().aggregate(int, lambda v, a: a),
        r"aggregate \(.*\): aggregator .* \(key, value, aggregate\)",
    ),
    "reducer": (lambda s: s.group_by_key().reduce(lambda v: v), r"reduce \(.*\): reducer"),
    "name with a blank": (
        lambda s: s.filter(bool, name="a b"),
        r"filter \(.*\): name 'a b' has ' '",
    ),
    "empty name": (lambda s: s.to("out", name=""), "name is empty"),
    "name of another type": (
        lambda s: s.peek(print, name=["x"]),
        "name is of type list, not a name",
    ),
    "long repartition name": (
        lambda s: s.repartition(name="x" * 240),
        r"repartition \(.*\): repartition topic .* has 252 characters",
    ),
    "list of topics to write": (lambda s: s.to(["a", "b"]), r"to \(.*\): topic is of type list"),
    "topic function": (
        lambda s: s.to(lambda key: key),
        r"topic must take 3 parameters: \(key, value, context\)",
    ),
    "async topic function": (
        lambda s: s.to(_waits),
        r"to \(.*\): topic is an async function.*give a plain function",
    ),
    "async partitioner": (
        lambda s: s.to("out", partitioner=_waits),
        "partitioner is an async function",
    ),
    "async partitioner of a repartition": (
        lambda s: s.repartition(partitioner=_waits),
        "partitioner is an async function",
    ),
    "extractor": (
        lambda s: ANY_BUILDER().stream("x", timestamp_extractor=lambda record: 0),
        r"timestamp_extractor must take 2 parameters: \(record, partition_time\)",
    ),
    "async extractor": (
        lambda s: ANY_BUILDER().stream("x", timestamp_extractor=_waits),
        r"stream \(.*\): timestamp_extractor is an async function",
    ),
    "serde": (
        lambda s: s.to("out", key_serde="string"),
        r"to \(.*\): key_serde=<str> is not a serde",
    ),
    "partitions": (
        lambda s: s.repartition(partitions=0),
        "partitions=0; give a whole number from 1",
    ),
    "partitions as bool": (lambda s: s.repartition(partitions=True), "partitions=True"),
    "store": (
        lambda s: s.group_by_key().count(store=7),
        r"count \(.*\): store is of type int; give a name",
    ),
    "store name": (lambda s: s.to_table(store="a/b"), "store name 'a/b' has '/' at position 1"),
    "store names": (
        lambda s: s.process(Own, stores="seen"),
        "stores is of type str; give a list of names",
    ),
    "processor object": (lambda s: s.process(Own()), "the supplier is an object of type Own"),
    "branches": (lambda s: s.split([bool]), r"split \(.*\): branches is of type list; give a dict"),
    "no branches": (lambda s: s.split({}), "there is no branch"),
    "default twice": (
        lambda s: s.split({"a": bool}, default="a"),
        "'a' is a branch and the default",
    ),
    "branch name": (lambda s: s.split({"a b": bool}), "name 'a b' has ' ' at position 1"),
    "merge nothing": (lambda s: s.merge(), "there is nothing to merge with"),
    "merge a list": (lambda s: s.merge([s]), "type list can't be merged"),
    "merge builders": (
        lambda s: s.merge(StreamsBuilder().stream("x")),
        "the streams come from different builders",
    ),
    "value serde twice": (
        lambda s: s.group_by_key().aggregate(
            int, lambda k, v, a: a, value_serde=int, store=Materialized(value_serde=int)
        ),
        "value_serde is given twice",
    ),
    "async generator": (
        lambda s: s.flat_map(_async),
        r"flat_map \(.*\): .*'_async' is an async generator.*return a list from an async def",
    ),
    "two nodes of a name": (
        lambda s: s.peek(print, name="x").filter(bool, name="x"),
        r"'x' \(.*\): the topology has a node of this name already \(.*\)",
    ),
}


async def _async(value: str) -> Any:
    yield value


async def _waits(*arguments: Any) -> Any: ...


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    use, message = REFUSED[what]
    with pytest.raises(TopologyError, match=message):
        built(use)
