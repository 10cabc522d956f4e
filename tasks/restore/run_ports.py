"""What the tasks need to have sorted runs made: the port `RunMaker`, its orders and what becomes of them."""

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
    """Sorted runs that a store of a task is to be restored from.

    Attributes:
        spec: The store.
        partition: Its changelog partition.
        snapshot: The runs of a snapshot that are to be brought here and come first; None for none.
        from_offset: Where reading the changelog begins, behind those of the snapshot.
        to_offset: Where it ends; the same offset if nothing is to be read.
        complete_from_zero: The changelog is read from its start, so nothing lies below.
        urgent: A task that is to run waits for it; copies wait for those.
        directory: Where the files are to be: a directory that does not exist yet, beside the task's database.
        slowest_ms: The store's time at its task's slowest key range (`SegmentLayout.first_restored`).
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
    """How far an order is: the offset that was reached, and the rows and records that were brought and read."""

    position: int
    records: int


class RunsMade(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of an order, which are the receiver's until it calls `forget`; `records` were brought and read."""

    runs: BuiltRuns
    records: int


class RunsFailed(msgspec.Struct, frozen=True, kw_only=True):
    """An order that can't be carried out. `snapshot` says that it is the snapshot's fault, not the changelog's."""

    reason: str
    snapshot: bool = False


#: What becomes of an order: progress any number of times, then one of the other two.
RunReport = RunProgress | RunsMade | RunsFailed


class RunMaker(Protocol):
    """Makes sorted runs of changelogs and brings those of snapshots, in another process.

    Every method returns at once. What is told is told from any thread, perhaps before the call returns.
    """

    @property
    def has_snapshots(self) -> bool:
        """Return whether there is a place where snapshots are looked for."""
        ...

    def find_snapshot(
        self, store: str, topic_id: bytes, found: Callable[[StoreSnapshot | None], None]
    ) -> None:
        """Look for the newest snapshot of a store, by its changelog's id; None if there is none that can be read."""
        ...

    def make(self, order: RunOrder, tell: Callable[[RunReport], None]) -> None:
        """Begin with an order."""
        ...

    def forget(self, order: RunOrder) -> None:
        """Stop an order if it is under way, tell no more of it, and delete its directory. Idempotent."""
        ...


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How workers use sorted runs.

    Attributes:
        maker: Makes them.
        directory: Where files may be put: a directory of this worker's, on the file system of its databases.
        from_records: A longer gap is built into runs.
    """

    maker: RunMaker
    directory: Callable[[], Path]
    from_records: int = RUNS_FROM_RECORDS
