"""Restores from sorted runs and snapshots equal a replay of the changelog."""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes.run_maker import LocalRunMaker
from tests.tasks.loop.bench import APP, Bench
from tests.tasks.restore.test_state_updater import (
    CHANGELOG,
    HOUR_MS,
    compact,
    content,
    filled,
    table,
)
from tests.tasks.task.snapshots import take_snapshot
from tidewheel import Serdes, StreamsBuilder, TimeWindows, Topology
from tidewheel.state_stores.errors import StateStoreError, StoreCorruptedError
from tidewheel.state_stores.layout.envelope import unwrap_value
from tidewheel.state_stores.spec import StoreSpec
from tidewheel.tasks.restore.run_ports import RunSettings, RunsFailed
from tidewheel.tasks.task.state_manager import StateManager

STRING = Serdes.string()


@pytest.fixture
def places() -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        yield Path(folder)


def use_runs(
    bench: Bench, folder: Path, *, snapshots: bool = False, over: int = 0
) -> LocalRunMaker:
    """Restore longer gaps of a bench by runs."""
    location = folder / "snapshots" if snapshots else None
    maker = LocalRunMaker(bench.broker, bench.clock, APP, location)
    restoring = folder / "restoring"
    restoring.mkdir(exist_ok=True)
    bench.runs = RunSettings(maker=maker, directory=lambda: restoring, from_records=over)
    return maker


def spec_of(bench: Bench, store: str = "table") -> StoreSpec:
    found = [
        spec
        for plan in bench.plan.subtopologies.values()
        for spec in plan.spec.stores
        if spec.name == store
    ]
    return found[0]


def snapshot(bench: Bench, folder: Path, store: str = "table") -> Any:
    return take_snapshot(
        bench.broker, bench.clock, spec_of(bench, store), folder / "snapshots", APP
    )


def test_a_long_gap_is_built_into_runs(places: Path) -> None:
    bench = filled()
    maker = use_runs(bench, places)
    bench.disk.versions.clear()
    bench.make_reader = lambda: pytest.fail("everything is in the runs")
    assert bench.live()
    assert content(bench) == {"a": "1", "b": "1", "c": "1"}
    assert [event.kind for event in bench.events] == ["start", "batch", "end"]
    assert (bench.events[-1].restored, bench.events[-1].eta_s) == (5, 0.0)
    (order,) = maker.orders
    assert (order.from_offset, order.complete_from_zero, order.urgent) == (0, True, True)
    assert not maker.open
    assert not order.directory.exists()


def test_a_short_gap_is_read_by_the_worker(places: Path) -> None:
    bench = filled()
    maker = use_runs(bench, places, over=100)
    bench.disk.versions.clear()
    assert bench.live()
    assert (content(bench), maker.orders) == ({"a": "1", "b": "1", "c": "1"}, [])


def test_a_gap_after_a_position_is_built_into_runs_with_its_deletes(places: Path) -> None:
    bench = filled()
    maker = use_runs(bench, places)
    bench.disk.lose(4)
    before = content(bench)
    assert before != {"a": "1", "b": "1", "c": "1"}
    assert bench.live()
    assert content(bench) == {"a": "1", "b": "1", "c": "1"}
    (order,) = maker.orders
    assert order.from_offset > 0
    assert not order.complete_from_zero


def test_the_end_of_the_runs_becomes_the_position(places: Path) -> None:
    bench = filled()
    maker = use_runs(bench, places)
    bench.disk.versions.clear()
    assert bench.live()
    assert bench.live()
    assert len(maker.orders) == 1
    assert bench.events == []


@pytest.mark.parametrize("tail", [0, 3])
def test_an_available_snapshot_is_used(places: Path, tail: int) -> None:
    bench = filled()
    taken = snapshot(bench, places)
    for number in range(tail):
        bench.send("in", f"t{number}", "1")
        bench.send("in", "a", "delete")
        assert bench.live()
    bench.disk.versions.clear()
    maker = use_runs(bench, places, snapshots=True, over=100)
    begun: list[int] = []
    reader = bench.clients.changelog_reader

    def watched() -> Any:
        made = reader()
        add = made.add

        def noting(positions: Any) -> None:
            begun.extend(positions.values())
            add(positions)

        made.add = noting  # type: ignore[method-assign] # to see where reading begins
        return made

    bench.make_reader = watched
    assert bench.live()
    expected = {"a": "1", "b": "1", "c": "1"} | {f"t{number}": "1" for number in range(tail)}
    if tail:
        del expected["a"]
    assert content(bench) == expected
    (order,) = maker.orders
    assert order.snapshot == taken.partition(0)
    assert order.from_offset == order.to_offset == taken.partition(0).to_offset
    assert begun == [order.to_offset] * bool(tail)


