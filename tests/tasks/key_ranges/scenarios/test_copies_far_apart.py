"""Copies of a task whose ranges are days apart: they keep rows of the slowest one only."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.fakes.run_maker import LocalRunMaker
from tests.tasks.key_ranges.scenarios.test_far_apart import (
    APART,
    BEFORE,
    BEHIND,
    DAY,
    MINUTE,
    SLOW,
    THREADS,
    Gate,
    Row,
    are_ahead,
    at_factor_one,
    found,
    windowed,
)
from tests.tasks.loop.group_bench import APP, GroupBench, Host, RealClock
from tests.tasks.loop.test_moving_tasks import learn
from tidewheel.state_stores.layout.segments import SegmentLayout
from tidewheel.tasks.kafka.internal_topics import plan_application
from tidewheel.tasks.restore import state_updater
from tidewheel.tasks.restore.run_ports import RunSettings

NAME = "tumbling"


@pytest.fixture(params=[False, True], ids=["replay", "runs"])
def gated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(state_updater, "_TOPICS_EVERY_S", 0.01)
    gate = Gate()
    topology, topics = windowed(NAME, gate), {"in": 1, "out": 1}
    with TemporaryDirectory() as folder, GroupBench(topology, topics) as group:
        group.plan = plan_application(topology.spec(group.config), APP, topics, factor=THREADS)
        if request.param:
            maker = LocalRunMaker(group.broker, RealClock(), APP)
            group.runs = RunSettings(maker=maker, directory=lambda: Path(folder), from_records=0)
        try:
            yield gate, group
        finally:
            gate.opened.set()


def _send(group: GroupBench, rows: list[Row]) -> None:
    for key, timestamp, value in rows:
        group.broker.send("in", value.encode(), key.encode(), timestamp=timestamp)


def _starts(host: Host) -> list[tuple[bytes, int]]:
    spec = next(iter(host.group.plan.subtopologies.values())).spec.stores[0]
    layout = SegmentLayout.of(spec)
    return [(layout.key_of(row), layout.time_of(row)) for row in host.rows("counts", "0_0")]


def _separate_ranges(group: GroupBench, first: Host) -> None:
    first.run_task("0_0", 1)
    _send(group, BEFORE)
    first.until(lambda: group.committed() == group.end(), "what comes before is done")
    _send(group, APART)
    first.until(lambda: are_ahead(group.broker, SLOW), "the other ranges are ahead")


@pytest.mark.parametrize("early", [True, False], ids=["follows", "starts late"])
def test_K3_L1_a_copy_promoted_while_ranges_are_apart_has_every_window(
    gated: tuple[Gate, GroupBench], early: bool
) -> None:
    gate, group = gated
    first, second = group.host("a", threads=THREADS), group.host("b", threads=THREADS)
    if early:
        learn(second)
    _separate_ranges(group, first)
    learn(second)
    second.ready("0_0", 1, end=group.end(topic="app-counts-changelog"))
    assert (SLOW.encode(), 0) in _starts(second)
    released = first.release("0_0", 1)
    gate.opened.set()
    second.run_task("0_0", 2, released)
    _send(group, BEHIND)
    second.until(lambda: group.committed() == group.end(), "all is done")
    assert found(group.broker) == at_factor_one(NAME, [*BEFORE, *APART, *BEHIND])


def test_K3_a_copy_deletes_rows_that_expired_for_the_slowest_range(
    gated: tuple[Gate, GroupBench],
) -> None:
    gate, group = gated
    first, second = group.host("a", threads=THREADS), group.host("b", threads=THREADS)
    learn(second)
    _separate_ranges(group, first)
    second.until(lambda: (SLOW.encode(), 0) in _starts(second), "it has the slow range's window")
    gate.opened.set()
    minute = 0

    def is_gone() -> bool:
        nonlocal minute
        minute += 1
        _send(group, [("a", 40 * DAY + minute * MINUTE, "v")])
        rows = _starts(second)
        return bool(rows) and min(start for _, start in rows) > 30 * DAY

    second.until(is_gone, "what has expired is gone")
