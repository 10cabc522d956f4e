"""Translation of RocksDB errors: rocksdict raises bare `Exception` with RocksDB's text. Pure.

The texts are those of RocksDB's `Status::ToString` (rocksdict 0.3.29).
"""

from pathlib import Path
from typing import Final

from tidewheel.state_stores.errors import (
    DiskFullError,
    StateStoreError,
    StoreCorruptedError,
    StoreLockedError,
)

#: Error of a write with `no_slowdown`, when flushes can't keep up.
_STALL: Final = "Write stall"
_CORRUPT: Final = ("Corruption:", "While opening a file for sequentially reading")
_LOCKED: Final = ("While lock file", "lock hold by current process")
_FULL: Final = ("No space left on device", "Disk quota exceeded")
_UNWRITABLE: Final = ("Permission denied", "Read-only file system")
_FILES: Final = "Too many open files"


def is_stall(error: BaseException) -> bool:
    return _STALL in str(error)


def failure(error: BaseException, path: Path, doing: str) -> StateStoreError:
    text = str(error).strip()
    message = f"could not {doing} in {path}: {text}"
    if any(mark in text for mark in _LOCKED):
        return StoreLockedError(
            f"{message}; the database is open elsewhere: stop the other process, or close the task's readers"
        )
    # Before corruption: on a full disk one message can contain both texts.
    if any(mark in text for mark in _FULL):
        return DiskFullError(
            f"{message}; free disk space or move state_dir, the task is then restored from its changelog"
        )
    if any(mark in text for mark in _UNWRITABLE):
        return StateStoreError(f"{message}; make state_dir writable for this user")
    if _FILES in text:
        return StateStoreError(f"{message}; raise the limit of open files (`ulimit -n 65536`)")
    if any(mark in text for mark in _CORRUPT):
        return StoreCorruptedError(
            f"{message}; the files are damaged: delete this directory, the task is then restored from its changelog"
        )
    return StateStoreError(f"{message}; see the file LOG in this directory")
