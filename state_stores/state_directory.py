"""State directory of a worker, and its lock.

    <state_dir>/<application_id>/<slot>/.lock         flock of the process; contains its holder
    <state_dir>/<application_id>/<slot>/member.json   member id, reused after restarts
    <state_dir>/<application_id>/<slot>/<task_id>/    one database

The process locks the slot before it touches anything else in it. Lock files are never deleted:
otherwise two processes could hold the lock. Links below `state_dir` are rejected.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import socket
import stat
import uuid
from collections.abc import Collection, Generator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast

from tidewheel.state_stores.errors import DiskFullError, StateStoreError, StoreLockedError
from tidewheel.state_stores.names import check_application_id
from tidewheel.state_stores.private_files import make_private_directory, read_private

_DIRECTORY_MODE: Final = 0o700
_FILE_MODE: Final = 0o600

_LOCK: Final = ".lock"
_MEMBER: Final = "member.json"

#: Prefix of a directory in deletion: renamed first, so a partly deleted one is never opened.
_REMOVING: Final = ".removing-"
_RESTORING: Final = "restoring"

_GLOBAL: Final = "global"

_SHARD: Final = "(0|[1-9][0-9]?)of([1-9][0-9]?)"
_TASK_ID: Final = re.compile(f"(0|[1-9][0-9]{{0,8}})_(0|[1-9][0-9]{{0,8}})(?:/{_SHARD})?")
_SLOT: Final = re.compile(r"0|[1-9][0-9]{0,3}")
_MEMBER_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

#: With this many slots locked, processes probably restart in a loop, and `acquire` raises.
_MOST_SLOTS: Final = 1000

_FULL: Final = {errno.ENOSPC, errno.EDQUOT}
_NO_FLOCK: Final = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    slot: int
    pid: int | None
    host: str
    member_id: str

    def __str__(self) -> str:
        process = f"process {self.pid}" if self.pid is not None else "another process"
        return f"{process} on {self.host}" if self.host else process


class StateDirectory:
    """A slot (numbered directory) of an application's state, locked from `acquire` until `close`.

    `others` are the holders of lower slots, which `acquire` skipped.
    """

    def __init__(
        self, path: Path, slot: int, lock: int, member_id: str, others: tuple[Holder, ...]
    ) -> None:
        self.path = path
        self.slot = slot
        self.member_id = member_id
        self.others = others
        self._lock: int | None = lock
        self._unneeded_since_ms: dict[str, int] = {}

    @classmethod
    def acquire(
        cls,
        state_dir: Path,
        application_id: str,
        *,
        slot: int | None = None,
        exclusive: bool = False,
        next_free: bool = False,
        member_id: str | None = None,
    ) -> Self:
        """Lock `slot`, or the lowest free one if it is None.

        A slot without a stored member id gets `member_id`, or a random one.

        Args:
            exclusive: Reject holders of other slots; without effect if `slot` is given.
            next_free: If another process holds `slot`, lock the next free one instead.

        Raises:
            StoreLockedError: Another process holds `slot`; with `exclusive` and None, any slot.
            StateStoreError: The directory can't be used.
        """
        check_application_id(application_id)
        with _explained(state_dir):
            root = state_dir.resolve()
            application = root / application_id
            make_private_directory(root)
            _make_directory(application)
            if slot is None and exclusive:
                _reject_other_holders(application)
            is_fixed = slot is not None and not next_free
            candidates = range(slot or 0, (slot or 0) + (1 if is_fixed else _MOST_SLOTS))
            others: list[Holder] = []
            for candidate in candidates:
                path = _inside(application, str(candidate))
                _make_directory(path)
                lock = _try_lock(path / _LOCK)
                if lock is not None:
                    return cls._occupy(path, candidate, lock, member_id, tuple(others))
                others.append(_holder(path, candidate))
                if is_fixed:
                    raise _slot_locked(application, others[-1])
                # All slots were free at the check above: another process took this one since.
                if exclusive:
                    raise _is_shared(application, others[-1])
        raise StoreLockedError(
            f"all {_MOST_SLOTS} slots of {application} are held; find processes that restart repeatedly"
        )

    @classmethod
    def _occupy(
        cls, path: Path, slot: int, lock: int, member_id: str | None, others: tuple[Holder, ...]
    ) -> Self:
        try:
            member_id = _store_member_id(path / _MEMBER, member_id)
            text = json.dumps(
                {"pid": os.getpid(), "host": socket.gethostname(), "member_id": member_id}
            )
            os.ftruncate(lock, 0)
            os.pwrite(lock, text.encode(), 0)
            directory = cls(path, slot, lock, member_id, others)
            for leftover in path.glob(f"{_REMOVING}*"):
                shutil.rmtree(leftover)
            shutil.rmtree(_inside(path, _RESTORING), ignore_errors=True)
        except BaseException:
            os.close(lock)
            raise
        return directory

    def task_directory(self, task_id: str) -> Path:
        path = self._task_path(task_id)
        with _explained(self.path):
            _make_directory(path)
        return path

    def global_directory(self) -> Path:
        return self.task_directory(_GLOBAL)

    def remove_global_directory(self) -> None:
        self.remove_task_directory(_GLOBAL)

    def tasks(self) -> list[str]:
        with _explained(self.path):
            task_ids = [
                task_id
                for entry in os.scandir(self.path)
                if (task_id := _task_of(entry.name)) and entry.is_dir(follow_symlinks=False)
            ]
        return sorted(task_ids, key=lambda name: [int(part) for part in re.findall("[0-9]+", name)])

    def restore_directory(self) -> Path:
        path = _inside(self.path, _RESTORING)
        with _explained(self.path):
            _make_directory(path)
        return path

    def remove_task_directory(self, task_id: str) -> None:
        path = self._task_path(task_id)
        with _explained(self.path):
            doomed = path.with_name(f"{_REMOVING}{path.name}-{secrets.token_hex(4)}")
            try:
                path.rename(doomed)
            except FileNotFoundError:
                return
            self._unneeded_since_ms.pop(task_id, None)
            shutil.rmtree(doomed)

    def clean_obsolete(
        self, keep: Collection[str], *, older_than_ms: int, now_ms: int
    ) -> list[str]:
        """Delete directories of tasks outside `keep` for `older_than_ms`; return their ids.

        A restart counts from zero. `now_ms` is monotonic, so clock changes delete nothing.
        """
        since = self._unneeded_since_ms
        removed: list[str] = []
        tasks = self.tasks()
        for obsolete in [task for task in since if task in keep or task not in tasks]:
            del since[obsolete]
        for task in tasks:
            if task not in keep and now_ms - since.setdefault(task, now_ms) >= older_than_ms:
                self.remove_task_directory(task)
                removed.append(task)
        return removed

    def close(self) -> None:
        """Release the slot; idempotent. All its databases must be closed first."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _task_path(self, task_id: str) -> Path:
        if self._lock is None:
            raise StateStoreError(
                f"slot {self.path} was released; lock it again with StateDirectory.acquire"
            )
        if task_id != _GLOBAL and not _TASK_ID.fullmatch(task_id):
            raise ValueError(
                f"{task_id!r} is not a task id; an example is 0_1 (sub-topology, partition)"
            )
        return _inside(self.path, task_id.replace("/", "-"))


