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
    """Order of sorted runs for one store.

    Attributes:
        snapshot: Runs to download before those of the changelog.
        from_offset: First changelog offset to read.
        to_offset: End of reading; equal to `from_offset` if nothing is read.
        complete_from_zero: The changelog is read from its start.
        urgent: An active task waits for the runs; copies come later.
        directory: New directory on the file system of the task's database.
        slowest_ms: The store's time at the slowest key range (`SegmentLayout.first_restored`).
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
    """Offset reached by an order; records downloaded and read so far."""

    position: int
    records: int


class RunsMade(msgspec.Struct, frozen=True, kw_only=True):
    """Finished runs; the receiver keeps them until `forget`. `records` counts their input."""

    runs: BuiltRuns
    records: int


class RunsFailed(msgspec.Struct, frozen=True, kw_only=True):
    """Failure of an order; `snapshot`: caused by the snapshot, not by the changelog."""

    reason: str
    snapshot: bool = False


#: Any number of progress reports, then one result.
RunReport = RunProgress | RunsMade | RunsFailed


class RunMaker(Protocol):
    """Builds sorted runs of changelogs and downloads those of snapshots, in another process.

    Methods return immediately. Callbacks come from any thread, possibly before the call returns.
    """

    @property
    def has_snapshots(self) -> bool: ...

    def find_snapshot(
        self, store: str, topic_id: bytes, found: Callable[[StoreSnapshot | None], None]
    ) -> None:
        """Find the newest readable snapshot of a store by its changelog's id; None for none."""
        ...

    def make(self, order: RunOrder, report: Callable[[RunReport], None], /) -> None: ...

    def forget(self, order: RunOrder) -> None:
        """Cancel an order, stop its reports, and delete its directory. Idempotent."""
        ...


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of sorted runs in workers.

    Attributes:
        directory: The worker's directory, on the file system of its databases.
        from_records: Build longer gaps into runs.
    """

    maker: RunMaker
    directory: Callable[[], Path]
    from_records: int = RUNS_FROM_RECORDS