def test_a_long_tail_after_a_snapshot_is_built_into_runs_too(places: Path) -> None:
    bench = filled()
    taken = snapshot(bench, places)
    for key, value in [("a", "delete"), ("d", "1"), ("b", "2")]:
        bench.send("in", key, value)
        assert bench.live()
    bench.disk.versions.clear()
    maker = use_runs(bench, places, snapshots=True)
    assert bench.live()
    assert content(bench) == {"b": "2", "c": "1", "d": "1"}
    (order,) = maker.orders
    assert order.snapshot == taken.partition(0)
    assert order.to_offset > order.from_offset


def test_rows_from_a_snapshot_have_its_age(places: Path) -> None:
    bench = filled()
    taken = snapshot(bench, places)
    bench.clock.advance(20 * HOUR_MS)
    bench.disk.versions.clear()
    bench.send("in", "x", "1")
    use_runs(bench, places, snapshots=True, over=100)
    bench.live(crash_at="committed")
    (version,) = [versions[-1] for versions in bench.disk.versions.values()]
    position = bench.disk.open(Path("0_0"), ["table"]).position(f"changelog:{CHANGELOG}-0")
    assert version["table"]
    assert position is not None
    bench.clock.advance(5 * HOUR_MS)
    bench.events.clear()
    assert taken.partition(0).caught_up_at_ms < bench.clock.now_ms() - 24 * HOUR_MS
    assert bench.live()
    assert content(bench) == {"a": "1", "b": "1", "c": "1", "x": "1"}


