"""Host of a custom store in its task: passes changelog records and commits to the user's object."""

import secrets
import shutil
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tidewheel.state_stores.buffers.commit_buffer import NO_EXTRAS, Drained, RestoreExtras
from tidewheel.state_stores.buffers.rows import SortedRows
from tidewheel.state_stores.errors import StateStoreError, StreamsError
from tidewheel.state_stores.layout import versions
from tidewheel.state_stores.layout.envelope import unwrap_value
from tidewheel.state_stores.layout.position import Position
from tidewheel.state_stores.private_files import (
    create_private,
    make_private_directory,
    read_private,
)
from tidewheel.state_stores.spec import StoreSpec
from tidewheel.state_stores.stores.custom_store import (
    ChangelogRecord,
    StateStore,
    StateStoreContext,
)
from tidewheel.state_stores.user_code import located

#: Interval (ms) between writes of the file `position`: the changelog's topic id and the commit's
#: time, which the offset saved by the user's store object lacks.
_POSITION_INTERVAL_MS: Final = 60_000
#: More than any position has: a longer file is none.
_POSITION_BYTES_MAX: Final = 256


_ENTRY_OVERHEAD_BYTES: Final = 200


class ChangeBuffer:
    def __init__(self) -> None:
        self.dirty: dict[bytes, tuple[bytes | None, int]] = {}
        self.uncommitted_bytes = 0

    def put(self, key: bytes, value: bytes | None, timestamp: int) -> None:
        before = self.dirty.pop(key, None)
        if before is not None:
            self.uncommitted_bytes -= _size(key, before[0])
        self.dirty[key] = (value, timestamp)
        self.uncommitted_bytes += _size(key, value)

    def has_changes(self) -> bool:
        return bool(self.dirty)

    def drain(self) -> Drained:
        return Drained(
            keys=list(self.dirty),
            values=[value for value, _ in self.dirty.values()],
            timestamps=[timestamp for _, timestamp in self.dirty.values()],
            disk_rows=SortedRows([], []),
        )

    def discard(self) -> None:
        self.dirty.clear()
        self.uncommitted_bytes = 0

    applied = discard

    def restored(
        self,
        _rows: Sequence[tuple[bytes, bytes | None]],
        *,
        slowest_ms: int | None = None,  # noqa: ARG002 - rows do not expire
    ) -> RestoreExtras:
        return NO_EXTRAS


def _size(key: bytes, value: bytes | None) -> int:
    return len(key) + len(value or b"") + _ENTRY_OVERHEAD_BYTES


class CustomStore:
    """A custom store, as its task sees it.

    Attributes:
        users: The user's object; a new one replaces it after a rollback or a clear.
    """

    cache: Final = None
    expired_puts: Final = 0

    def __init__(self, users: StateStore, now: Callable[[], int]) -> None:
        self.users = users
        self.buffer = ChangeBuffer()
        self.now = now

    def open_cache(self) -> None: ...

    def divide(self) -> None: ...

    unite = divide

    def times(self) -> tuple[int, ...]:
        return ()

    def restore_times(self, times: tuple[int, ...]) -> None:
        assert not times, "it has given none"


def user_object(store: Any) -> Any:
    return store.users if isinstance(store, CustomStore) else store


