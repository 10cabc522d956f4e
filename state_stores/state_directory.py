"""Where the databases of a worker live, and the lock that keeps every other process out.

    <state_dir>/<application_id>/<slot>/.lock         held by flock while the process lives; names its holder
    <state_dir>/<application_id>/<slot>/member.json   the member's id, made once, so that a restart is the same member
    <state_dir>/<application_id>/<slot>/<task_id>/    one database

The lock is taken before anything else in the slot is touched. The kernel lets go of it when the process ends, however
it ends, so nothing is ever left locked. Lock files are never deleted: deleting one would let two processes hold it.
Names come from our own ids only, never from a broker, and are checked; links are not followed below `state_dir`.
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

from tidewheel.state_stores.errors import StateStoreError, StoreLockedError
from tidewheel.state_stores.names import check_application_id

#: Only the user the process runs as reads state.
_DIRECTORY_MODE: Final = 0o700
_FILE_MODE: Final = 0o600

_LOCK: Final = ".lock"
_MEMBER: Final = "member.json"

#: A task's directory is renamed to this before it is deleted, so that half of one is never opened.
_REMOVING: Final = ".removing-"
#: Where files lie that tasks are being restored from.
_RESTORING: Final = "restoring"

#: Where the global stores live, beside the tasks; as in Kafka Streams.
_GLOBAL: Final = "global"

_TASK_ID: Final = re.compile(r"(0|[1-9][0-9]{0,8})_(0|[1-9][0-9]{0,8})")
_SLOT: Final = re.compile(r"0|[1-9][0-9]{0,3}")
_MEMBER_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

#: More processes on one machine and one state_dir are a runaway restart loop.
_MOST_SLOTS: Final = 1000

_FULL: Final = {errno.ENOSPC, errno.EDQUOT}
_NO_FLOCK: Final = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds a slot, as its lock file says; unknown fields are empty."""

    slot: int
    pid: int | None
    host: str
    member_id: str

    def __str__(self) -> str:
        who = f"process {self.pid}" if self.pid is not None else "another process"
        return f"{who} on {self.host}" if self.host else who


class StateDirectory:
    """A slot of an application's state, held from `acquire` until `close`.

    Attributes:
        slot: Number of the slot.
        path: Its directory.
        member_id: Id of the member that lives here, the same after every restart.
        others: Who held the slots that were passed over to find a free one.
    """

    def __init__(
        self, path: Path, slot: int, lock: int, member_id: str, others: tuple[Holder, ...]
    ) -> None:
        self.path = path
        self.slot = slot
        self.member_id = member_id
        self.others = others
        self._lock: int | None = lock
        #: Since when each task's directory has not been needed, in the time of `clean_obsolete`.
        self._unneeded_since_ms: dict[str, int] = {}

    @classmethod
    def acquire(
        cls,
        state_dir: Path,
        application_id: str,
        *,
        slot: int | None = None,
        exclusive: bool = False,
        member_id: str | None = None,
    ) -> Self:
        """Take a slot: the wanted one, or the lowest free one.

        Args:
            state_dir: Root of all state, as configured.
            application_id: The application.
            slot: The slot to take; None for the lowest free one.
            exclusive: Refuse if the wanted slot (any slot, if none is wanted) is held, instead of taking the next.
            member_id: Id to keep in a slot that has none yet; None makes a random one.

        Raises:
            StoreLockedError: The wanted slot is held, or another process is here and `exclusive` is set.
            StateStoreError: The directory can't be used; says what to do.
        """
        check_application_id(application_id)
        with _explained(state_dir):
            root = state_dir.resolve()
            application = root / application_id
            root.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
            _make_directory(application)
            if slot is None and exclusive:
                _refuse_company(application)
            candidates = range(_MOST_SLOTS) if slot is None else (slot,)
            others: list[Holder] = []
            for candidate in candidates:
                path = _inside(application, str(candidate))
                _make_directory(path)
                lock = _try_lock(path / _LOCK)
                if lock is not None:
                    return cls._occupy(path, candidate, lock, member_id, tuple(others))
                others.append(_holder(path, candidate))
                if slot is not None:
                    raise _slot_is_held(application, others[-1])
                if exclusive:  # somebody came at this very moment
                    raise _is_shared(application, others[-1])
        raise StoreLockedError(
            f"all {_MOST_SLOTS} slots of {application} are held; look for processes that restart again and again"
        )

    @classmethod
    def _occupy(
        cls, path: Path, slot: int, lock: int, member_id: str | None, others: tuple[Holder, ...]
    ) -> Self:
        try:
            member_id = _keep_member_id(path / _MEMBER, member_id)
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
        """Return the directory of a task, made if it is missing."""
        path = self._task_path(task_id)
        with _explained(self.path):
            _make_directory(path)
        return path

    def global_directory(self) -> Path:
        """Return the directory of the global stores, made if it is missing."""
        return self.task_directory(_GLOBAL)

    def remove_global_directory(self) -> None:
        """Delete the directory of the global stores, whose database must be closed."""
        self.remove_task_directory(_GLOBAL)

    def tasks(self) -> list[str]:
        """Return the ids of the tasks that have a directory here, sorted by number."""
        with _explained(self.path):
            found = [
                entry.name
                for entry in os.scandir(self.path)
                if _TASK_ID.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
            ]
        return sorted(found, key=lambda name: [int(part) for part in name.split("_")])

    def restore_directory(self) -> Path:
        """Return the directory of files that tasks are restored from, made if it is missing; empty in each new life."""
        path = _inside(self.path, _RESTORING)
        with _explained(self.path):
            _make_directory(path)
        return path

    def remove_task_directory(self, task_id: str) -> None:
        """Delete a task's directory, whose database must be closed; nothing happens if there is none."""
        path = self._task_path(task_id)
        with _explained(self.path):
            doomed = path.with_name(f"{_REMOVING}{task_id}-{secrets.token_hex(4)}")
            try:
                path.rename(doomed)
            except FileNotFoundError:
                return
            self._unneeded_since_ms.pop(task_id, None)
            shutil.rmtree(doomed)

    def clean_obsolete(
        self, keep: Collection[str], *, older_than_ms: int, now_ms: int
    ) -> list[str]:
        """Delete the directories of tasks that have not been needed for a while; returns their ids.

        The while is counted in this process, from the first call that found a task unneeded: after a restart every
        task has its full time again, and a clock that was set deletes nothing.

        Args:
            keep: Tasks that are needed here.
            older_than_ms: How long a directory may stay unneeded.
            now_ms: The time; any clock that doesn't go back.
        """
        since = self._unneeded_since_ms
        removed: list[str] = []
        tasks = self.tasks()
        for gone in [task for task in since if task in keep or task not in tasks]:
            del since[gone]
        for task in tasks:
            if task not in keep and now_ms - since.setdefault(task, now_ms) >= older_than_ms:
                self.remove_task_directory(task)
                removed.append(task)
        return removed

    def close(self) -> None:
        """Let go of the slot; idempotent. All databases in it must be closed before."""
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
                f"slot {self.path} was given back; take it again with StateDirectory.acquire"
            )
        if task_id != _GLOBAL and not _TASK_ID.fullmatch(task_id):
            raise ValueError(
                f"{task_id!r} is not a task id; one looks like 0_1 (sub-topology, partition)"
            )
        return _inside(self.path, task_id)


