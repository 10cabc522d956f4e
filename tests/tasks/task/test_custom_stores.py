"""Custom stores have exactly the committed changes, also after crashes and restores."""

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.broker import CommitFate
from tests.tasks.loop.bench import Bench
from tests.tasks.loop.group_bench import GroupBench
from tests.tasks.restore.test_copies_of_stores import move_back_and_forth
from tests.tasks.task.custom_stores import KeptTotals, Totals, counting_by
from tidewheel import StateStoreError, Topology
from tidewheel.rebalance.model import TaskId
from tidewheel.tasks.commit.commit_schedule import CommitState

INPUT = "abacabadb"
TASK = TaskId(0, 0)


def bench_of(topology: Topology, directory: Path, **settings: Any) -> Bench:
    bench = Bench(topology, {"in": 1, "out": 1}, **settings)
    bench.directory = directory
    bench.idle_polls = 12
    return bench


def last_outputs(bench: Bench) -> dict[str, int]:
    return {str(key): int.from_bytes(value or b"", "big") for key, value in bench.outputs("out")}


#: All stores that the test made.
MADE: list[Totals] = []


def recorded(make: Callable[[], Totals]) -> Callable[[], Totals]:
    """Return `make`, with its stores recorded in `MADE`."""
    MADE.clear()

    def made() -> Totals:
        MADE.append(make())
        return MADE[-1]

    return made


def crashing(
    kind: type[Totals], directory: Path, crash_after: int | None
) -> tuple[Bench, list[dict[str, int]]]:
    """Return a worker that crashed at a step, and the first content of each store."""
    begun: list[dict[str, int]] = []
    benches: list[Bench] = []

    def make() -> Totals:
        fuse = benches[0].fuse if benches else None
        return KeptTotals(fuse) if kind is KeptTotals else Totals()

    bench = bench_of(counting_by(recorded(make), begun=begun), directory)
    benches.append(bench)
    for number, key in enumerate(INPUT):
        bench.send("in", key, "commit" if number % 2 else "x")
    assert bench.live(crash_after=crash_after) is (crash_after is None)
    return bench, begun


@pytest.mark.parametrize("kind", [Totals, KeptTotals])
def test_crashes_neither_lose_nor_expose_changes(kind: type[Totals], tmp_path: Path) -> None:
    whole, _ = crashing(kind, tmp_path / "whole", None)
    steps = len(whole.fuse.steps)
    assert last_outputs(whole) == Counter(INPUT)
    assert steps > 20
    if kind is KeptTotals:
        assert whole.fuse.steps.count("kept") >= 3
    for step in range(steps):
        bench, begun = crashing(kind, tmp_path / str(step), step)
        begun.clear()
        was_true = last_outputs(bench)
        assert bench.live()
        assert begun == [was_true], f"after a crash at step {step}"
        expected: Counter[str] = Counter()
        for key, value in bench.outputs("out"):
            expected[str(key)] += 1
            assert int.from_bytes(value or b"", "big") == expected[str(key)]
        assert expected == Counter(INPUT)
        assert MADE[-1].totals == expected


def test_a_store_that_keeps_its_offset_is_not_read_again(tmp_path: Path) -> None:
    bench, _ = crashing(KeptTotals, tmp_path, None)
    first = MADE[-1].totals
    assert bench.live()
    assert MADE[-1].restored == []
    assert MADE[-1].totals == first
    shutil.rmtree(tmp_path / "0_0")
    assert bench.live()
    assert len(MADE[-1].restored) >= len(first)
    assert MADE[-1].totals == first == Counter(INPUT)


def test_an_in_memory_store_is_restored_completely(tmp_path: Path) -> None:
    bench, _ = crashing(Totals, tmp_path, None)
    bench.send("in", "a", "forget", timestamp=5_000)
    assert bench.live()
    (MADE[-1].context.state_dir / "left").write_text("behind")
    assert bench.live()
    assert "a" not in MADE[-1].totals
    assert MADE[-1].totals == {"b": 3, "c": 1, "d": 1}
    assert MADE[-1].restored[-1] == (b"a", None, 5_000)
    assert not list(MADE[-1].context.state_dir.iterdir())
    assert all(store.closed == 1 for store in MADE[2:]), "every used store is closed once"


