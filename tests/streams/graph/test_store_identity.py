"""Operators behind generated names are recognised in changed programs."""

import functools
import importlib
import operator
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.loop.bench import APP, Bench
from tidewheel import JoinWindows, Serdes, StreamsBuilder, StreamsConfig, StreamsError, TimeWindows
from tidewheel.streams.graph.store_identity import named_operators
from tidewheel.tasks.commit_facts import CommitFacts, encode_details, encode_operators
from tidewheel.tasks.restore.offset_origin import check_names

TEXT: dict[str, Any] = {"key_serde": str, "value_serde": str}
CONFIG: Any = StreamsConfig(application_id=APP, bootstrap_servers="unused:9092")

Part = Callable[[StreamsBuilder], Any]


def orders(builder: StreamsBuilder, **options: Any) -> None:
    counts = builder.stream("orders", **TEXT).group_by_key(**TEXT).count(**options)
    counts.to_stream().foreach(print)


def clicks(builder: StreamsBuilder, **options: Any) -> None:
    counts = builder.stream("clicks", **TEXT).group_by_key(**TEXT).count(**options)
    counts.to_stream().foreach(print)


def by_user(builder: StreamsBuilder, **options: Any) -> None:
    grouped = builder.stream("events", **TEXT).group_by(
        lambda _, value: value.split("u")[0], **TEXT
    )
    grouped.count(**options)


def by_city(builder: StreamsBuilder, **options: Any) -> None:
    grouped = builder.stream("events", **TEXT).group_by(
        lambda _, value: value.split("c")[1], **TEXT
    )
    grouped.count(**options)


def long_values(builder: StreamsBuilder, length: int = 5) -> None:
    kept = builder.stream("events", **TEXT).filter(lambda _, value: len(value) > length)
    kept.group_by_key(**TEXT).reduce(max)


def first_values(builder: StreamsBuilder) -> None:
    builder.stream("events", **TEXT).group_by_key(**TEXT).reduce(min)


def windows(builder: StreamsBuilder) -> None:
    grouped = builder.stream("events", **TEXT).group_by_key(**TEXT)
    grouped.windowed_by(TimeWindows(60_000)).count()


def stateless(builder: StreamsBuilder) -> None:
    builder.stream("more", **TEXT).map_values(str.upper).to("out", **TEXT)


def joined(builder: StreamsBuilder) -> None:
    left = builder.stream("events", **TEXT)
    left.join(builder.table("users", **TEXT), lambda a, b: a + b).to("out", **TEXT)


def operators(*parts: Part) -> Any:
    builder = StreamsBuilder()
    for part in parts:
        part(builder)
    return named_operators(builder.build(CONFIG).spec(CONFIG))


def facts_of(found: Any) -> CommitFacts:
    return CommitFacts(operators=encode_operators(found), details=encode_details(found))


def check(before: tuple[Part, ...], after: tuple[Part, ...]) -> None:
    check_names(facts_of(operators(*before)), operators(*after))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((orders, clicks), (clicks, orders)),
        ((by_user, by_city), (by_city, by_user)),
        ((long_values, first_values), (first_values, long_values)),
        ((windows, by_user), (by_user, windows)),
        ((orders, by_user), (by_user, orders)),
        ((orders, clicks), (clicks,)),
        ((orders,), (clicks, orders)),
        ((orders,), (stateless, orders)),
        ((by_user, by_city), (by_city,)),
    ],
    ids=lambda parts: "-".join(part.__name__ for part in parts),
)
def test_A8_operators_that_swap_stores_are_refused(
    before: tuple[Part, ...], after: tuple[Part, ...]
) -> None:
    with pytest.raises(
        StreamsError, match=r"K\w+-.*-\d{10}.*: its operator .*test_store_identity\.py:\d+"
    ):
        check(before, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((orders, clicks), (orders, clicks)),
        ((orders,), (orders, stateless)),
        ((orders,), (orders, clicks)),
        ((orders, clicks), (orders,)),
        ((orders,), (orders, joined, by_user)),
        ((long_values,), (lambda builder: long_values(builder, 7),)),
        ((first_values, orders), (long_values, stateless)),
        ((orders, clicks), (orders, lambda builder: clicks(builder, store="clicks"))),
        ((orders, clicks), (lambda builder: clicks(builder, store="c"), lambda builder: orders(builder, store="o"))),
        ((orders, orders), (orders, orders)),
        ((orders,), (orders, orders)),
    ],
)  # fmt: skip
def test_A8_other_changes_are_not_refused(
    before: tuple[Part, ...], after: tuple[Part, ...]
) -> None:
    check(before, after)