class CustomStoreHost:
    """Host of a custom store, owned by one thread at a time.

    Attributes:
        position: Changelog position of its data; None if unknown.
        identity: Random id of the user's object: a new object, such as after a clear, has another.
    """

    def __init__(
        self,
        spec: StoreSpec,
        *,
        task_id: str,
        directory: Path,
        changelog: tuple[str, int] | None,
        now: Callable[[], int],
    ) -> None:
        self._spec = spec
        self._task_id = task_id
        self._changelog = changelog
        self._root = directory / f"custom-{spec.name}"
        self._position_path = self._root / "position"
        self._written_position: Position | None = None
        self._closed = False
        #: True during the task's own calls of the user's object, such as `restore` and `commit`.
        #: Logging a change there is an error: the changelog already has it.
        self._in_call = False
        self.position: Position | None = None
        self.identity = ""
        self.store = CustomStore(self._create(), now)
        self._open()

    def _create(self) -> StateStore:
        assert self._spec.make is not None, "the spec of a custom store has a factory"
        with self._translated("being made"):
            users = self._spec.make()
        if not isinstance(users, StateStore):
            raise StateStoreError(
                f"store {self._spec.name}: its factory returned an object of type {type(users).__name__}; return a "
                "StateStore"
            )
        return users

    def _open(self) -> None:
        users = self.store.users
        self.identity = secrets.token_hex(16)
        self._written_position = Position.decode(self._read_position_file())
        if not users.manages_offsets or (
            self._changelog is not None and self._written_position is None
        ):
            self._wipe()
        self._closed = False
        with self._translated("init"):
            users.init(_StoreContext(self, self._spec.name, self._task_id))
        self.position = self._existing_position()

    def _existing_position(self) -> Position | None:
        if self._written_position is None or self._changelog is None:
            return None
        with self._translated("committed_offset"):
            offset = self.store.users.committed_offset(*self._changelog)
        if offset is None or offset < self._written_position.offset:
            return None
        return Position(
            offset=offset,
            topic_id=self._written_position.topic_id,
            written_at_ms=self._written_position.written_at_ms,
        )

    def begin(self, now: Callable[[], int]) -> CustomStore:
        self.store.now = now
        if self.store.buffer.has_changes():
            self._replace_object()
        return self.store

    def forget(self) -> None:
        self.position = None
        self._replace_object(empty=True)

    def _replace_object(self, *, empty: bool = False) -> None:
        self.store.buffer.discard()
        self.close()
        if empty:
            self._wipe()
        self.store.users = self._create()
        self._open()

    def _wipe(self) -> None:
        self._written_position = None
        with self._translated("emptying its directory"):
            if self._root.is_symlink():
                self._root.unlink()
            elif self._root.exists():
                # First: this file must not outlive the data whose offset it describes.
                with suppress(IsADirectoryError, PermissionError):  # on Linux, on macOS
                    self._position_path.unlink(missing_ok=True)
                shutil.rmtree(self._root)

    def place(self) -> Path:
        path = self._root / "data"
        if self._root.is_symlink() or path.is_symlink():
            raise StateStoreError(f"{path} leads through a link; remove it, then restart")
        make_private_directory(path)
        return path

    def log(self, key: object, value: object, timestamp: int | None) -> None:
        name = self._spec.name
        if self._in_call or self._closed:
            raise StateStoreError(
                f"store {name}: log_change was called outside of processing; do not log in init, restore, commit and "
                "close: the data there is already in the changelog"
            )
        if not isinstance(key, bytes) or not isinstance(value, bytes | None):
            raise TypeError(
                f"store {name}: log_change takes a key of bytes and a value of bytes or None, not {type(key).__name__} and "
                f"{type(value).__name__}; serialise them first"
            )
        if timestamp is not None and (type(timestamp) is not int or timestamp < 0):
            raise TypeError(
                f"store {name}: log_change takes a timestamp of whole ms since the epoch, not {timestamp!r}; leave it out for "
                "that of the record being processed"
            )
        self.store.buffer.put(key, value, self.store.now() if timestamp is None else timestamp)

    def restore(self, rows: Sequence[tuple[bytes, bytes | None]]) -> None:
        records: list[ChangelogRecord] = []
        for key, row in rows:
            assert row is not None, "a delete is a row, too"
            value, timestamp = unwrap_value(row)
            records.append(ChangelogRecord(key, versions.value_of(value), timestamp))
        if records:
            with self._translated("restore"):
                self.store.users.restore(records)

    def commit(self, position: Position | None) -> None:
        offsets: dict[tuple[str, int], int] = {}
        if position is not None and self._changelog is not None:
            offsets[self._changelog] = position.offset
        with self._translated("commit"):
            self.store.users.commit(offsets)
        if position is not None:
            self.position = position
            self._write_position_file(position)

    def _write_position_file(self, position: Position) -> None:
        """Write the file `position`: each minute, or if it has another topic or a higher offset.

        A start that reads an offset above the object's `committed_offset` discards the data.
        """
        written = self._written_position
        if not self.store.users.manages_offsets or (
            written is not None
            and written.topic_id == position.topic_id
            and position.offset >= written.offset
            and position.written_at_ms - written.written_at_ms < _POSITION_INTERVAL_MS
        ):
            return
        with self._translated("noting its position"):
            make_private_directory(self._root)
            fresh = self._position_path.with_suffix(".new")
            fresh.unlink(missing_ok=True)
            with create_private(fresh) as file:
                file.write(position.encode())
            fresh.replace(self._position_path)
        self._written_position = position

    def _read_position_file(self) -> bytes | None:
        with self._translated("reading its position"):
            if self._root.is_symlink():
                return None
            return read_private(self._position_path, _POSITION_BYTES_MAX)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            with self._translated("close"):
                self.store.users.close()

    @contextmanager
    def _translated(self, action: str) -> Generator[None]:
        self._in_call = True
        try:
            yield
        except StreamsError:
            raise
        except Exception as error:
            raise StateStoreError(
                f"store {self._spec.name} of task {self._task_id}: {action} failed: {located(error)}; fix its "
                "class, then restart: committed changes are in its changelog"
            ) from error
        finally:
            self._in_call = False


@dataclass(frozen=True, slots=True)
class _StoreContext(StateStoreContext):
    _slot: CustomStoreHost
    _name: str
    _task_id: str

    @property
    def store_name(self) -> str:
        return self._name

    @property
    def task_id(self) -> str:
        return self._task_id

    @property
    def state_dir(self) -> Path:
        return self._slot.place()

    def log_change(self, key: bytes, value: bytes | None, timestamp: int | None = None) -> None:
        self._slot.log(key, value, timestamp)
