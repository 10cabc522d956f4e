"""Restoring by position to a fixed end; lost records force a rebuild."""

import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidewheel.tasks.restore.state_updater
from tests.fakes.clients import FakeAdmin, FakeChangelogReader
from tests.tasks.loop.bench import Bench, Source
from tidewheel import Processor, Serdes, Stores, StreamsError, Topology
from tidewheel.state_stores.layout.envelope import unwrap_value
from tidewheel.state_stores.layout.position import Position
from tidewheel.tasks.kafka.ports import UnansweredError
from tidewheel.tasks.loop.stream_worker import StreamWorker

STRING = Serdes.string()
HOUR_MS = 3_600_000
CHANGELOG = "app-table-changelog"


class Table(Processor[Any, Any, Any, Any]):
    def process(self, record: Any) -> None:
        store = self.context.get_state_store("table")
        store.put(record.key, None if record.value == "delete" else record.value)


def table(*, persistent: bool = True, logging: bool = True) -> Topology:
    return (
        Topology()
        .add_source("read", "in", key_serde=STRING, value_serde=STRING)
        .add_processor("work", Table, "read")
        .add_state_store(
            Stores.key_value(
                "table",
                key_serde=STRING,
                value_serde=STRING,
                persistent=persistent,
                logging=logging,
            ),
            "work",
        )
    )


def content(bench: Bench) -> dict[str, str]:
    return {
        key.decode(): unwrap_value(stored)[0].decode()
        for key, stored in bench.rows("table").items()
    }