def test_A8_the_name_that_an_operator_had_keeps_its_rows() -> None:
    (first, second) = operators(orders, clicks)
    check(
        (orders, clicks),
        (lambda builder: clicks(builder, store=second), lambda builder: orders(builder, store=first)),
    )  # fmt: skip


def test_A8_fingerprints_are_the_same_in_every_process() -> None:
    parts = "orders, by_user, by_city, long_values, first_values, windows, joined"
    program = (
        f"from tests.streams.graph.test_store_identity import {parts}, operators\n"
        f"print({{name: (each.fingerprint, each.details) for name, each in operators({parts}).items()}})"
    )
    root = Path(__file__).parents[3]
    seen = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=root,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1
    assert len(seen.pop().split(",")) >= 8


def reduced(reducer: Any) -> Part:
    def part(builder: StreamsBuilder) -> None:
        builder.stream("events", **TEXT).group_by_key(**TEXT).reduce(reducer)

    return part


def aggregated(aggregator: Any, initializer: Any = str) -> Part:
    def part(builder: StreamsBuilder) -> None:
        grouped = builder.stream("events", **TEXT).group_by_key(**TEXT)
        grouped.aggregate(initializer, aggregator, value_serde=str)

    return part


def filtered(predicate: Any) -> Part:
    def part(builder: StreamsBuilder) -> None:
        builder.stream("events", **TEXT).filter(predicate).group_by_key(**TEXT).count()

    return part


def rekeyed(mapper: Any) -> Part:
    def part(builder: StreamsBuilder) -> None:
        builder.stream("events", **TEXT).select_key(mapper).group_by_key(**TEXT).count()

    return part


def repartitioned(mapper: Any) -> Part:
    def part(builder: StreamsBuilder) -> None:
        builder.stream("events", **TEXT).select_key(mapper).repartition(**TEXT).foreach(print)

    return part


def cogrouped(one: Any, other: Any) -> Part:
    def part(builder: StreamsBuilder) -> None:
        first = builder.stream("events", **TEXT).group_by_key(**TEXT)
        second = builder.stream("clicks", **TEXT).group_by_key(**TEXT)
        first.cogroup(one).cogroup(second, other).aggregate(str, value_serde=str)

    return part


def windowed_join(within_ms: int) -> Part:
    def part(builder: StreamsBuilder) -> None:
        left, right = builder.stream("events", **TEXT), builder.stream("clicks", **TEXT)
        joined = left.join(right, lambda a, b: a + b, within=JoinWindows(within_ms))
        joined.to("out", **TEXT)

    return part


def of_serde(kind: Any) -> Part:
    def part(builder: StreamsBuilder) -> None:
        grouped = builder.stream("events", **TEXT).group_by_key(**TEXT)
        grouped.aggregate(dict, lambda k, v, a: a, value_serde=Serdes.json(kind))

    return part


class Threshold:
    def __init__(self, least: str) -> None:
        self.least = least

    def __call__(self, value: str) -> bool:
        return value >= self.least

    def is_above(self, value: str) -> bool:
        return value > self.least

    def is_below(self, value: str) -> bool:
        return value < self.least


def callable_of(operation: Callable[[str], bool]) -> Any:
    if operation("a"):

        class Judge:
            def __call__(self, value: str) -> bool:
                return value > "k"
    else:

        class Judge:  # type: ignore[no-redef]
            def __call__(self, value: str) -> bool:
                return value < "k"

    return Judge()


def inner(operation: Any) -> Any:
    @functools.wraps(operation)
    def wrapper(value: str) -> Any:
        return operation(value)

    return wrapper


def starts(value: str, *, text: str) -> bool:
    return value.startswith(text)


def longest(value: str) -> str:
    return max(value, "m")


def shortest(value: str) -> str:
    return min(value, "m")


def mapper_of(pick: Any) -> Any:
    namespace: dict[str, Any] = {"pick": pick}
    exec("def key_of(key, value):\n    return pick(value)\n", namespace)  # noqa: S102 - no source
    return namespace["key_of"]