def test_a_foreign_snapshot_is_refused_with_one_warning(
    places: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = filled()
    snapshot(bench, places)
    bench.broker.topics[CHANGELOG].topic_id = bytes(reversed(range(16)))
    maker = use_runs(bench, places, snapshots=True)
    for _ in range(2):
        bench.disk.versions.clear()
        with caplog.at_level(logging.WARNING):
            assert bench.live()
        assert content(bench) == {"a": "1", "b": "1", "c": "1"}
    assert [order.snapshot for order in maker.orders] == [None, None]
    said = [text for each in caplog.records if "is not used" in (text := each.getMessage())]
    assert len(said) == 2  # a worker each
    assert "tidewheel snapshot" in said[0]


@pytest.mark.parametrize("damage", ["torn manifest", "torn file", "no file", "other bytes"])
def test_a_broken_snapshot_is_refused_and_the_changelog_used(
    places: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    bench = filled()
    snapshot(bench, places)
    (file,) = (places / "snapshots").rglob("*.json" if damage == "torn manifest" else "*.sst")
    if damage == "no file":
        file.unlink()
    else:
        data = bytearray(file.read_bytes())
        if damage == "other bytes":
            data[len(data) // 2] ^= 1
        else:
            del data[len(data) // 2 :]
        file.write_bytes(data)
    bench.disk.versions.clear()
    maker = use_runs(bench, places, snapshots=True, over=100)
    with caplog.at_level(logging.WARNING):
        assert bench.live()
    assert content(bench) == {"a": "1", "b": "1", "c": "1"}
    assert [text for each in caplog.records if "not used" in (text := each.getMessage())]
    assert not maker.open


def test_snapshot_that_the_database_refuses_is_not_tried_again(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = filled()
    snapshot(bench, places)
    bench.disk.versions.clear()
    maker = use_runs(bench, places, snapshots=True, over=100)

    def refuse(*_: Any, **__: Any) -> None:
        raise StateStoreError("Invalid argument: not an external file")

    monkeypatch.setattr(StateManager, "ingest", refuse)
    assert bench.live()
    assert content(bench) == {"a": "1", "b": "1", "c": "1"}
    assert [order.snapshot is None for order in maker.orders] == [False]


def test_store_found_damaged_while_it_runs_is_restored_without_a_snapshot(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = filled()
    snapshot(bench, places)
    bench.disk.versions.clear()
    maker = use_runs(bench, places, snapshots=True, over=100)
    apply = StateManager.apply
    applied: list[int] = []

    def damaged_once(self: StateManager, *arguments: Any, **more: Any) -> None:
        applied.append(1)
        if len(applied) == 1:
            raise StoreCorruptedError("Corruption: block checksum mismatch")
        apply(self, *arguments, **more)

    monkeypatch.setattr(StateManager, "apply", damaged_once)
    bench.send("in", "d", "1")
    assert bench.live()
    assert content(bench) == {"a": "1", "b": "1", "c": "1", "d": "1"}
    assert len(applied) > 1
    assert [order.snapshot is None for order in maker.orders] == [False]


def test_a_helper_that_dies_once_gets_the_order_again(places: Path) -> None:
    bench = filled()
    maker = use_runs(bench, places)
    maker.deaths = 1
    bench.disk.versions.clear()
    assert bench.live()
    assert content(bench) == {"a": "1", "b": "1", "c": "1"}
    assert len(maker.orders) == 2


def test_without_a_helper_the_worker_reads_the_changelog(places: Path) -> None:
    bench = filled()
    maker = use_runs(bench, places, snapshots=True)
    maker.deaths = 100
    bench.disk.versions.clear()
    assert bench.live()
    assert content(bench) == {"a": "1", "b": "1", "c": "1"}
    assert len(maker.orders) == 2
    assert not maker.open


def test_runs_slower_than_the_tombstone_retention_are_not_used(places: Path) -> None:
    bench = filled()
    maker = use_runs(bench, places)
    make = maker.make

    def slow(order: Any, tell: Any) -> None:
        bench.clock.advance(25 * HOUR_MS)
        make(order, tell)

    maker.make = slow  # type: ignore[method-assign] # as slow as a test can't be
    bench.disk.versions.clear()
    assert bench.live()
    assert content(bench) == {"a": "1", "b": "1", "c": "1"}
    assert len(maker.orders) == 2


def test_an_in_memory_store_starts_from_a_snapshot_too(places: Path) -> None:
    bench = Bench(table(persistent=False), {"in": 1})
    for key in "abc":
        bench.send("in", key, "1")
    assert bench.live()
    snapshot(bench, places)
    maker = use_runs(bench, places, snapshots=True, over=100)
    seen: list[dict[bytes, bytes]] = []
    bench.at_poll.append(
        lambda worker, _: seen.extend(
            dict(task.stores.database("table").iterate("table", None, None))
            for task in worker.tasks.values()
            if task.life.cycle.state == "RUNNING"
        )
    )
    assert bench.live()
    assert len(maker.orders) == 1
    assert {key: unwrap_value(row)[0] for key, row in seen[0].items()} == {
        b"a": b"1",
        b"b": b"1",
        b"c": b"1",
    }


def test_windows_are_restored_with_their_time(places: Path) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=STRING, value_serde=STRING)
    stream.group_by_key().windowed_by(TimeWindows(10, grace=0)).count(store="counts")
    topology: Topology = builder.build()
    for snapshots in (False, True):
        bench = Bench(topology, {"in": 1})
        for timestamp in (1, 5, 200_000, 200_012, 200_025):
            bench.send("in", "k", "x", timestamp=timestamp, partition=0)
        assert bench.live()
        before = bench.rows("counts")
        if snapshots:
            snapshot(bench, places, "counts")
        use_runs(bench, places, snapshots=snapshots)
        bench.disk.versions.clear()
        bench.send("in", "k", "x", timestamp=3, partition=0)  # too late
        assert bench.live()
        assert bench.rows("counts") == before
        shutil.rmtree(places / "snapshots", ignore_errors=True)


def test_the_reason_of_a_restore_is_logged(places: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = filled()
    use_runs(bench, places)
    bench.disk.versions.clear()
    with caplog.at_level(logging.INFO, "tidewheel.tasks"):
        assert bench.live()
    said = [
        text for each in caplog.records if "restoring from changelog" in (text := each.getMessage())
    ]
    assert len(said) == 1
    assert "no position on disk" in said[0]


@settings(
    max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    batches=st.lists(
        st.lists(
            st.tuples(st.sampled_from("abc"), st.sampled_from(["1", "2", "delete"])), max_size=4
        ),
        max_size=5,
    ),
    cuts=st.lists(
        st.tuples(
            st.integers(0, 14),
            st.integers(0, 3),
            st.integers(0, 30),
            st.booleans(),
            st.sampled_from([0, 0, 1, 2]),
        ),
        max_size=5,
    ),
)
def test_a_store_restored_in_any_way_equals_its_input(
    batches: list[list[tuple[str, str]]], cuts: list[tuple[int, int, int, bool, int]]
) -> None:
    with TemporaryDirectory() as folder:
        bench = Bench(table(), {"in": 1})
        bench.idle_polls = 12
        maker = use_runs(bench, Path(folder), snapshots=True)
        expected: dict[str, str] = {}
        pending = list(batches)
        last = [(1_000, 0, 0, False, 0)] * (len(batches) + 1)
        for crash_after, lost, hours, taken, deaths in [*cuts, *last]:
            for key, value in pending.pop(0) if pending else ():
                bench.send("in", key, value)
                expected.pop(key, None)
                if value != "delete":
                    expected[key] = value
            maker.deaths = deaths
            bench.live(crash_after=crash_after)
            if taken:
                snapshot(bench, Path(folder))
            bench.disk.lose(lost)
            bench.clock.advance(hours * HOUR_MS)
            compact(bench, tombstones=hours > 24)
        assert bench.live()
        assert content(bench) == expected


def test_a_report_of_an_abandoned_order_changes_nothing(places: Path) -> None:
    bench = filled()
    maker = use_runs(bench, places)
    maker.held = []
    bench.disk.versions.clear()
    make, tells = maker.make, list[Any]()

    def stop_meanwhile(order: Any, tell: Any) -> None:
        make(order, tell)
        tells.append(tell)
        assert bench.worker is not None
        bench.worker.stop()

    maker.make = stop_meanwhile  # type: ignore[method-assign] # a stop at this moment
    assert bench.live()
    assert not maker.open
    (tell,) = tells
    tell(RunsFailed(reason="too late"))
    maker.held, maker.make = None, make  # type: ignore[method-assign] # as before
    assert bench.live()
    assert content(bench) == {"a": "1", "b": "1", "c": "1"}
