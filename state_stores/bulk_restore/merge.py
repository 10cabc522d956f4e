"""Merge of runs, to bound the number of files in a store, and their rows of some keys only."""

from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from pathlib import Path
from tempfile import TemporaryDirectory

from tidewheel.state_stores.bulk_restore.manifest import MOST_RUNS, SnapshotRefused
from tidewheel.state_stores.bulk_restore.run_files import BuiltRuns, RunFile
from tidewheel.state_stores.bulk_restore.runs import Row, write_run
from tidewheel.state_stores.layout.restore import StoreTime
from tidewheel.state_stores.layout.segments import SegmentLayout
from tidewheel.state_stores.rocksdb.sorted_files import read_sorted_file
from tidewheel.state_stores.spec import SEGMENTED_KINDS, StoreSpec


def merge_runs(files: Sequence[RunFile], out: Path, *, drop_deletes: bool) -> RunFile | None:
    """Merge runs, in offset order, into one file; return None, without a file, if no row is left.

    `drop_deletes` leaves out deletes, which is right only if no rows older than the runs exist.

    Raises:
        SnapshotRefused: The rows of a file differ from its run.
        StoreCorruptedError: A file can't be read.
    """
    first, last = files[0].run, files[-1].run
    with TemporaryDirectory(dir=out.parent) as folder:
        few = limit_runs(files, Path(folder), complete_from_zero=drop_deletes)
        rows = newest_rows(few)
        if drop_deletes:
            rows = (row for row in rows if row[1] is not None)
        run = write_run(out, rows, first.partition, (first.from_offset, last.to_offset))
    return None if run is None else RunFile(out, run)


def limit_runs(
    files: Sequence[RunFile], directory: Path, *, complete_from_zero: bool, most: int = MOST_RUNS
) -> list[RunFile]:
    if len(files) <= most:
        return list(files)
    files_per_run, longer = divmod(len(files), most)
    merged_files: list[RunFile] = []
    start = 0
    for number in range(most):
        stop = start + files_per_run + (number < longer)
        # A group keeps its deletes if older rows may exist: if the files don't begin at the log's
        # start, or if an earlier group has rows that are no deletes.
        below = not complete_from_zero or bool(merged_files)
        name = f"merged-{files[start].run.from_offset}-{files[stop - 1].run.to_offset}-{number}.sst"
        merged = merge_runs(files[start:stop], directory / name, drop_deletes=not below)
        if merged is not None:
            merged_files.append(merged)
        start = stop
    return merged_files


def keep_rows(file: RunFile, spec: StoreSpec, is_kept: Callable[[bytes], bool]) -> BuiltRuns:
    """Replace a run on disk by one with some of its rows: none, without a file, if no row is left.

    `is_kept` receives disk keys. The time is that of the rows that are left.

    Raises:
        SnapshotRefused: The rows of the file differ from its run.
        StoreCorruptedError: The file can't be read.
    """
    out = file.path.with_name(f"kept-{file.path.name}")
    layout = SegmentLayout.of(spec) if spec.kind in SEGMENTED_KINDS else None
    observed_ms, seq = -1, 0

    def kept_rows() -> Iterator[Row]:
        nonlocal observed_ms, seq
        for key, _, value in _ranked(file, 0):
            if not is_kept(key):
                continue
            if layout is not None:
                observed_ms = max(observed_ms, layout.time_of(key))
                seq = max(seq, layout.seq_of(key)) if spec.retain_duplicates else 0
            yield key, value

    offsets = file.run.from_offset, file.run.to_offset
    run = write_run(out, kept_rows(), file.run.partition, offsets)
    file.path.unlink()
    files = () if run is None else (RunFile(out, run),)
    return BuiltRuns(files, StoreTime(observed_ms, seq))


def newest_rows(files: Sequence[RunFile]) -> Iterator[Row]:
    """Yield each key's row from the latest run with this key, in key order."""
    before: bytes | None = None
    for key, _, value in merge(*(_ranked(file, -age) for age, file in enumerate(files))):
        if key != before:
            yield key, value
            before = key


def _ranked(file: RunFile, rank: int) -> Iterator[tuple[bytes, int, bytes | None]]:
    count = 0
    before: bytes | None = None
    for key, value in read_sorted_file(file.path):
        if before is not None and key <= before:
            raise SnapshotRefused(f"the keys of {file.path} are not in order; delete it")
        before = key
        count += 1
        yield key, rank, value
    if count != file.run.rows:
        raise SnapshotRefused(
            f"{file.path} has {count} rows where {file.run.rows} were written; delete it"
        )
