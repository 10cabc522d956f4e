"""Keyed analysis: splittable sub-topologies, and reasons against."""

from collections.abc import Callable
from functools import partial
from inspect import isabstract
from typing import Any

import pytest

from tidewheel import (
    BufferConfig,
    FixedKeyProcessor,
    JoinWindows,
    KStream,
    KTable,
    Materialized,
    Processor,
    Record,
    Serdes,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    Suppressed,
    TimeWindows,
    Topology,
    ValueTransformerWithKey,
)
from tidewheel.streams.serdes import Serde
from tidewheel.streams.worker.application.wiring import whole_tasks
from tidewheel.tasks.key_ranges.keyed_analysis import (
    Keyedness,
    counted,
    joint_ranks,
    keyedness,
)
from tidewheel.tasks.processing.engine.operator import Operator

Text = KStream[str, str]
Rows = KTable[str, str]
Program = Callable[[Text, Text, Rows], Any]

CONFIG = StreamsConfig(
    application_id="app",
    bootstrap_servers="nobody:1",
    default_key_serde=str,
    default_value_serde=str,
    topology_optimization="none",
)


def built(program: Program) -> list[Keyedness]:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=str, value_serde=str)
    other = builder.stream("other", key_serde=str, value_serde=str)
    table = builder.table("rows", key_serde=str, value_serde=str, store="t")
    program(stream, other, table)
    return [keyedness(each) for each in builder.build(CONFIG).spec(CONFIG).subtopologies]


def reasons(program: Program) -> str:
    return "; ".join(each.reason for each in built(program) if not each.keyed)


def joined(one: object, other: object) -> str:
    return f"{one}{other}"


def added(key: str, value: str, aggregate: str) -> str:
    return aggregate + key + value


class Counter(Processor[str, str, str, str]):
    """Keyed processor."""

    keyed = True

    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record)


class FixedCounter(FixedKeyProcessor[str, str, str]):
    keyed = True

    def process(self, record: Any) -> None:
        self.context.forward(record)


class Silent(Processor[str, str, str, str]):
    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record)


class Shout(ValueTransformerWithKey[str, str, str]):
    def transform(self, key: str, value: str | None) -> str | None:
        return None if value is None else value.upper()


class KeyedShout(Shout):
    keyed = True


def with_store(
    supplier: Callable[[], Any], store: Any = None, *, mapped: bool = False
) -> Callable[[], Keyedness]:
    def said() -> Keyedness:
        builder = StreamsBuilder()
        builder.add_state_store(store or Stores.key_value("s", key_serde=str, value_serde=str))
        stream = builder.stream("in", key_serde=str, value_serde=str)
        if mapped:
            stream = stream.select_key(lambda value: value)
        stream.process(supplier, stores=["s"], name="own").to("out")
        (spec,) = builder.build(CONFIG).spec(CONFIG).subtopologies
        return keyedness(spec)

    return said


KEYED: dict[str, Program] = {
    "stateless": lambda s, o, t: (
        s.filter(bool).map(lambda k, v: (v, k)).flat_map_values(list).to("x")
    ),
    "count": lambda s, o, t: s.group_by_key().count(),
    "reduce": lambda s, o, t: s.group_by_key().reduce(joined),
    "aggregate": lambda s, o, t: s.group_by_key().aggregate(str, added, value_serde=str),
    "behind a repartition": lambda s, o, t: s.group_by(lambda v: v, key_serde=str).count(),
    "tables": lambda s, o, t: t.filter(bool).map_values(str.upper, store="m"),
    "stream-table join": lambda s, o, t: s.join(t, joined),
    "join with a computed table": lambda s, o, t: s.left_join(t.map_values(str.upper), joined),
    "table-table join": lambda s, o, t: t.outer_join(s.to_table(), joined),
    "grouped table": lambda s, o, t: t.group_by(lambda k, v: (v, v)).reduce(joined, joined),
    "cogroup": lambda s, o, t: (
        s.group_by_key().cogroup(added).cogroup(o.group_by_key(), added).aggregate(str)
    ),
    "windows": lambda s, o, t: s.group_by_key().windowed_by(TimeWindows(5)).count(),
    "windows behind map_values": lambda s, o, t: (
        s.map_values(str.upper).peek(print).group_by_key().windowed_by(TimeWindows(5)).count()
    ),
    "sessions": lambda s, o, t: s.group_by_key().windowed_by(SessionWindows(5)).count(),
    "sliding": lambda s, o, t: s.group_by_key().windowed_by(SlidingWindows(5)).count(),
    "a table of windows, kept": lambda s, o, t: (
        s.group_by_key()
        .windowed_by(TimeWindows(5))
        .count()
        .map_values(str, store=Materialized("w", value_serde=str))
    ),
    "transform_values": lambda s, o, t: t.transform_values(KeyedShout),
    "process": lambda s, o, t: s.process(Counter).to("x"),
    "process by a function": lambda s, o, t: s.process(partial(Counter)).to("x"),
    "process_values, then a count": lambda s, o, t: (
        s.process_values(FixedCounter).group_by_key().count()
    ),
}