def _inside(parent: Path, name: str) -> Path:
    """Return a path directly in `parent`, whatever links lie in the way."""
    path = parent / name
    if path.resolve() != parent.resolve() / name:
        raise StateStoreError(
            f"{path} leads out of {parent} by a link; remove the link, state is kept in real directories"
        )
    return path


def _make_directory(path: Path) -> None:
    """Make a directory only this user can read, or check that there is a real one."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=_DIRECTORY_MODE)
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise StateStoreError(
            f"{path} is not a directory; remove it or choose another state_dir (links are not followed here)"
        )


def _try_lock(path: Path) -> int | None:
    """Return the descriptor that holds the lock, or None if another process holds it."""
    # flock belongs to the open file, so two in one process exclude each other too; children that are started by
    # subprocess don't inherit it (O_CLOEXEC).
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


def _refuse_company(application: Path) -> None:
    """Raise if any slot of the application is held. A process that starts at this very moment may be missed."""
    for slot in sorted(
        int(entry.name) for entry in os.scandir(application) if _SLOT.fullmatch(entry.name)
    ):
        path = application / str(slot)
        lock = _try_lock(path / _LOCK)
        if lock is None:
            raise _is_shared(application, _holder(path, slot))
        os.close(lock)


def _slot_is_held(application: Path, holder: Holder) -> StoreLockedError:
    return StoreLockedError(
        f"slot {holder.slot} of {application} is held by {holder}; stop that process, give another slot, or use another "
        "state_dir"
    )


def _is_shared(application: Path, holder: Holder) -> StoreLockedError:
    return StoreLockedError(
        f"{application} is used by {holder} in slot {holder.slot}, and state_dir_exclusive is set; stop that process, use "
        "another state_dir, or leave state_dir_exclusive out to run beside it"
    )


def _holder(path: Path, slot: int) -> Holder:
    """Return what the lock file says, which may be nothing: its holder may be just writing it."""
    content = _read_json(path / _LOCK)
    pid = content.get("pid")
    return Holder(
        slot=slot,
        pid=pid if isinstance(pid, int) else None,
        host=str(content.get("host", ""))[:255],
        member_id=str(content.get("member_id", ""))[:255],
    )


def _read_json(path: Path) -> dict[str, Any]:
    """Return a small file's object; an absent, torn or foreign one counts as empty."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return {}
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor, opened without following links
        data = file.read(4096)
    try:
        content = json.loads(data)
    except ValueError:
        return {}
    return cast("dict[str, Any]", content) if isinstance(content, dict) else {}


def _keep_member_id(path: Path, wanted: str | None) -> str:
    """Return the member id kept in the slot; the wanted or a random one is kept if there is none yet."""
    kept = _read_json(path).get("member_id")
    if isinstance(kept, str) and _MEMBER_ID.fullmatch(kept):
        return kept
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
    """Turn what the operating system refuses into an error with a next step."""
    try:
        yield
    except OSError as error:
        where = Path(error.filename or path)
        if error.errno in _FULL:
            text = f"the disk of {where} is full; free space, or move state_dir"
        elif error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
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
                f"{where}: {error.strerror or error}; see whether state_dir is mounted and healthy"
            )
        raise StateStoreError(f"state directory {path}: {text}") from error


def _not_a_directory(path: Path) -> Path:
    """Return the highest part of a path that is there and no directory; the path itself if all are."""
    parts = [*reversed(path.parents), path]
    return next((part for part in parts if part.exists() and not part.is_dir()), path)
