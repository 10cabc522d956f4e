"""Bulk work with Spark: snapshots, restore, stores as data frames, comparison, and batch runs.

Needs `pip install 'tidewheel[spark]'`. Functions use the caller's session, or create a local one.
Commands: `tidewheel snapshot`, `restore`, `bootstrap`, `backfill`, `state`.
"""

from tidewheel.state_stores.bulk_restore.manifest import Manifest
from tidewheel.streams.bulk.backfill.command import backfill, check_backfill
from tidewheel.streams.bulk.backfill.computation import BackfillReport, HistoryFrame
from tidewheel.streams.bulk.backfill.driver import BackfillRefused
from tidewheel.streams.bulk.backfill.plan import BackfillPlan
from tidewheel.streams.bulk.batch.command import run_batch
from tidewheel.streams.bulk.batch.result import BatchResult
from tidewheel.streams.bulk.bootstrap.command import (
    BootstrapRefused,
    BootstrapReport,
    FrameSource,
    bootstrap,
)
from tidewheel.streams.bulk.driver import BulkProgress
from tidewheel.streams.bulk.frames import state_dataframe
from tidewheel.streams.bulk.loading import BulkStep
from tidewheel.streams.bulk.restore import RestoredStore, RestoreReport, restore
from tidewheel.streams.bulk.snapshots import snapshot
from tidewheel.streams.bulk.verify import VerifiedCopy, VerifyReport, verify

__all__ = [
    "BackfillPlan",
    "BackfillRefused",
    "BackfillReport",
    "BatchResult",
    "BootstrapRefused",
    "BootstrapReport",
    "BulkProgress",
    "BulkStep",
    "FrameSource",
    "HistoryFrame",
    "Manifest",
    "RestoreReport",
    "RestoredStore",
    "VerifiedCopy",
    "VerifyReport",
    "backfill",
    "bootstrap",
    "check_backfill",
    "restore",
    "run_batch",
    "snapshot",
    "state_dataframe",
    "verify",
]