FREE: dict[str, tuple[Program, str]] = {
    "stream-stream join": (
        lambda s, o, t: s.join(o, joined, within=JoinWindows(5)),
        "joins two streams",
    ),
    "foreign-key join": (
        lambda s, o, t: t.join(s.to_table(), joined, foreign_key=lambda v: v),
        "foreign-key join reads rows of other keys",
    ),
    "suppress": (
        lambda s, o, t: t.suppress(Suppressed.until_time_limit(5, BufferConfig.unbounded())),
        "holds rows back",
    ),
    "on close": (
        lambda s, o, t: (
            s.group_by_key().windowed_by(TimeWindows(5)).emit_strategy("on_window_close").count()
        ),
        "emits when windows close",
    ),
    "windows behind a filter": (
        lambda s, o, t: s.filter(bool).group_by_key().windowed_by(TimeWindows(5)).count(),
        "operators above it may drop some",
    ),
    "windows behind a join": (
        lambda s, o, t: s.join(t, joined).group_by_key().windowed_by(TimeWindows(5)).count(),
        "operators above it may drop some",
    ),
    "windows of two kinds of time": (
        lambda s, o, t: (
            s.group_by_key().windowed_by(TimeWindows(5)).count(),
            s.group_by_key().windowed_by(SlidingWindows(5)).count(),
        ),
        "uses the times of other records",
    ),
    "a processor without `keyed`": (
        lambda s, o, t: s.process(Silent, name="own").to("x"),
        "own: it doesn't set `keyed = True`",
    ),
    "a transformer without `keyed`": (
        lambda s, o, t: t.transform_values(Shout),
        "it doesn't set `keyed = True`",
    ),
    "a count behind a keyed processor that may change keys": (
        lambda s, o, t: (
            s.process(Counter).process_values(FixedCounter, stores=["t"], name="own").to("x")
        ),
        "own: it uses store t by keys that were changed",
    ),
}


@pytest.mark.parametrize("program", KEYED.values(), ids=KEYED)
def test_K4_keyed_programs_may_be_cut(program: Program) -> None:
    assert reasons(program) == ""


@pytest.mark.parametrize(("program", "reason"), FREE.values(), ids=FREE)
def test_K4_programs_that_read_other_keys_stay_whole_with_a_reason(
    program: Program, reason: str
) -> None:
    assert reason in reasons(program)


def test_K4_a_processor_store_is_keyed_only_by_unchanged_record_keys() -> None:
    assert with_store(Counter)().keyed
    assert "keys that were changed" in with_store(Counter, mapped=True)().reason
    assert "doesn't set" in with_store(Silent)().reason


@pytest.mark.parametrize(
    ("store", "reason"),
    [
        (
            Stores.window("s", key_serde=str, value_serde=str, retention=100_000, window_size=5),
            "rows expire by the time of all keys",
        ),
        (
            Stores.versioned("s", key_serde=str, value_serde=str, history_retention=5),
            "versions expire by the time of all keys",
        ),
        (
            Stores.lru("s", max_entries=3, key_serde=str, value_serde=str),
            "keys of the whole task that were used last",
        ),
    ],
    ids=["window", "versioned", "lru"],
)
def test_K4_stores_whose_rows_depend_on_each_other_stay_whole(store: Any, reason: str) -> None:
    assert reason in with_store(Counter, store)().reason


def _reason_of_join(key_serde: Any, other: Any) -> str:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=key_serde, value_serde=str)
    table = builder.table("rows", key_serde=other, value_serde=str)
    stream.join(table, joined).to("out")
    (spec,) = builder.build(CONFIG).spec(CONFIG).subtopologies
    return keyedness(spec).reason


def test_K7_equal_keys_have_equal_bytes_or_stay_whole() -> None:
    assert _reason_of_join(Serdes.string(), Serdes.string()) == ""
    assert "may differ for equal keys (json)" in _reason_of_join(Serdes.json(), Serdes.json())
    assert "different serdes: int32" in _reason_of_join(Serdes.int32(), Serdes.int64())


def test_K4_a_table_restored_from_its_own_topic_stays_whole() -> None:
    builder = StreamsBuilder()
    builder.table("rows", key_serde=str, value_serde=str, store="t")
    config = CONFIG.model_copy(update={"topology_optimization": "all"})
    (spec,) = builder.build(config).spec(config).subtopologies
    assert "store t is restored from its topic rows" in keyedness(spec).reason


def test_K4_every_operator_is_classified() -> None:
    unknown = Operator.needs_whole_task
    assert unknown
    found = {
        each
        for each in _subclasses(Operator)
        if each.__module__.startswith("tidewheel.streams.operators") and not isabstract(each)
    }
    silent = {each.__name__ for each in found if each.needs_whole_task == unknown}
    assert len(found) > 30
    assert silent == set()


