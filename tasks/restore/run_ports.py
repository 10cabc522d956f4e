"""Port for building sorted runs outside the worker: `RunMaker`, its orders and reports."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.bulk_restore.manifest import PartitionRuns, StoreSnapshot
from tidewheel.state_stores.bulk_restore.plan import RUNS_FROM_RECORDS
from tidewheel.state_stores.bulk_restore.run_files import BuiltRuns
from tidewheel.state_stores.spec import StoreSpec


class RunOrder(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Request for sorted runs (files with the last value per key) of one store.

    Attributes:
        partition: Changelog partition; that of a shard has its rows only.
        snapshot: Runs to download before those of the changelog.
        to_offset: End of reading; equal to `from_offset` if nothing is read.
        urgent: An active task waits for the runs; copies come later.
        directory: New directory on the file system of the task's database.
        slowest_ms: Stream time at the slowest key range, by which rows expire.
    """

    spec: StoreSpec
    partition: TopicPartition
    snapshot: PartitionRuns | None
    from_offset: int
    to_offset: int
    complete_from_zero: bool
    urgent: bool
    directory: Path
    slowest_ms: int | None = None


class RunProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a run order: offset reached, records downloaded and read so far."""

    position: int
    records: int


class RunsBuilt(msgspec.Struct, frozen=True, kw_only=True):
    """Finished runs; their files exist until `forget`. `records`: number read to build them."""

    runs: BuiltRuns
    records: int


class RunsFailed(msgspec.Struct, frozen=True, kw_only=True):
    """Failure of a run order; `snapshot`: the snapshot caused it, not the changelog."""

    reason: str
    snapshot: bool = False


#: A run order gets any number of progress reports, then one result.
RunReport = RunProgress | RunsBuilt | RunsFailed


class RunMaker(Protocol):
    """Builds sorted runs of changelogs and downloads those of snapshots, in another process.

    Methods return immediately. Callbacks come from any thread, possibly before the call returns.
    """

    @property
    def has_snapshots(self) -> bool: ...

    def find_snapshot(
        self, store: str, topic_id: bytes, found: Callable[[StoreSnapshot | None], None]
    ) -> None:
        """Pass the store's newest readable snapshot, or None, to `found`."""
        ...

    def make(self, order: RunOrder, report: Callable[[RunReport], None], /) -> None: ...

    def forget(self, order: RunOrder) -> None:
        """Cancel an order, stop its reports, and delete its directory. Idempotent."""
        ...


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of sorted runs in workers.

    Attributes:
        directory: The worker's directory, on the file system of its databases.
        from_records: A store that lags by more records than this is restored from runs.
    """

    maker: RunMaker
    directory: Callable[[], Path]
    from_records: int = RUNS_FROM_RECORDS
