"""Keyed operators: factors 4 and 16 give the results of factor 1 (K3, K6, K7)."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.tasks.key_ranges.range_bench import Out, RangeBench, Row, by_key
from tidewheel import (
    KStream,
    Materialized,
    Serdes,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    Topology,
)
from tidewheel.tasks.key_ranges.key_ranges import key_hash
from tidewheel.tasks.key_ranges.keyed_analysis import keyedness

STRING, JSON = Serdes.string(), Serdes.json()
Streams = tuple[KStream[str, Any], KStream[str, Any]]

#: How long a tick of the tests is: a second and more makes segments of windows expire.
TICKS = (1, 9_000)


def flat(key: Any, _value: Any) -> str:
    return f"{key.key} {key.start} {key.end}"


def listed(_key: Any, value: Any, seen: list[Any]) -> list[Any]:
    seen.append(value)
    return seen


def merged(_key: Any, one: list[Any], two: list[Any]) -> list[Any]:
    return one + two


def pair(left: Any, right: Any) -> list[Any]:
    return [left, right]


def grouped(stream: KStream[str, Any]) -> Any:
    return stream.group_by_key()


WINDOWS: dict[str, Callable[[int], Any]] = {
    "tumbling": lambda tick: TimeWindows(10 * tick, grace=5 * tick),
    "tumbling without grace": lambda tick: TimeWindows(7 * tick, grace=0),
    "hopping": lambda tick: TimeWindows(10 * tick, advance=4 * tick, grace=3 * tick),
    "sliding": lambda tick: SlidingWindows(6 * tick, grace=4 * tick),
    "session": lambda tick: SessionWindows(4 * tick, grace=3 * tick),
}

PLAIN: dict[str, Callable[[Streams], Any]] = {
    "map_values": lambda s: s[0].map_values(lambda value: [value]),
    "filter": lambda s: s[0].filter(lambda _key, value: value != 3),
    "flat_map_values": lambda s: s[0].flat_map_values(lambda value: [value, value]),
    "count": lambda s: grouped(s[0]).count(store="store").to_stream(),
    "reduce": lambda s: grouped(s[0]).reduce(max, store="store").to_stream(),
    "aggregate": lambda s: grouped(s[0]).aggregate(list, listed, store="store", value_serde=JSON).to_stream(),
    "filtered count": lambda s: grouped(s[0].filter(lambda _key, value: value != 3)).count(store="store").to_stream(),
    "to_table": lambda s: s[0].to_table(store="rows").to_stream(),
    "table filter": lambda s: s[0].to_table(store="rows").filter(lambda _key, value: value > 2, store="few").to_stream(),
    "stream-table join": lambda s: s[0].join(s[1].to_table(store="rows"), pair),
    "left stream-table join": lambda s: s[0].left_join(s[1].to_table(store="rows"), pair),
    "table-table join": lambda s: s[0].to_table(store="one").join(s[1].to_table(store="two"), pair, store=Materialized("both", value_serde=JSON)).to_stream(),
    "outer table join": lambda s: s[0].to_table(store="one").outer_join(s[1].to_table(store="two"), pair).to_stream(),
}  # fmt: skip


def plain(name: str) -> Topology:
    builder = StreamsBuilder()
    streams = (
        builder.stream("in", key_serde=STRING, value_serde=JSON),
        builder.stream("side", key_serde=STRING, value_serde=JSON),
    )
    result = PLAIN[name](streams)
    result.to("out", key_serde=STRING, value_serde=JSON)
    return builder.build()


def windowed(name: str, tick: int, counts: bool) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=STRING, value_serde=JSON)
    if name != "sliding":  # which counts only records with a value, as they were read
        stream = stream.map_values(lambda value: value)
    cut = stream.group_by_key().windowed_by(WINDOWS[name](tick))
    if counts:
        result = cut.count(store="store").to_stream(flat)
    else:
        merger: Any = {"merger": merged} if name == "session" else {}
        result = cut.aggregate(list, listed, store="store", value_serde=JSON, **merger).to_stream(
            flat
        )
    result.to("out", key_serde=STRING, value_serde=JSON)
    return builder.build()


KEYS = st.one_of(st.none(), st.sampled_from("abcdefghijkl"))


def rows_of(
    topics: Sequence[str], nulls: bool = True
) -> st.SearchStrategy[list[tuple[str, str | None, int | None, int]]]:
    values = st.one_of(st.none(), st.integers(0, 5)) if nulls else st.integers(0, 5)
    step = st.tuples(
        st.sampled_from(topics), KEYS, values, st.integers(0, 4), st.integers(0, 20) | st.just(0)
    )

    def timed(steps: list[tuple[str, str | None, int | None, int, int]]) -> list[Any]:
        now, found = 0, []
        for topic, key, value, ahead, behind in steps:
            now += ahead
            found.append((topic, key, value, max(now - behind, 0)))
        return found

    return st.lists(step, min_size=1, max_size=40).map(timed)


#: Events between records: a range works, all commit, a crash, new ranges.
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("work"), st.integers(0, 15), st.integers(1, 6)),
        st.tuples(st.just("work"), st.integers(0, 15), st.integers(1, 6)),
        st.tuples(st.just("send"), st.integers(1, 8), st.just(0)),
        st.tuples(st.just("send"), st.integers(1, 8), st.just(0)),
        st.tuples(st.just("commit"), st.just(0), st.just(0)),
        st.tuples(st.just("crash"), st.just(0), st.just(0)),
        st.tuples(st.just("repartition"), st.sampled_from((0, 1, 4, 16)), st.just(0)),
    ),
    max_size=40,
)
COUNTS = st.sampled_from((1, 4, 16))


def encoded(rows: Sequence[tuple[str, str | None, int | None, int]], tick: int) -> list[Row]:
    return [
        (
            topic,
            None if key is None else key.encode(),
            None if value is None else JSON.serialize(topic, value),
            time * tick,
        )
        for topic, key, value, time in rows
    ]


def at_factor_1(
    topology: Topology, topics: Sequence[str], rows: Sequence[Row], **options: Any
) -> RangeBench:
    bench = RangeBench(topology, topics, 0, **options)
    bench.send(rows)
    bench.finish()
    return bench


def in_ranges(
    topology: Topology,
    topics: Sequence[str],
    count: int,
    rows: Sequence[Row],
    actions: Sequence[Any],
    **options: Any,
) -> RangeBench:
    bench = RangeBench(topology, topics, count, **options)
    sent = 0
    for action, one, two in actions:
        match action:
            case "send":
                bench.send(rows[sent : sent + one])
                sent += one
            case "work":
                bench.work(one, two)
            case "commit":
                bench.commit()
            case "crash":
                bench.crash()
                event("crash")
            case _:
                bench.repartition(one)
                event("cut again")
    bench.send(rows[sent:])
    bench.finish()
    return bench


def texts(outputs: Sequence[Out]) -> list[Out]:
    return [out for out in outputs if out[1] is not None]


SLOW = settings(max_examples=8, deadline=None)


@pytest.mark.parametrize("name", PLAIN)
@SLOW
@given(rows=rows_of(("in", "side")), count=COUNTS, actions=ACTIONS)
def test_K3_K6_K7_a_keyed_operator_gives_the_same_at_any_factor(
    name: str, rows: list[Any], count: int, actions: list[Any]
) -> None:
    data = encoded([row for row in rows if row[2] is not None], 1)
    expected = at_factor_1(plain(name), ("in", "side"), data)
    found = in_ranges(plain(name), ("in", "side"), count, data, actions)
    assert by_key(texts(found.outputs())) == by_key(texts(expected.outputs()))
    nameless = [
        sorted(out for out in each.outputs() if out[1] is None) for each in (found, expected)
    ]
    assert nameless[0] == nameless[1]
    assert found.rows() == expected.rows()


@pytest.mark.parametrize("counts", [False, True], ids=["lists", "counts"])
@pytest.mark.parametrize("tick", TICKS)
@pytest.mark.parametrize("name", WINDOWS)
@SLOW
@given(rows=rows_of(("in",)), count=COUNTS, actions=ACTIONS)
def test_K3_K6_windows_give_the_same_at_any_factor(
    name: str, tick: int, counts: bool, rows: list[Any], count: int, actions: list[Any]
) -> None:
    data = encoded(rows, tick)
    expected = at_factor_1(windowed(name, tick, counts), ("in",), data)
    found = in_ranges(windowed(name, tick, counts), ("in",), count, data, actions)
    event("late records" if expected.ranges[0].processing.counters.dropped else "none late")
    assert by_key(found.outputs()) == by_key(expected.outputs())
    mine, theirs = dict(found.rows()["store"]), dict(expected.rows()["store"])
    assert theirs.items() <= mine.items(), "a range deletes nothing that one range keeps"


@pytest.mark.parametrize("name", ["count", "reduce", "aggregate", "to_table", "table-table join"])
@SLOW
@given(rows=rows_of(("in", "side")), count=COUNTS, actions=ACTIONS)
def test_K3_caches_end_with_the_same_at_any_factor(
    name: str, rows: list[Any], count: int, actions: list[Any]
) -> None:
    data = encoded([row for row in rows if row[2] is not None], 1)
    expected = at_factor_1(plain(name), ("in", "side"), data, cache_bytes=1 << 20)
    found = in_ranges(plain(name), ("in", "side"), count, data, actions, cache_bytes=1 << 20)
    last = [
        {key: outs[-1] for key, outs in by_key(each.outputs()).items()}
        for each in (found, expected)
    ]
    assert last[0] == last[1]
    assert found.rows() == expected.rows()


def test_K3_expired_rows_are_deleted_by_the_slowest_range() -> None:
    tick = 60_000
    bench = RangeBench(windowed("tumbling", tick, True), ("in",), 4)
    slow = bench.cut.index_of(key_hash(b"a", 0))
    rows: list[Row] = [("in", b"a", b"1", 0), ("in", b"a", b"1", tick)]
    rows += [("in", key, b"1", 1_000 * tick) for key in (b"b", b"c", b"d", b"e", b"f")]
    bench.send(rows)
    bench.work(slow, 1)
    for index in range(4):
        if index != slow:
            bench.work(index, 100)
    bench.commit()
    bench.commit()
    assert any(key[8:].startswith(b"a") for key, _ in bench.rows()["store"]), "still needed"
    bench.finish()
    bench.send([("in", key, b"1", 1_001 * tick) for key in (b"a", b"b")])
    bench.finish()
    assert by_key(bench.outputs())["out", b"a 0 600000"][-1][2] == b"2", (
        "the slow range found its window"
    )
    assert not any(bench.database.iterate("store", None, (10).to_bytes(8, "big"))), (
        "all are past it"
    )


@pytest.mark.parametrize("first", [0, 1], ids=["its range first", "its range last"])
def test_K3_lateness_does_not_depend_on_the_faster_range(first: int) -> None:
    bench = RangeBench(windowed("tumbling without grace", 1, True), ("in",), 16)
    keys = (b"a", b"b")
    one, other = (bench.cut.index_of(key_hash(key, 0)) for key in keys)
    assert one != other
    bench.send([("in", b"a", b"1", 0), ("in", b"b", b"1", 100), ("in", b"a", b"1", 3)])
    for index in (one, other) if first == 0 else (other, one):
        bench.work(index, 10)
    bench.commit()
    assert by_key(bench.outputs()) == {
        ("out", b"a 0 7"): [("out", b"a 0 7", b"1", 0)],
        ("out", b"b 98 105"): [("out", b"b 98 105", b"1", 100)],
    }
    assert bench.ranges[one].processing.counters.dropped == 1


def test_K3_a_record_ahead_makes_no_earlier_record_late() -> None:
    bench = RangeBench(windowed("tumbling without grace", 1, True), ("in",), 16)
    bench.send([("in", b"a", b"1", 0), ("in", b"a", b"1", 3), ("in", b"b", b"1", 100)])
    bench.work(bench.cut.index_of(key_hash(b"b", 0)), 10)
    bench.commit()
    bench.crash()
    bench.finish()
    assert by_key(bench.outputs())["out", b"a 0 7"] == [
        ("out", b"a 0 7", b"1", 0),
        ("out", b"a 0 7", b"2", 3),
    ]


@pytest.mark.parametrize("keys", [(b"a", b"b"), (b"b", b"a")])
@pytest.mark.parametrize("count", [0, 1, 4, 16])
def test_K6_a_late_record_is_late_after_a_crash_in_another_number_of_ranges(
    keys: tuple[bytes, bytes], count: int
) -> None:
    one, other = keys
    bench = RangeBench(windowed("tumbling without grace", 1, True), ("in",), 16)
    bench.send([("in", one, b"1", 0), ("in", other, b"1", 100)])
    bench.repartition(count)
    bench.send([("in", one, b"1", 3)])
    bench.finish()
    assert len(by_key(bench.outputs())["out", one + b" 0 7"]) == 1


def test_K3_a_table_with_a_ttl_is_not_cut() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=STRING, value_serde=JSON)
    stream.group_by_key().count(store=Materialized("store", ttl=10))
    (subtopology,) = builder.build().spec().subtopologies
    assert "has a ttl" in keyedness(subtopology).reason