def without_source(text: str) -> Any:
    return eval(text)  # noqa: S307 - as a REPL does it


#: Functions that differ in operations only.
DIFFERENT: dict[str, tuple[Part, Part]] = {
    "builtins": (reduced(min), reduced(max)),
    "operations": (reduced(lambda a, v: a + v), reduced(lambda a, v: a * v)),
    "one_line": tuple(map(reduced, (lambda a, v: a + v, lambda a, v: v + a))),  # type: ignore[dict-item]
    "comparisons": (filtered(lambda k, v: v > "k"), filtered(lambda k, v: v < "k")),
    "equality": (filtered(lambda k, v: k == "a"), filtered(lambda k, v: k != "a")),
    "negation": (filtered(lambda v: v.isdigit()), filtered(lambda v: not v.isdigit())),
    "aggregators": (aggregated(lambda k, v, a: a + v), aggregated(lambda k, v, a: v + a)),
    "first_of_cogroup": (
        cogrouped(lambda k, v, a: a + v, lambda k, v, a: a),
        cogrouped(lambda k, v, a: v + a, lambda k, v, a: a),
    ),
    "second_of_cogroup": (
        cogrouped(lambda k, v, a: a, lambda k, v, a: a + v),
        cogrouped(lambda k, v, a: a, lambda k, v, a: v + a),
    ),
    "windows_of_joins": (windowed_join(1_000), windowed_join(60_000)),
    "serdes": (of_serde(dict[str, int]), of_serde(dict[str, str])),
    "initializers": (
        aggregated(lambda k, v, a: a + v, lambda: "1"),
        aggregated(lambda k, v, a: a + v, lambda: "2"),
    ),
    "operators": (filtered(partial(operator.gt, "k")), filtered(partial(operator.lt, "k"))),
    "partials": (filtered(partial(starts, text="a")), filtered(partial(starts, text="b"))),
    "places": (filtered(partial(starts, text="a:1")), filtered(partial(starts, text="a:2"))),
    "numbers": (
        filtered(partial(starts, text="0000000001")),
        filtered(partial(starts, text="0000000002")),
    ),
    "getters": (rekeyed(lambda _, v: operator.itemgetter(0)(v)), rekeyed(operator.itemgetter(1))),
    "descriptors": (rekeyed(str.upper), rekeyed(str.lower)),
    "bound_builtins": (rekeyed("a".join), rekeyed("b".join)),
    "bound_patterns": (filtered(re.compile("a").match), filtered(re.compile("b").match)),
    "methods": (filtered(Threshold("k").is_above), filtered(Threshold("k").is_below)),
    "objects": (filtered(Threshold("k")), filtered(Threshold("l"))),
    "classes": (filtered(callable_of(lambda _: True)), filtered(callable_of(lambda _: False))),
    "wrapped": (filtered(inner(lambda v: v > "k")), filtered(inner(lambda v: v < "k"))),
    "cached": (
        filtered(functools.cache(lambda v: v > "k")),
        filtered(functools.cache(lambda v: v < "k")),
    ),
    "globals": (rekeyed(mapper_of(longest)), rekeyed(mapper_of(shortest))),
    "unknown_sources": (
        filtered(without_source("lambda v: v > 'k'")),
        filtered(without_source("lambda v: v < 'k'")),
    ),
    "keys_of_repartition": (
        rekeyed(lambda k, v: f"{v > 'k'}"),
        rekeyed(lambda k, v: f"{v < 'k'}"),
    ),
    "repartition": (
        repartitioned(lambda k, v: k + v),
        repartitioned(lambda k, v: v + k),
    ),
}


