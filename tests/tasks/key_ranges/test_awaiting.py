"""Await-only sub-topologies: the analysis before creation equals the graph's own."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.tasks.key_ranges.programs import TEXT
from tests.tasks.loop.bench import Bench
from tidewheel import FixedKeyProcessor, KStream, Processor, StreamsBuilder, Topology
from tidewheel.tasks.key_ranges.keyed_analysis import only_awaits

Text = KStream[Any, Any]


class Plain(Processor[str, str, str, str]):
    def process(self, record: Any) -> None:
        self.context.forward(record)


class Awaits(Plain):
    async def process(self, record: Any) -> None:  # type: ignore[override] # it may be either
        self.context.forward(record)


class AwaitsValues(FixedKeyProcessor[str, str, str]):
    async def process(self, record: Any) -> None:
        self.context.forward(record)


def made() -> Awaits:
    return Awaits()


async def mapped(value: str) -> str:
    return value


async def all_mapped(values: list[str]) -> list[str]:
    return values


def counted(text: Text) -> Text:
    text.group_by_key().count()
    return text


PROGRAMS: dict[str, tuple[Callable[[Text], Text], bool]] = {
    "no function": (lambda text: text, False),
    "plain": (lambda text: text.process(Plain), False),
    "a coroutine": (lambda text: text.process(Awaits), True),
    "of a function": (lambda text: text.process(made), True),
    "of values": (lambda text: text.process_values(AwaitsValues), True),
    "two": (lambda text: text.process(Awaits).process(Awaits), True),
    "with a plain function": (lambda text: text.process(Awaits).process(Plain), False),
    "behind a mapper": (lambda text: text.map_values(mapped).process(Awaits), True),
    "a mapper": (lambda text: text.map_values(mapped), True),
    "a mapper and a count": (lambda text: counted(text.map_values(mapped)), False),
    "a mapper of batches": (lambda text: text.map_values_batch(all_mapped), True),
    "a plain mapper": (lambda text: text.map_values(str), False),
    "a mapper and a plain one": (lambda text: text.map_values(mapped).map_values(str), False),
    "a predicate and merged paths": (
        lambda text: text.filter(mapped).merge(text.peek(mapped)),
        True,
    ),
    "in front of a filter": (lambda text: text.process(Awaits).filter(bool), False),
}


def _topology(program: Callable[[Text], Text], to: Any = "out") -> Topology:
    builder = StreamsBuilder()
    program(builder.stream("in", **TEXT)).to(to, **TEXT)
    return builder.build()


def _awaits_in(topology: Topology) -> tuple[bool, bool]:
    bench = Bench(topology, {"in": 1, "out": 1})
    found: list[tuple[bool, bool]] = []

    def collect(worker: Any, _source: Any) -> None:
        tasks = worker.tasks.values()
        found.extend((only_awaits(each.plan.spec), each.processing.graph.awaits) for each in tasks)

    bench.at_poll.append(collect)
    bench.send("in", "k", "v")
    assert bench.live()
    return found[-1]


@pytest.mark.parametrize("name", PROGRAMS)
def test_K5_programs_that_only_await_are_detected(name: str) -> None:
    program, expected = PROGRAMS[name]
    assert _awaits_in(_topology(program)) == (expected, expected)


def test_K5_a_function_that_chooses_the_topic_may_block() -> None:
    topology = _topology(lambda text: text.process(Awaits), to=lambda *_: "out")
    assert _awaits_in(topology) == (False, False)