def _subclasses(kind: type[Any]) -> set[type[Any]]:
    below: set[type[Any]] = set(kind.__subclasses__())
    return below.union(*map(_subclasses, below))


def test_K4_the_analysis_names_the_inputs_that_advance_time() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=str, value_serde=str, name="read")
    table = builder.table("rows", key_serde=str, value_serde=str)
    stream.join(table, joined).to("out")
    stream.group_by_key().windowed_by(SlidingWindows(5)).count()
    (spec,) = builder.build(CONFIG).spec(CONFIG).subtopologies
    assert keyedness(spec) == Keyedness()
    found = counted(spec)
    assert found is not None
    assert (found.sources, found.null_values) == (frozenset({"read"}), False)


def test_the_description_names_the_reason_against_key_ranges() -> None:
    topology = Topology().add_source("read", "in", key_serde=str, value_serde=str)
    topology.add_processor("own", Silent, parents=["read"])
    description = topology.describe(execution=True)
    assert "    Key ranges: free: own: it doesn't set `keyed = True`\n" in str(description)
    (part,) = description.to_dict()["subtopologies"]
    assert part["key_ranges"] == "free: own: it doesn't set `keyed = True`"
    assert "Key ranges" not in str(topology.describe())


def test_a_custom_canonical_serde_is_trusted() -> None:
    own: Serde[str] = Serde(
        lambda topic, key: key.encode(),
        lambda topic, data: data.decode(),
        name="own",
        canonical=True,
    )
    assert _reason_of_join(own, own) == ""


def test_K4_the_start_lists_the_whole_tasks() -> None:
    builder = StreamsBuilder()
    builder.stream("in", key_serde=str, value_serde=str).process(Silent, name="own").to("x")
    builder.stream("other", key_serde=str, value_serde=str).to("y")
    spec = builder.build(CONFIG).spec(CONFIG)
    (said,) = whole_tasks(spec, CONFIG.model_copy(update={"parallelising_factor": 4}))
    assert said == (
        "tasks of sub-topology 0 are not split into key ranges, so parallelising_factor=4 does nothing for them: own: it "
        "doesn't set `keyed = True`"
    )
    assert whole_tasks(spec, CONFIG) == []


def ranks_of(program: Program, *, reuses_topics: bool = False) -> dict[str, int] | None:
    """Return the ranks by topic in the sub-topology of the stream "in"."""
    builder = StreamsBuilder()
    stream, other = builder.stream("in"), builder.stream("other")
    program(stream, other, builder.table("rows"))
    config = CONFIG.model_copy(
        update={"topology_optimization": "reuse_ktable_source_topics"} if reuses_topics else {}
    )
    for spec in builder.build(config).spec(config).subtopologies:
        if any("in" in source.topics for source in spec.sources):
            ranks = joint_ranks(spec)
            if ranks is None:
                return None
            return {source.topics[0]: ranks[source.name] for source in spec.sources}
    raise AssertionError("the stream is read")


@pytest.mark.parametrize("reuses_topics", [True, False])
def test_rows_before_a_joined_record_may_share_its_batch(*, reuses_topics: bool) -> None:
    ranks = ranks_of(lambda s, o, t: s.join(t, joined).to("out"), reuses_topics=reuses_topics)
    assert ranks == {"rows": 0, "in": 1}
    ranks = ranks_of(lambda s, o, t: s.left_join(t, joined).join(o.to_table(), joined).to("out"))
    assert ranks is not None
    assert ranks["in"] == 2


def test_rows_of_joined_tables_share_no_batch_if_their_keys_are_equal() -> None:
    ranks = ranks_of(lambda s, o, t: s.to_table().join(t, joined).to_stream().to("out"))
    assert ranks == {"in": 0, "rows": 0}


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(
            lambda s, o, t: s.join(o, joined, within=JoinWindows(5)).join(t, joined).to("out"),
            id="joined streams",
        ),
        pytest.param(
            lambda s, o, t: (
                s.join(t, joined).to("out"),
                s.group_by_key().windowed_by(TimeWindows(5)).count(),
            ),
            id="windows",
        ),
        pytest.param(lambda s, o, t: s.join(t, joined).process(Counter), id="processor"),
        pytest.param(
            lambda s, o, t: (s.join(t, joined).to("out"), s.left_join(t, joined).to("out")),
            id="two sinks of one topic",
        ),
        pytest.param(
            lambda s, o, t: (
                s.group_by_key().cogroup(added).cogroup(o.group_by_key(), added).aggregate(str)
            ),
            id="shared cache",
        ),
        pytest.param(
            lambda s, o, t: s.join(t, joined).to_table(
                store=Materialized("last", store_type="lru", max_entries=3)
            ),
            id="not keyed",
        ),
    ],
)
def test_other_records_share_no_batch(program: Program) -> None:
    assert ranks_of(program) is None
