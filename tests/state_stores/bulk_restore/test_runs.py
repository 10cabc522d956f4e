"""Runs are built in bounded memory, describe their content, and are deleted when abandoned."""

import hashlib
import os
import resource
import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.state_stores.bulk_restore.logs import SPECS
from tidewheel.state_stores.bulk_restore.manifest import MOST_RUNS, SnapshotRefused
from tidewheel.state_stores.bulk_restore.merge import limit_runs, merge_runs, newest_rows
from tidewheel.state_stores.bulk_restore.run_files import RunFile
from tidewheel.state_stores.bulk_restore.runs import RunBuilder, write_run
from tidewheel.state_stores.errors import StateStoreError
from tidewheel.state_stores.layout.envelope import wrap_value
from tidewheel.state_stores.layout.restore import StoreTime
from tidewheel.state_stores.layout.segments import SegmentLayout
from tidewheel.state_stores.rocksdb.sorted_files import read_sorted_file
from tidewheel.state_stores.spec import StoreSpec

SPEC = SPECS["key-value"]
MIB = 1024 * 1024


def builder(path: Path, spec: StoreSpec = SPEC, **changes: Any) -> RunBuilder:
    return RunBuilder(
        spec, path, **{"partition": 3, "from_offset": 0, "complete_from_zero": True, **changes}
    )


def put(to: RunBuilder, start: int, rows: dict[bytes, bytes | None]) -> None:
    count = len(rows)
    to.add(list(rows), list(rows.values()), [start + each for each in range(count)], start + count)


def test_a_run_describes_its_content(tmp_path: Path) -> None:
    runs = builder(tmp_path, from_offset=10, complete_from_zero=False)
    put(runs, 20, {b"b": b"1", b"a": b"2", b"c": None})
    put(runs, 30, {b"b": None})
    (file,) = runs.finish(40).files
    assert list(read_sorted_file(file.path)) == [
        (b"a", wrap_value(b"2", 21)),
        (b"b", None),
        (b"c", None),
    ]
    data = file.path.read_bytes()
    run = file.run
    assert (run.partition, run.from_offset, run.to_offset, run.file) == (3, 10, 40, "")
    assert (run.rows, run.deletes, run.first_key, run.last_key) == (3, 2, b"a", b"c")
    assert (run.file_bytes, run.sha256) == (len(data), hashlib.sha256(data).hexdigest())


def test_a_gap_without_rows_makes_no_file(tmp_path: Path) -> None:
    runs = builder(tmp_path, max_bytes=1)
    put(runs, 0, {b"a": None})
    put(runs, 1, {b"a": None, b"b": b"1"})
    put(runs, 3, {b"b": None})
    files = runs.finish(9).files
    assert [(file.run.from_offset, file.run.to_offset) for file in files] == [(1, 3), (3, 4)]
    assert [list(read_sorted_file(file.path)) for file in files] == [
        [(b"b", wrap_value(b"1", 2))],
        [(b"b", None)],
    ]
    assert builder(tmp_path).finish(7).files == ()


def test_memory_is_bounded(tmp_path: Path) -> None:
    limit = 8 * MIB
    runs = builder(tmp_path, max_bytes=limit)
    tracemalloc.start()
    try:
        for start in range(0, 75_000, 1_000):
            put(runs, start, {b"%012d" % each: bytes(100) for each in range(start, start + 1_000)})
        files = runs.finish(75_000).files
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < limit * 1.1
    assert len(files) >= 3
    assert sum(each.run.rows for each in files) == 75_000
    bounds = [(each.run.from_offset, each.run.to_offset) for each in files]
    assert all(before[1] == after[0] for before, after in pairwise(bounds))
    assert (bounds[0][0], bounds[-1][1]) == (0, 75_000)


def test_hot_keys_make_no_new_runs(tmp_path: Path) -> None:
    runs = builder(tmp_path, max_bytes=100_000)
    for start in range(0, 20_000, 100):
        put(runs, start, {b"%d" % each: b"x" * 50 for each in range(100)})
    (file,) = runs.finish(20_000).files
    assert file.run.rows == 100


def test_expired_rows_are_left_out_over_all_batches(tmp_path: Path) -> None:
    spec = replace(SPECS["window"], retention_ms=60_000)
    layout = SegmentLayout.of(spec)
    runs = builder(tmp_path, spec)
    for offset, start in enumerate((0, 500_000, 60_000)):
        put(runs, offset, {layout.window_key(b"k", start)[8:]: None if start == 500_000 else b"v"})
    built = runs.finish(3)
    assert built.files == ()
    assert built.time == StoreTime(500_000)