def compact(bench: Bench, topic: str = CHANGELOG, *, tombstones: bool) -> None:
    """Compact a topic like the broker: last record per key, tombstones optional."""
    for log in bench.broker.topics[topic].logs:
        last = {
            entry.record.key: index
            for index, entry in enumerate(log.entries)
            if entry.record is not None
        }
        for index, entry in enumerate(log.entries):
            record = entry.record
            if record is not None and (
                last[record.key] != index or (tombstones and record.value is None)
            ):
                entry.record = None


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit each poll of a restore to one record."""
    monkeypatch.setattr(tidewheel.tasks.restore.state_updater, "_POLL_RECORDS", 1)


def filled(**settings: Any) -> Bench:
    """Return an application that put four rows and deleted one, one commit each."""
    bench = Bench(table(), {"in": 1}, **settings)
    for key, value in [("gone", "1"), ("a", "1"), ("b", "1"), ("gone", "delete"), ("c", "1")]:
        bench.send("in", key, value)
        assert bench.live()
    assert content(bench) == {"a": "1", "b": "1", "c": "1"}
    return bench


def test_a_restore_of_a_compacted_changelog_is_exact() -> None:
    for tombstones in (False, True):
        bench = filled()
        compact(bench, tombstones=tombstones)
        bench.disk.versions.clear()
        assert bench.live()
        assert content(bench) == {"a": "1", "b": "1", "c": "1"}
        assert bench.events[-1].kind == "end"


def test_a_changelog_with_only_markers_is_restored_immediately() -> None:
    bench = filled()
    for log in bench.broker.topics[CHANGELOG].logs:
        for entry in log.entries:
            entry.record = None
    bench.disk.versions.clear()
    assert bench.live()
    assert content(bench) == {}
    assert [event.kind for event in bench.events] == ["start", "end"]


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("waited_hours", [0, 2])
@pytest.mark.parametrize("written", [1, 2, 3, 4, 5])
def test_an_interrupted_restore_restarts(written: int, waited_hours: int) -> None:
    bench = filled()
    bench.disk.versions.clear()
    bench.clock.advance(22 * HOUR_MS)
    bench.live(crash_after=2 * written)
    bench.clock.advance(waited_hours * HOUR_MS)
    compact(bench, tombstones=True)
    assert bench.live()
    assert content(bench) == {"a": "1", "b": "1", "c": "1"}


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("steps", range(8))
def test_an_interrupted_tail_keeps_the_age_of_its_position(steps: int) -> None:
    bench = Bench(table(), {"in": 1})
    for key in ("gone", "a"):
        bench.send("in", key, "1")
    assert bench.live()
    for key, value in [("b", "1"), ("gone", "delete"), ("c", "1")]:
        bench.send("in", key, value)
        assert not bench.live(crash_at="committed")
    before = len(bench.disk.versions["0_0"])
    bench.clock.advance(22 * HOUR_MS)
    bench.live(crash_after=2 + steps)
    assert len(bench.disk.versions["0_0"]) <= before + 1 + steps
    bench.clock.advance(4 * HOUR_MS)
    compact(bench, tombstones=True)
    assert bench.live()
    assert content(bench) == {"a": "1", "b": "1", "c": "1"}


def test_an_old_position_is_not_followed() -> None:
    bench = Bench(table(), {"in": 1})
    for key in ("gone", "a"):
        bench.send("in", key, "1")
    assert bench.live()
    bench.send("in", "gone", "delete")
    assert not bench.live(crash_at="committed")
    bench.clock.advance(24 * HOUR_MS)
    compact(bench, tombstones=True)
    assert bench.live()
    assert content(bench) == {"a": "1"}
    assert bench.events[0].start == 0


def test_a_position_is_as_old_as_the_end_it_reaches() -> None:
    bench = filled()
    bench.disk.versions.clear()
    begin_ms = bench.clock.now_ms()

    def slow() -> FakeChangelogReader:
        bench.clock.advance(5 * HOUR_MS)
        return FakeChangelogReader(bench.broker)

    bench.make_reader = slow
    positions: list[Position | None] = []

    def track_positions(worker: StreamWorker, source: Source) -> None:
        positions.extend(task.stores.position("table") for task in worker.tasks.values())

    bench.at_poll.append(track_positions)
    assert bench.live()
    assert positions[0] is not None
    assert positions[0].written_at_ms - begin_ms < HOUR_MS


def test_the_tombstone_retention_of_the_topic_decides() -> None:
    bench = Bench(table(), {"in": 1})
    bench.broker.topics[CHANGELOG].config["delete.retention.ms"] = str(2 * HOUR_MS)
    bench.send("in", "a", "1")
    assert bench.live()
    bench.send("in", "b", "1")
    assert not bench.live(crash_at="committed")
    bench.clock.advance(HOUR_MS + 60_000)
    assert bench.live()
    assert bench.events[0].start == 0
    assert content(bench) == {"a": "1", "b": "1"}


@settings(max_examples=40)
@given(
    batches=st.lists(
        st.lists(
            st.tuples(st.sampled_from("abc"), st.sampled_from(["1", "2", "delete"])), max_size=4
        ),
        max_size=5,
    ),
    cuts=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3), st.integers(0, 30)), max_size=4),
)
def test_a_restored_store_equals_its_input(
    batches: list[list[tuple[str, str]]], cuts: list[tuple[int, int, int]]
) -> None:
    bench = Bench(table(), {"in": 1})
    bench.idle_polls = 12
    expected: dict[str, str] = {}
    pending = list(batches)
    for crash_after, lost, hours in [*cuts, *([(1_000, 0, 0)] * (len(batches) + 1))]:
        for key, value in pending.pop(0) if pending else ():
            bench.send("in", key, value)
            expected.pop(key, None)
            if value != "delete":
                expected[key] = value
        bench.live(crash_after=crash_after)
        bench.disk.lose(lost)
        bench.clock.advance(hours * HOUR_MS)
        compact(bench, tombstones=hours > 24)
    assert bench.live()
    assert content(bench) == expected


def test_a_store_without_a_changelog_is_unchanged() -> None:
    bench = Bench(table(logging=False), {"in": 1})
    bench.send("in", "a", "1")
    assert bench.live()
    assert bench.live()
    assert (content(bench), bench.events) == ({"a": "1"}, [])
    assert CHANGELOG not in bench.broker.topics


def test_an_in_memory_store_is_restored_at_every_start() -> None:
    bench = Bench(table(persistent=False), {"in": 1})
    bench.send("in", "a", "1")
    assert bench.live()
    for _ in range(2):
        assert bench.live()
        assert [event.kind for event in bench.events] == ["start", "batch", "end"]


def test_a_restore_error_stops_the_worker() -> None:
    bench = filled()
    bench.broker.delete_topic(CHANGELOG)
    with pytest.raises((StreamsError, KeyError)):
        bench.live()


@pytest.mark.parametrize("name", ["describe_topics", "stable_offsets", "end_offsets"])
def test_a_restore_waits_for_brokers_that_are_away(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = filled()
    bench.disk.versions.clear()
    answer, failures = getattr(FakeAdmin, name), [UnansweredError("no broker is there")] * 3

    def answer_later(self: FakeAdmin, *arguments: Any, **options: Any) -> Any:
        # Only the restore is asked for: elsewhere a start waits, too, but in its own way.
        if failures and threading.current_thread().name == "tidewheel-state-updater":
            raise failures.pop()
        return answer(self, *arguments, **options)

    monkeypatch.setattr(FakeAdmin, name, answer_later)
    assert bench.live()
    assert not failures
    assert content(bench) == {"a": "1", "b": "1", "c": "1"}
