"""A replay, sorted runs, and a snapshot with its tail leave the same rows."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count, pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.state_stores.bulk_restore.logs import (
    SPECS,
    STORE,
    Logged,
    columns,
    compacted,
    logs,
    noted,
    replay,
    replayed,
    row_key,
    visible,
)
from tidewheel.state_stores.bulk_restore.ingest import ingest_runs
from tidewheel.state_stores.bulk_restore.manifest import MOST_RUNS
from tidewheel.state_stores.bulk_restore.merge import limit_runs
from tidewheel.state_stores.bulk_restore.run_files import BuiltRuns, RunFile
from tidewheel.state_stores.bulk_restore.runs import RunBuilder
from tidewheel.state_stores.in_memory import InMemoryDatabase
from tidewheel.state_stores.layout.restore import StoreTime
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.rocksdb.options import RocksDBOptions
from tidewheel.state_stores.rocksdb.shared_resources import SharedResources
from tidewheel.state_stores.rocksdb.task_database import TaskDatabase
from tidewheel.state_stores.spec import SEGMENTED_KINDS, StoreSpec

POSITION = "changelog:app-store-changelog-0"

Directories = Callable[[], Path]
Databases = Callable[[], Database]


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> Directories:
    root, numbers = tmp_path_factory.mktemp("runs"), count()

    def new() -> Path:
        path = root / str(next(numbers))
        path.mkdir()
        return path

    return new


@pytest.fixture(scope="module", params=["in memory", "rocksdb"])
def databases(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Databases]:
    """Return new in-memory databases, or one RocksDB database that each example clears."""
    if request.param == "in memory":
        yield lambda: InMemoryDatabase([STORE])
        return
    options = RocksDBOptions()
    path = tmp_path_factory.mktemp("rocksdb") / "0_0"
    database = TaskDatabase.open(path, [STORE], options, SharedResources.create(options))
    yield lambda: database
    database.close()


def build(
    spec: StoreSpec,
    directory: Path,
    records: Sequence[Logged],
    *,
    cuts: Sequence[int] = (),
    offsets: tuple[int, int] | None = None,
    complete: bool = True,
    max_bytes: int = 1_000,
    slowest_ms: int | None = None,
) -> BuiltRuns:
    end = records[-1].offset + 1 if records else 0
    begin, end = offsets or (0, end)
    builder = RunBuilder(
        spec,
        directory,
        partition=0,
        from_offset=begin,
        complete_from_zero=complete,
        max_bytes=max_bytes,
        slowest_ms=slowest_ms,
    )
    bounds = [0, *sorted(cut % (len(records) + 1) for cut in cuts), len(records)]
    for start, stop in pairwise(bounds):
        batch = records[start:stop]
        next_offset = batch[-1].offset + 1 if batch else begin
        if batch:
            builder.add(*columns(batch), next_offset)
    return builder.finish(end)


def take(
    database: Database,
    spec: StoreSpec,
    built: BuiltRuns,
    *,
    from_nothing: bool,
    slowest_ms: int | None = None,
) -> None:
    ingest_runs(
        database,
        spec,
        built.files,
        time=built.time,
        position_name=POSITION,
        position=None,
        from_nothing=from_nothing,
        slowest_ms=slowest_ms,
    )


def all_kinds(test: Any) -> Any:
    test = pytest.mark.slow(test)
    return pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)(test)


@all_kinds
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_runs_equal_replay(
    spec: StoreSpec, directories: Directories, databases: Databases, data: Any
) -> None:
    records = data.draw(logs(spec))
    cuts = data.draw(st.lists(st.integers(0, 50), max_size=5))
    max_bytes = data.draw(st.sampled_from([300, 1_000, 1 << 20]))
    expected, now = replayed(spec, records)
    built = build(spec, directories(), records, cuts=cuts, max_bytes=max_bytes)
    assert built.time == now
    database = databases()
    database.write({STORE: [(b"of another life", b"\x01")]}, {POSITION: b"old"})
    take(database, spec, built, from_nothing=True)
    assert visible(spec, database, now) == visible(spec, expected, now)
    assert noted(database) == now
    assert not database.position(POSITION)
    assert b"of another life" not in dict(database.iterate(STORE, None, None))


@all_kinds
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_runs_on_a_position_equal_replay(
    spec: StoreSpec, directories: Directories, databases: Databases, data: Any
) -> None:
    records = data.draw(logs(spec))
    cut = data.draw(st.integers(0, len(records)))
    begin = records[cut].offset if cut < len(records) else 10_000
    expected, now = replayed(spec, records)
    database = databases()
    take(database, spec, BuiltRuns((), StoreTime()), from_nothing=True)
    replay(spec, database, records[:cut])
    built = build(
        spec,
        directories(),
        records[cut:],
        offsets=(begin, 10_000),
        complete=False,
        max_bytes=data.draw(st.sampled_from([300, 1 << 20])),
    )
    take(database, spec, built, from_nothing=False)
    assert visible(spec, database, now) == visible(spec, expected, now)
    assert noted(database) == now


@all_kinds
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_ranges_built_apart_and_merged_equal_replay(
    spec: StoreSpec, directories: Directories, databases: Databases, data: Any
) -> None:
    records = data.draw(logs(spec))
    end = records[-1].offset + 3 if records else 3
    bounds = sorted({0, end, *data.draw(st.lists(st.integers(0, end), max_size=6))})
    directory = directories()
    files: list[RunFile] = []
    built_time = StoreTime()
    for start, stop in pairwise(bounds):
        part = [record for record in records if start <= record.offset < stop]
        folder = directory / f"{start}"
        folder.mkdir()
        one = build(spec, folder, part, offsets=(start, stop), complete=start == 0, max_bytes=300)
        files += one.files
        built_time = built_time.later(one.time)
    most = data.draw(st.integers(1, 4))
    merged = limit_runs(files, directory, complete_from_zero=True, most=most)
    assert len(merged) <= most
    expected, now = replayed(spec, records)
    assert built_time == now
    database = databases()
    take(database, spec, BuiltRuns(tuple(merged), built_time), from_nothing=True)
    assert visible(spec, database, now) == visible(spec, expected, now)


@all_kinds
def test_runs_beyond_the_ingest_limit_equal_replay(
    spec: StoreSpec, directories: Directories, databases: Databases
) -> None:
    chance = Random(7)
    records = [
        Logged(
            offset=offset,
            key=row_key(spec, b"%d" % chance.randrange(40), 500_000 + chance.randrange(3)),
            value=None if chance.random() < 0.2 else b"%d" % offset,
            timestamp=1_000 + offset // 50,
        )
        for offset in range(200)
    ]
    directory = directories()
    built = build(spec, directory, records, cuts=range(0, 200, 4), max_bytes=1)
    assert len(built.files) > 2 * MOST_RUNS
    files = limit_runs(built.files, directory, complete_from_zero=True)
    assert len(files) == MOST_RUNS
    expected, now = replayed(spec, records)
    assert built.time == now
    database = databases()
    take(database, spec, BuiltRuns(tuple(files), built.time), from_nothing=True)
    assert visible(spec, database, now) == visible(spec, expected, now)


@all_kinds
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_K3_runs_and_tail_keep_the_rows_for_a_slow_key_range(
    spec: StoreSpec, directories: Directories, databases: Databases, data: Any
) -> None:
    records = data.draw(logs(spec))
    slowest_ms = data.draw(st.integers(-1, 600_000))
    cut = data.draw(st.integers(0, len(records)))
    end = records[cut].offset if cut < len(records) else 10_000
    before, tail = records[:cut], records[cut:]
    built = build(
        spec, directories(), before, offsets=(0, end), max_bytes=300, slowest_ms=slowest_ms
    )
    database = databases()
    take(database, spec, built, from_nothing=True, slowest_ms=slowest_ms)
    replay(spec, database, tail, slowest_ms=slowest_ms)
    expected, now = replayed(spec, records, slowest_ms=slowest_ms)
    rows = visible(spec, expected, now, slowest_ms=slowest_ms)
    assert visible(spec, database, now, slowest_ms=slowest_ms) == rows
    assert noted(database) == now
    if spec.kind in SEGMENTED_KINDS:
        everything, _ = replayed(spec, records, slowest_ms=-1)
        assert visible(spec, everything, now, slowest_ms=slowest_ms) == rows


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_snapshot_and_the_tail_of_a_log_that_is_cleaned_equal_replay(
    spec: StoreSpec, directories: Directories, data: Any
) -> None:
    records = data.draw(logs(spec))
    cut = data.draw(st.integers(0, len(records)))
    end = records[cut].offset if cut < len(records) else 10_000
    before, after = records[:cut], records
    if spec is not SPECS["versioned"]:  # the cleaner removes older versions
        cleaned = data.draw(st.integers(0, end))
        before = compacted(before, before=cleaned, deletes_before=data.draw(st.integers(0, end)))
        # Deletes after the snapshot exist while the snapshot may be used.
        cleaned = data.draw(st.integers(0, 200))
        after = compacted(after, before=cleaned, deletes_before=end)
    built = build(spec, directories(), before, offsets=(0, end))
    database = InMemoryDatabase([STORE])
    take(database, spec, built, from_nothing=True)
    replay(spec, database, [each for each in after if each.offset >= end])
    expected, now = replayed(spec, records)
    assert visible(spec, database, now) == visible(spec, expected, now)


def test_the_model_shows_when_a_delete_is_lost(directories: Directories) -> None:
    spec = SPECS["key-value"]
    records = [Logged(0, b"a", b"1", 0), Logged(1, b"a", None, 1), Logged(2, b"b", b"2", 2)]
    database = InMemoryDatabase([STORE])
    take(database, spec, build(spec, directories(), records[:1]), from_nothing=True)
    tail = compacted(records, before=3, deletes_before=3)
    replay(spec, database, [each for each in tail if each.offset >= 1])
    expected, now = replayed(spec, records)
    assert visible(spec, database, now) != visible(spec, expected, now)