def _task_of(name: str) -> str | None:
    """Return the task of a directory's name: `0_1`, or `0_1-2of4` for a shard; None for others."""
    task_id = name.replace("-", "/", 1)
    return task_id if "/" not in name and _TASK_ID.fullmatch(task_id) else None


def _inside(parent: Path, name: str) -> Path:
    path = parent / name
    if path.resolve() != parent.resolve() / name:
        raise StateStoreError(
            f"{path} leads out of {parent} by a link; remove the link, state is kept in real directories"
        )
    return path


def _make_directory(path: Path) -> None:
    """Create a private directory, or check that the existing path is no link or file."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=_DIRECTORY_MODE)
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise StateStoreError(
            f"{path} is not a directory; remove it or choose another state_dir (links are not followed here)"
        )


def _try_lock(path: Path) -> int | None:
    # flock belongs to the open file: two locks in one process exclude each other. The package
    # filelock truncates the file before it locks, which would erase the holder's entry.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _FILE_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        os.close(descriptor)
        if error.errno in _NO_FLOCK:
            raise StateStoreError(
                f"{path} can't be locked ({error.strerror}): the file system has no flock, as NFS without a lock "
                "service; put state_dir on a local disk"
            ) from error
        raise
    return descriptor


def _reject_other_holders(application: Path) -> None:
    for slot in sorted(
        int(entry.name) for entry in os.scandir(application) if _SLOT.fullmatch(entry.name)
    ):
        path = application / str(slot)
        lock = _try_lock(path / _LOCK)
        if lock is None:
            raise _is_shared(application, _holder(path, slot))
        os.close(lock)


def _slot_locked(application: Path, holder: Holder) -> StoreLockedError:
    return StoreLockedError(
        f"slot {holder.slot} of {application} is held by {holder}; stop that process, or use another state_dir if it works for "
        "another cluster. For more workers start one command with --workers N, or give each program its RunOptions(slot=...)"
    )


def _is_shared(application: Path, holder: Holder) -> StoreLockedError:
    return StoreLockedError(
        f"{application} is used by {holder} in slot {holder.slot}, and state_dir_exclusive is set; stop that process, use "
        "another state_dir, or remove state_dir_exclusive to run next to it"
    )


def _holder(path: Path, slot: int) -> Holder:
    content = _read_json(path / _LOCK)
    pid = content.get("pid")
    return Holder(
        slot=slot,
        pid=pid if isinstance(pid, int) else None,
        host=str(content.get("host", ""))[:255],
        member_id=str(content.get("member_id", ""))[:255],
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_private(path, 4096) or b"{}")
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", content) if isinstance(content, dict) else {}


def _store_member_id(path: Path, wanted: str | None) -> str:
    stored_id = _read_json(path).get("member_id")
    if isinstance(stored_id, str) and _MEMBER_ID.fullmatch(stored_id):
        return stored_id
    member_id = wanted or str(uuid.UUID(bytes=secrets.token_bytes(16), version=4))
    if not _MEMBER_ID.fullmatch(member_id):
        raise ValueError(
            f"member id {member_id!r} must be 1-100 letters, digits, dots, dashes or underscores"
        )
    aside = path.with_suffix(".tmp")
    aside.unlink(missing_ok=True)
    descriptor = os.open(
        aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, _FILE_MODE
    )
    with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, opened without following links
        file.write(json.dumps({"version": 1, "member_id": member_id}).encode())
        file.flush()
        os.fsync(descriptor)
    aside.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return member_id


@contextlib.contextmanager
def _explained(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        where = Path(error.filename or path)
        if error.errno in _FULL:
            raise DiskFullError(
                f"state directory {path}: the disk of {where} is full; free space, or move state_dir"
            ) from error
        if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            text = (
                f"{where} is not writable for user {os.getuid()} ({error.strerror}); change its owner or mode, "
                "or choose another state_dir"
            )
        elif error.errno in {errno.ELOOP, errno.ENOTDIR, errno.EEXIST}:
            culprit = _not_a_directory(where)
            text = (
                f"{culprit} is not a real directory or file; remove it, or choose another state_dir"
            )
        else:
            text = (
                f"{where}: {error.strerror or error}; check that state_dir is mounted and healthy"
            )
        raise StateStoreError(f"state directory {path}: {text}") from error


def _not_a_directory(path: Path) -> Path:
    parts = [*reversed(path.parents), path]
    return next((part for part in parts if part.exists() and not part.is_dir()), path)
