"""Files at a place: a directory of this machine, or whatever fsspec opens. Names are relative, with slashes.

A file appears under its name with all its content or not at all, as far as the place can do that; whoever reads checks
it anyway.
"""

import importlib
import os
import secrets
import shutil
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self, cast
from urllib.parse import unquote, urlsplit

from tidewheel.state_stores.bulk_restore.manifest import SnapshotRefused
from tidewheel.state_stores.bulk_restore.urls import shown_url
from tidewheel.state_stores.private_files import create_private, make_private_directory

#: So much of a remote file comes at once, and as much is read ahead. Packages have blocks of up to 50 MiB of their own, and
#: whoever reads sees nothing until a block is there: over a slow line that looks like one that is dead.
BLOCK_BYTES: Final = 4 * 1024 * 1024


class Opened(Protocol):
    """A file that is read from its start; a context manager."""

    def read(self, size: int, /) -> bytes:
        """Return so many bytes at most; none at the end."""
        ...

    def __enter__(self) -> Self:
        """Return it."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Close it."""
        ...


class Place(Protocol):
    """Where files are. All raise OSError, FileNotFoundError among them."""

    @property
    def shown(self) -> str:
        """Where it is, for people: without user, password and parameters."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; none if there is no such folder."""
        ...

    def read(self, name: str, most: int) -> bytes:
        """Return a file's first `most` + 1 bytes."""
        ...

    def open(self, name: str) -> Opened:
        """Return a file to read."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Make a file."""
        ...

    def put(self, local: Path, name: str) -> None:
        """Make a file of one of this machine."""
        ...

    def delete(self, name: str) -> None:
        """Delete a file; nothing happens if there is none."""
        ...


def open_place(url: str) -> Place:
    """Return the place of a URL or path.

    Raises:
        SnapshotRefused: What opens such URLs is not installed.
    """
    scheme, separator, _ = url.partition("://")
    if not separator:
        return Directory(Path(url))
    if scheme == "file":
        return Directory(Path(unquote(urlsplit(url).path)))
    try:
        fsspec: Any = importlib.import_module("fsspec")
        filesystem, root = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise SnapshotRefused(
            f"{shown_url(url)} can't be opened ({error}); install tidewheel[spark] and fsspec's package for {scheme}:// "
            "(s3fs for s3, gcsfs for gs, pyarrow for hdfs), or give a directory"
        ) from error
    return RemotePlace(filesystem, root, shown_url(url))


class Directory:
    """A directory of this machine, or one that is mounted. What is made in it only its user can read: it is state."""

    def __init__(self, root: Path) -> None:
        self._root = root.expanduser()
        self.shown = str(root)

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; none if there is no such folder."""
        try:
            return sorted(entry.name for entry in (self._root / folder).iterdir())
        except FileNotFoundError:
            return []

    def read(self, name: str, most: int) -> bytes:
        """Return a file's first `most` + 1 bytes."""
        with self.open(name) as file:
            return file.read(most + 1)

    def open(self, name: str) -> Opened:
        """Return a file to read."""
        return (self._root / name).open("rb")

    def write(self, name: str, data: bytes) -> None:
        """Make a file."""
        aside = self._aside(name)
        with create_private(aside) as file:
            file.write(data)
        self._settle(aside, name)

    def put(self, local: Path, name: str) -> None:
        """Make a file of one of this machine: a copy, because an ingested file is changed in place."""
        aside = self._aside(name)
        with local.open("rb") as source, create_private(aside) as file:
            shutil.copyfileobj(source, file)
        self._settle(aside, name)

    def delete(self, name: str) -> None:
        """Delete a file; nothing happens if there is none."""
        (self._root / name).unlink(missing_ok=True)

    def _aside(self, name: str) -> Path:
        path = self._root / name
        make_private_directory(path.parent)
        return path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")

    def _settle(self, aside: Path, name: str) -> None:
        """Let a file appear under its name, durably."""
        path = self._root / name
        _sync(aside)
        aside.replace(path)
        _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class RemotePlace:
    """What fsspec opens. `filesystem` is its object, which has no types."""

    def __init__(self, filesystem: Any, root: str, shown: str) -> None:
        self._filesystem = filesystem
        self._root = root.rstrip("/")
        self.shown = shown
        #: Those that fsspec drives asynchronously are object stores (S3, Google, Azure): an object appears whole, and there are
        #: no folders. Making one would make the bucket, if its name was misspelt.
        self._has_objects = bool(getattr(filesystem, "async_impl", False))

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; none if there is no such folder."""
        with self._translated(f"list {folder}"):
            self._filesystem.invalidate_cache()  # others write here too
            try:
                found = cast("list[str]", self._filesystem.ls(self._path(folder), detail=False))
            except FileNotFoundError:
                return []
        names = {path.rstrip("/").rpartition("/")[2] for path in found}
        return sorted(names - {"", folder.rpartition("/")[2]})

    def read(self, name: str, most: int) -> bytes:
        """Return a file's first `most` + 1 bytes."""
        with self._translated(f"read {name}"), self.open(name) as file:
            return file.read(most + 1)

    def open(self, name: str) -> Opened:
        """Return a file to read."""
        with self._translated(f"open {name}"):
            file = self._filesystem.open(self._path(name), "rb", block_size=BLOCK_BYTES)
        return _RemoteFile(file, lambda: self._translated(f"read {name}"))

    def write(self, name: str, data: bytes) -> None:
        """Make a file."""
        path = self._path(name)
        aside = f"{path}.{secrets.token_hex(4)}.part"
        with self._translated(f"write {name}"):
            if self._has_objects:
                self._filesystem.pipe_file(path, data)
                return
            self._make_folder_of(path)
            self._filesystem.pipe_file(aside, data)
            self._filesystem.mv(aside, path)

    def put(self, local: Path, name: str) -> None:
        """Make a file of one of this machine; nobody reads it before a manifest names it."""
        path = self._path(name)
        with self._translated(f"write {name}"):
            if not self._has_objects:
                self._make_folder_of(path)
            self._filesystem.put_file(str(local), path)

    def delete(self, name: str) -> None:
        """Delete a file; nothing happens if there is none."""
        with self._translated(f"delete {name}"):
            try:
                self._filesystem.rm_file(self._path(name))
            except FileNotFoundError:
                return

    def _make_folder_of(self, path: str) -> None:
        self._filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextmanager
    def _translated(self, doing: str) -> Generator[None]:
        """Raise what fsspec's packages raise of their own (missing credentials, say) as OSError."""
        try:
            yield
        except OSError:
            raise
        except Exception as error:  # each package has classes of its own, and none is imported here
            raise OSError(
                f"could not {doing} in {self.shown}: {type(error).__name__}: {error}; check the address and the "
                "credentials"
            ) from error


class _RemoteFile:
    """A file that fsspec has opened; what its package raises later, while it is read, is translated as well."""

    def __init__(self, file: Any, translated: Callable[[], AbstractContextManager[None]]) -> None:
        self._file = file
        self._translated = translated

    def read(self, size: int, /) -> bytes:
        """Return so many bytes at most; none at the end."""
        with self._translated():
            return cast("bytes", self._file.read(size))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
