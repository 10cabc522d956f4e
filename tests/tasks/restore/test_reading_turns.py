"""Reading turns: active restores first, then copies; running tasks undisturbed."""

from typing import cast

import pytest

from tests.fakes.broker import FakeBroker
from tests.fakes.clients import FakeChangelogReader
from tests.fakes.clock import FakeClock
from tidewheel.rebalance.model import TopicPartition
from tidewheel.tasks.processing.engine.record_batch import SourceRecords
from tidewheel.tasks.restore.store_changelog_reader import ReadingTurns
from tidewheel.tasks.restore.store_restore import StoreRestore
from tidewheel.tasks.task.task import Task


def entry(topic: str, *, end: int | None, limit: int | None = None) -> StoreRestore:
    return StoreRestore(
        task=cast("Task", None),
        store="s",
        partition=TopicPartition(topic, 0),
        start=0,
        position=0,
        end=end,
        known_ms=0,
        milestone=0,
        limit=limit,
    )


class Turns:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.waited: list[float] = []
        self.turns = ReadingTurns(self.clock, self.waited.append)
        self.reader = FakeChangelogReader(FakeBroker())

    def paused_after(self, entries: list[StoreRestore], ms: int = 0) -> set[str]:
        self.clock.advance(ms)
        self.turns.share(self.reader, entries)
        return {partition.topic for partition in self.reader.paused}


def test_copies_wait_for_restoring_tasks_and_do_not_starve() -> None:
    turns = Turns()
    entries = [entry("run", end=9), entry("copy", end=None)]
    waiting = [bool(turns.paused_after(entries, 10)) for _ in range(1_000)]
    assert 0.75 < sum(waiting) / len(waiting) < 0.85
    assert max(map(len, "".join("x" if each else " " for each in waiting).split())) <= 41
    assert turns.paused_after(entries, 10) == {"copy"}
    assert turns.paused_after(entries[1:]) == set()
    # A task that is to run does not wait for the next round.
    for _ in range(10):
        assert turns.paused_after(entries, 77) == {"copy"}
        assert turns.paused_after(entries[1:], 77) == set()


def test_copies_do_not_wait_for_each_other() -> None:
    turns = Turns()
    assert not any(
        turns.paused_after([entry("a", end=None), entry("b", end=None)], 10) for _ in range(100)
    )


def test_a_copy_that_has_read_ahead_waits_for_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidewheel.tasks.restore.store_changelog_reader._BUFFERED_MAX", 3)
    turns = Turns()
    early = entry("table", end=None, limit=0)
    records = SourceRecords("table", 0, [0, 1, 2, 3], [b"k"] * 4, [b"v"] * 4, [0] * 4, None)
    assert early.apply(records) == 0
    assert turns.paused_after([early]) == {"table"}
    turns.turns.forget([early.partition])
    assert turns.paused_after([early]) == {"table"}


def test_reading_is_throttled_while_tasks_run() -> None:
    turns = Turns()
    assert turns.turns.records(20_000, busy=False) == 20_000
    sizes: list[int] = []
    for _ in range(12):
        sizes.append(turns.turns.records(20_000, busy=True))
        turns.turns.pause_after_poll(sizes[-1], sizes[-1] / 500_000)
    assert sizes[0] <= 1_000
    assert sizes[-1] == pytest.approx(2_000, rel=0.1)
    assert max(turns.waited) <= 0.004
    turns.turns.pause_after_poll(1_000, 10.0)
    assert turns.turns.records(20_000, busy=True) == 100
