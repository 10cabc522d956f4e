"""Bulk work with Spark: snapshots, restore, stores as data frames, comparison, and batch runs.

Needs `pip install 'tidewheel[spark]'`. Functions use the caller's session, or create a local one.
Commands: `tidewheel snapshot`, `restore`, `bootstrap`, `state`.
"""

from tidewheel.state_stores.bulk_restore.manifest import Manifest
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
from tidewheel.streams.bulk.restore import RestoredStore, RestoreReport, restore
from tidewheel.streams.bulk.snapshots import snapshot
from tidewheel.streams.bulk.verify import VerifiedCopy, VerifyReport, verify

__all__ = [
    "BatchResult",
    "BootstrapRefused",
    "BootstrapReport",
    "BulkProgress",
    "FrameSource",
    "Manifest",
    "RestoreReport",
    "RestoredStore",
    "VerifiedCopy",
    "VerifyReport",
    "bootstrap",
    "restore",
    "run_batch",
    "snapshot",
    "state_dataframe",
    "verify",
]