@pytest.mark.parametrize("pair", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_A8_functions_are_distinguished_by_their_operations(pair: tuple[Part, Part]) -> None:
    first, second = pair
    for after in ((second, first), (second,)):
        with pytest.raises(StreamsError, match=r"K\w+-.*-\d{10}.*: its operator"):
            check(pair, after)
    check(pair, pair)
    for before, changed in (
        ((first,), (second,)),
        ((first, orders), (second, orders)),
        ((first, second), (first, first)),
    ):
        check(before, changed)


def test_A8_commits_of_earlier_versions_are_compared_as_those_versions_did() -> None:
    pair = DIFFERENT["comparisons"]
    before = CommitFacts(operators=encode_operators(operators(*pair)))
    check_names(before, operators(*reversed(pair)))
    before = CommitFacts(operators=encode_operators(operators(by_user, by_city)))
    with pytest.raises(StreamsError, match="its operator"):
        check_names(before, operators(by_city, by_user))


PROGRAMS = {
    "plain": """
from tidewheel import StreamsBuilder, StreamsConfig
from tidewheel.streams.graph.store_identity import named_operators
LEAST = 10

def reducer(a, v):
    return a + v

def build():
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=str, value_serde=int)
    stream.filter(lambda k, v: v > LEAST).group_by_key().reduce(reducer)
    stream.filter(lambda k, v: v < LEAST).group_by_key().aggregate(lambda: 0, lambda k, v, a: a * v, value_serde=int)
    config = StreamsConfig(application_id="a", bootstrap_servers="unused:9092")
    return [each.details for each in named_operators(builder.build(config).spec(config)).values()]
""",
    "formatted": '''
from tidewheel import StreamsBuilder, StreamsConfig
from tidewheel.streams.graph.store_identity import named_operators
# Moved, with a comment.
LEAST = 10


def build() -> list[int]:
    """Return them."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=str, value_serde=int)
    stream.filter(
        lambda k, v: (v > LEAST)  # large
    ).group_by_key().reduce(reducer)
    stream.filter(lambda k, v: v < LEAST).group_by_key().aggregate(
        lambda: 0,
        lambda k, v, a: (
            a
            * v
        ),
        value_serde=int,
    )
    config = StreamsConfig(application_id="a", bootstrap_servers="unused:9092")
    return [each.details for each in named_operators(builder.build(config).spec(config)).values()]


def reducer(a: int, v: int) -> int:
    """Add."""
    return (a + v)
''',
}


def test_A8_details_are_those_of_the_operations_only(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "plain_app.py").write_text(PROGRAMS["plain"])
    (tmp_path / "formatted_app.py").write_text(PROGRAMS["formatted"])
    (tmp_path / "deep" / "er" / "moved_app.py").write_text(PROGRAMS["plain"])
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as packed:
        packed.writestr("packed_app.py", PROGRAMS["plain"])
    places = [tmp_path, tmp_path / "deep" / "er", tmp_path / "packed.zip"]
    found: list[object] = []
    for name in ("plain_app", "formatted_app", "moved_app", "packed_app"):
        with pytest.MonkeyPatch.context() as patch:
            for place in places:
                patch.syspath_prepend(str(place))
            found.append(importlib.import_module(name).build())
            sys.modules.pop(name)
    assert found == [found[0]] * len(found)
    assert len(set(map(str, found[0]))) == 2  # type: ignore[call-overload]


def bench_of(*parts: Part, of: Bench | None = None) -> Bench:
    builder = StreamsBuilder()
    for part in parts:
        part(builder)
    topology = builder.build(CONFIG)
    bench = Bench(
        topology,
        {"orders": 1, "clicks": 1, "events": 1, "out": 1},
        operators=named_operators(topology.spec(CONFIG)),
    )
    if of is not None:
        for topic in (*bench.plan.repartition_topics, *bench.plan.changelog_topics):
            if topic.name not in of.broker.topics:
                of.broker.create_topic(topic.name, topic.partitions, topic.config)
        bench.broker, bench.disk, bench.clients = of.broker, of.disk, of.clients
        bench.make_reader = of.make_reader
    return bench


@pytest.mark.parametrize(
    "parts",
    [(orders, clicks), (by_user, by_city), DIFFERENT["operations"]],
    ids=["counts", "repartitions", "operations"],
)
@pytest.mark.parametrize("disk", ["kept", "empty"])
def test_A8_a_worker_does_not_start_with_the_rows_of_another_operator(
    parts: tuple[Part, Part], disk: str
) -> None:
    bench = bench_of(*parts)
    for topic in ("orders", "clicks", "events"):
        bench.send(topic, "k", "1u2c3")
    assert bench.live()
    if disk == "empty":
        bench.disk.versions.clear()
    swapped = bench_of(*reversed(parts), of=bench)
    for task in swapped.plan.tasks:
        with pytest.raises(StreamsError, match="at the last commit"):
            swapped.live(assigned=frozenset({task}))
    again = bench_of(*parts, of=bench)
    assert again.live()