def test_abandoned_runs_are_deleted(tmp_path: Path) -> None:
    runs = builder(tmp_path, max_bytes=1)
    put(runs, 0, {b"a": b"1"})
    assert len(list(tmp_path.iterdir())) == 1
    (tmp_path / "3-1-1.sst").write_bytes(b"half")
    runs.abandon()
    assert list(tmp_path.iterdir()) == []
    runs = builder(tmp_path)
    put(runs, 0, {b"b": b"1"})
    tmp_path.rmdir()
    with pytest.raises(StateStoreError, match=r"could not write sorted file 3-.*\.sst"):
        runs.finish(6)


def files_of(path: Path, *contents: Mapping[bytes, bytes | None]) -> list[RunFile]:
    found: list[RunFile] = []
    for number, rows in enumerate(contents):
        file = path / f"{number}.sst"
        run = write_run(file, sorted(rows.items()), 0, (number * 10, number * 10 + 10))
        assert run is not None
        found.append(RunFile(file, run))
    return found


def test_merged_runs_keep_the_latest_row_and_its_delete(tmp_path: Path) -> None:
    files = files_of(tmp_path, {b"a": b"1", b"b": b"1"}, {b"a": None, b"c": b"2"}, {b"c": b"3"})
    kept = merge_runs(files, tmp_path / "kept.sst", drop_deletes=False)
    assert kept is not None
    assert list(read_sorted_file(kept.path)) == [(b"a", None), (b"b", b"1"), (b"c", b"3")]
    assert (kept.run.from_offset, kept.run.to_offset, kept.run.deletes) == (0, 30, 1)
    whole = merge_runs(files, tmp_path / "whole.sst", drop_deletes=True)
    assert whole is not None
    assert list(read_sorted_file(whole.path)) == [(b"b", b"1"), (b"c", b"3")]
    assert merge_runs(files_of(tmp_path, {b"a": None}), tmp_path / "x", drop_deletes=True) is None
    assert not (tmp_path / "x").exists()
    assert all(file.path.exists() for file in files)


def test_few_files_are_not_merged(tmp_path: Path) -> None:
    files = files_of(tmp_path, *[{b"%d" % each: b"x"} for each in range(7)])
    assert limit_runs(files, tmp_path, complete_from_zero=True, most=7) == files
    merged = limit_runs(files, tmp_path, complete_from_zero=False, most=3)
    assert [(each.run.from_offset, each.run.to_offset) for each in merged] == [
        (0, 30),
        (30, 50),
        (50, 70),
    ]


@pytest.mark.slow
def test_hundreds_of_runs_are_merged_with_few_of_them_open(tmp_path: Path) -> None:
    contents: list[dict[bytes, bytes | None]] = [
        {
            b"%04d" % (each * (number + 1) % 997): None if each % 5 == 0 else b"%d" % number * 40
            for each in range(60)
        }
        for number in range(MOST_RUNS * MOST_RUNS + 4)
    ]
    files = files_of(tmp_path, *contents)
    last: dict[bytes, bytes | None] = {}
    for rows in contents:
        last |= rows
    before = set(tmp_path.iterdir())
    tracemalloc.start()
    try:
        with few_files_to_open(3 * MOST_RUNS):
            merged = merge_runs(files, tmp_path / "merged.sst", drop_deletes=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert merged is not None
    expected = [row for row in sorted(last.items()) if row[1] is not None]
    assert list(read_sorted_file(merged.path)) == expected
    assert (merged.run.from_offset, merged.run.to_offset) == (0, 10 * len(files))
    assert set(tmp_path.iterdir()) - before == {merged.path}
    assert peak < sum(file.run.file_bytes for file in files) / 4


@contextmanager
def few_files_to_open(more: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as opened:
        free = [opened.enter_context(Path(os.devnull).open()).fileno() for _ in range(more)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1] + 1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_file_that_differs_from_its_run_is_not_merged(tmp_path: Path) -> None:
    (file,) = files_of(tmp_path, {b"a": b"1", b"b": b"2"})
    other = RunFile(file.path, msgspec.structs.replace(file.run, rows=3))
    with pytest.raises(SnapshotRefused, match="has 2 rows where 3 were written"):
        list(newest_rows([other]))
