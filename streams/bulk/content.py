"""Content of a store's partition at a fixed end of its changelog, built on executors."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidewheel.state_stores.bulk_restore.content import StoredRow, stored_rows
from tidewheel.state_stores.bulk_restore.manifest import (
    ChangelogFacts,
    PartitionRuns,
    SnapshotRefused,
    StoreSnapshot,
)
from tidewheel.state_stores.bulk_restore.merge import limit_runs, newest_rows
from tidewheel.state_stores.bulk_restore.plan import RestorePlan, plan_restore
from tidewheel.state_stores.bulk_restore.run_files import RunFile
from tidewheel.state_stores.layout.restore import StoreTime
from tidewheel.state_stores.spec import StoreSpec
from tidewheel.streams.bulk.executors import (
    Counted,
    ExecutorWork,
    RangeToBuild,
    fetched,
    read_into_runs,
)
from tidewheel.streams.bulk.stores import BulkStore

_log = logging.getLogger("tidewheel")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionToRead:
    """Changelog range to read; `runs` are a snapshot's files of its first part, or None."""

    store: str
    partition: int
    log_start: int
    to_offset: int
    runs: PartitionRuns | None

    def from_changelog(self) -> RangeToBuild:
        return self._range(self.log_start, complete=True)

    def tail(self, offset: int) -> RangeToBuild:
        return self._range(offset, complete=False)

    def _range(self, offset: int, *, complete: bool) -> RangeToBuild:
        return RangeToBuild(
            store=self.store,
            partition=self.partition,
            from_offset=offset,
            to_offset=self.to_offset,
            complete_from_zero=complete,
            may_begin_later=complete,
        )


@dataclass(frozen=True, slots=True)
class Content:
    files: Sequence[RunFile]
    time: StoreTime

    def rows(self, spec: StoreSpec, *, observed_ms: int = -1) -> Iterator[StoredRow]:
        """Yield the unexpired rows in disk order.

        `observed_ms` is the stream time of another copy: rows expired by it are left out too. A
        compacted log may have lost the record that advanced the time.
        """
        return stored_rows(
            spec,
            ((key, value) for key, value in newest_rows(self.files) if value is not None),
            max(self.time.observed_ms, observed_ms),
        )


def reading_plan(
    store: BulkStore, snapshot: StoreSnapshot | None, facts: ChangelogFacts
) -> tuple[PartitionToRead, RestorePlan]:
    plan = plan_restore(None, snapshot, store.spec, facts)
    return PartitionToRead(
        store=store.name,
        partition=facts.partition,
        log_start=facts.log_start,
        to_offset=facts.stable_end,
        runs=plan.snapshot,
    ), plan


def read_content(
    work: ExecutorWork, task: PartitionToRead, directory: Path, count: Counted
) -> Content:
    if task.runs is not None:
        try:
            return read_snapshot(work, task, task.runs, directory, count)
        except SnapshotRefused as error:
            _log.warning("%s; the changelog is read instead", error)
    return read_changelog(work, task, directory, count)


def read_changelog(
    work: ExecutorWork, task: PartitionToRead, directory: Path, count: Counted
) -> Content:
    built = read_into_runs(work, task.from_changelog(), directory, count)
    return Content(limit_runs(built.files, directory, complete_from_zero=True), built.time)


def read_snapshot(
    work: ExecutorWork,
    task: PartitionToRead,
    runs: PartitionRuns,
    directory: Path,
    count: Counted,
) -> Content:
    """Return content of a snapshot and the tail; raise `SnapshotRefused` for bad files."""
    files = fetched(work.place(), runs.runs, directory)
    built = read_into_runs(work, task.tail(runs.to_offset), directory, count)
    files = limit_runs([*files, *built.files], directory, complete_from_zero=True)
    return Content(files, runs.time.later(built.time))