def test_a_store_of_another_topic_is_emptied(tmp_path: Path) -> None:
    bench, begun = crashing(KeptTotals, tmp_path, None)
    changelog = "app-totals-changelog"
    config = bench.broker.topics[changelog].config
    bench.broker.delete_topic(changelog)
    bench.broker.create_topic(changelog, 1, config)
    begun.clear()
    assert bench.live()
    assert begun == [{}]


def test_an_aborted_commit_discards_the_changes(tmp_path: Path) -> None:
    bench, begun = crashing(KeptTotals, tmp_path, None)
    begun.clear()
    bench.send("in", "a", "x")
    bench.broker.commit_fates.append(CommitFate.UNKNOWN_OPEN)
    assert bench.live()
    assert begun == [dict(Counter(INPUT)), dict(Counter(INPUT))]
    assert MADE[-1].totals == Counter(INPUT + "a") == last_outputs(bench)


def test_changes_of_a_failed_record_remain(tmp_path: Path) -> None:
    topology = counting_by(recorded(Totals))
    bench = bench_of(topology, tmp_path, processing_exception_handler="continue")
    bench.send("in", "a", "fail")
    bench.send("in", "a", "x")
    assert bench.live()
    assert MADE[-1].totals == {"a": 2}
    assert bench.live()
    assert MADE[-1].totals == {"a": 2}


def test_of_several_changes_of_a_key_the_last_one_is_written(tmp_path: Path) -> None:
    bench = bench_of(counting_by(recorded(Totals)), tmp_path)
    for _ in range(50):
        bench.send("in", "a", "x")
    assert bench.live()
    written = list(bench.broker.records("app-totals-changelog"))
    assert len(written) < 5
    assert written[-1].value == b"50"


@pytest.mark.parametrize("kind", [Totals, KeptTotals])
def test_a_task_moves_back_and_forth_with_its_copies(kind: type[Totals], tmp_path: Path) -> None:
    with GroupBench(counting_by(kind), {"in": 1, "out": 1}) as group:
        hosts = [group.host("a"), group.host("b")]
        for host in hosts:
            host.directory = tmp_path / host.name
        move_back_and_forth(group, hosts)


class Refusing(Totals):
    """Fails in the method that `where` names."""

    where = ""

    def init(self, context: Any) -> None:
        super().init(context)
        if self.where == "log":
            context.log_change(b"k", b"v")
        if self.where == "init":
            raise OSError("no space")

    def restore(self, records: Any) -> None:
        super().restore(records)
        if self.where == "restore":
            raise OSError("no space")

    def commit(self, offsets: Any) -> None:
        super().commit(offsets)
        if self.where == "commit":
            raise OSError("no space")


@pytest.mark.parametrize("where", ["init", "restore", "commit", "log"])
def test_errors_name_the_store(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of(counting_by(recorded(Refusing)), tmp_path)
    bench.send("in", "a", "x")
    if where == "restore":
        assert bench.live()
    monkeypatch.setattr(Refusing, "where", where)
    expected = "log_change was called outside" if where == "log" else f"{where} failed: OSError: no"
    with pytest.raises(StateStoreError, match=f"store totals.*{expected}"):
        bench.live()
    monkeypatch.setattr(Refusing, "where", "")
    assert bench.live()
    assert MADE[-1].totals == {"a": 1}


def test_a_store_without_a_changelog_is_notified_of_commits(tmp_path: Path) -> None:
    bench = bench_of(counting_by(recorded(KeptTotals), logging=False), tmp_path)
    bench.send("in", "a", "x")
    assert bench.live()
    assert "app-totals-changelog" not in bench.broker.topics
    bench.send("in", "a", "x")
    assert bench.live()
    assert MADE[-1].totals == {"a": 2}


def test_no_record_is_processed_until_stores_are_notified_of_a_commit(tmp_path: Path) -> None:
    bench = bench_of(counting_by(KeptTotals), tmp_path, commit_interval_ms=5)
    bench.commit_turns = 40
    in_progress: list[bool] = []
    bench.at_poll.append(
        lambda worker, _: in_progress.append(worker._loop.commits.state is not CommitState.NONE)
    )
    for key in INPUT:
        bench.send("in", key, "x")
    assert bench.live()
    assert last_outputs(bench) == Counter(INPUT)
    assert in_progress
    assert not any(in_progress)
