"""Operators behind generated names: found again wherever a changed program puts them, and changed in place without harm."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streams import StreamsBuilder, StreamsConfig, StreamsError, TimeWindows
from streams.store_identity import named_operators
from tasks.commit_facts import encode_operators
from tasks.offset_origin import check_names
from tests.tasks.bench import APP, Bench

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


def check(before: tuple[Part, ...], after: tuple[Part, ...]) -> None:
    check_names(encode_operators(operators(*before)), operators(*after))


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
def test_A8_operators_that_change_places_are_refused(
    before: tuple[Part, ...], after: tuple[Part, ...]
) -> None:
    """They would exchange, inherit or lose rows; the text names the line and both names."""
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
        # Changed in place: another length, another reducer.
        ((long_values,), (lambda builder: long_values(builder, 7),)),
        ((first_values, orders), (long_values, stateless)),
        # Named now.
        ((orders, clicks), (orders, lambda builder: clicks(builder, store="clicks"))),
        ((orders, clicks), (lambda builder: clicks(builder, store="c"), lambda builder: orders(builder, store="o"))),
        # Two of a kind are not told apart.
        ((orders, orders), (orders, orders)),
        ((orders,), (orders, orders)),
    ],
)  # fmt: skip
def test_A8_other_changes_are_not_refused(
    before: tuple[Part, ...], after: tuple[Part, ...]
) -> None:
    check(before, after)


def test_A8_the_name_that_an_operator_had_keeps_its_rows() -> None:
    """The way out of a refusal, for both stores of an exchange."""
    (first, second) = operators(orders, clicks)
    check(
        (orders, clicks),
        (lambda builder: clicks(builder, store=second), lambda builder: orders(builder, store=first)),
    )  # fmt: skip


def test_A8_fingerprints_are_the_same_in_every_process() -> None:
    """Whatever the hash seed, and wherever objects lie in memory."""
    parts = "orders, by_user, by_city, long_values, first_values, windows, joined"
    program = (
        f"from tests.streams.test_store_identity import {parts}, operators\n"
        f"print({{name: each.fingerprint for name, each in operators({parts}).items()}})"
    )
    root = Path(__file__).parents[2]
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


@pytest.mark.parametrize("parts", [(orders, clicks), (by_user, by_city)], ids=["counts", "repartitions"])  # fmt: skip
@pytest.mark.parametrize("disk", ["kept", "empty"])
def test_A8_a_worker_does_not_start_with_the_rows_of_another_operator(
    parts: tuple[Part, Part], disk: str
) -> None:
    """Every task refuses, and the program in its old order goes on."""
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
