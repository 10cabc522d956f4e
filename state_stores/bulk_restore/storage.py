"""File storage: a local directory, or an fsspec file system. Names are relative, with slashes."""

import importlib
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self, cast
from urllib.parse import unquote, urlsplit

from tidewheel.state_stores.bulk_restore.manifest import SnapshotRefused
from tidewheel.state_stores.bulk_restore.urls import redacted_text, redacted_url
from tidewheel.state_stores.private_files import create_private, make_private_directory

#: Block size of remote reads. fsspec's defaults, up to 50 MiB, seem to hang on a slow line.
BLOCK_BYTES: Final = 4 * 1024 * 1024


class Opened(Protocol):
    def read(self, size: int, /) -> bytes: ...

    def seek(self, offset: int, /) -> object: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...


class Storage(Protocol):
    """File storage. All methods raise OSError, including FileNotFoundError."""

    @property
    def shown(self) -> str: ...

    def names(self, folder: str) -> list[str]: ...

    def read(self, name: str, most: int) -> bytes: ...

    def open(self, name: str) -> Opened: ...

    def write(self, name: str, data: bytes) -> None: ...

    def put(self, local: Path, name: str) -> None: ...

    def delete(self, name: str) -> None: ...


def open_storage(url: str) -> Storage:
    """Open a URL or path; raise `SnapshotRefused` if fsspec can't, for example without a package."""
    scheme, separator, _ = url.partition("://")
    if not separator:
        return Directory(Path(url))
    if scheme == "file":
        return Directory(Path(unquote(urlsplit(url).path)))
    try:
        fsspec: Any = importlib.import_module("fsspec")
        filesystem, root = fsspec.core.url_to_fs(url)
    except Exception as error:  # noqa: BLE001 - each file system has errors of its own
        reason = f"{type(error).__name__}: {redacted_text(str(error))}"
    else:
        return RemoteStorage(filesystem, root, redacted_url(url))
    raise SnapshotRefused(  # without its cause, whose text may contain secrets
        f"{redacted_url(url)} can't be opened ({reason}); install tidewheel[spark] and fsspec's package for {scheme}:// "
        "(s3fs for s3, gcsfs for gs, pyarrow for hdfs), check address and credentials, or give a directory"
    )


class Directory:
    """Local or mounted directory; only its user can read new files."""

    def __init__(self, root: Path) -> None:
        self._root = root.expanduser()
        self.shown = str(root)

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(entry.name for entry in (self._root / folder).iterdir())
        except FileNotFoundError:
            return []

    def read(self, name: str, most: int) -> bytes:
        with self.open(name) as file:
            return file.read(most + 1)

    def open(self, name: str) -> Opened:
        path = self._root / name
        if not stat.S_ISREG(path.lstat().st_mode):
            raise SnapshotRefused("it is a link or no regular file")
        return os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb")

    def write(self, name: str, data: bytes) -> None:
        aside = self._aside(name)
        with create_private(aside) as file:
            file.write(data)
        self._publish(aside, name)

    def put(self, local: Path, name: str) -> None:
        """Copy, not link, a local file, because ingestion changes files in place."""
        aside = self._aside(name)
        with local.open("rb") as source, create_private(aside) as file:
            shutil.copyfileobj(source, file)
        self._publish(aside, name)

    def delete(self, name: str) -> None:
        (self._root / name).unlink(missing_ok=True)

    def _aside(self, name: str) -> Path:
        path = self._root / name
        make_private_directory(path.parent)
        return path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")

    def _publish(self, aside: Path, name: str) -> None:
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


class RemoteStorage:
    def __init__(self, filesystem: Any, root: str, shown: str) -> None:
        self._filesystem = filesystem
        self._root = root.rstrip("/")
        self.shown = shown
        #: True for async fsspec systems, which are object stores: making a folder there would
        #: create the bucket, even a misspelt one.
        self._has_objects = bool(getattr(filesystem, "async_impl", False))

    def names(self, folder: str) -> list[str]:
        with self._translated(f"list {folder}"):
            self._filesystem.invalidate_cache()  # other processes write here too
            try:
                paths = cast("list[str]", self._filesystem.ls(self._path(folder), detail=False))
            except FileNotFoundError:
                return []
        names = {path.rstrip("/").rpartition("/")[2] for path in paths}
        return sorted(names - {"", folder.rpartition("/")[2]})

    def read(self, name: str, most: int) -> bytes:
        with self._translated(f"read {name}"), self.open(name) as file:
            return file.read(most + 1)

    def open(self, name: str) -> Opened:
        with self._translated(f"open {name}"):
            file = self._filesystem.open(self._path(name), "rb", block_size=BLOCK_BYTES)
        return _RemoteFile(file, lambda: self._translated(f"read {name}"))

    def write(self, name: str, data: bytes) -> None:
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
        path = self._path(name)
        with self._translated(f"write {name}"):
            if not self._has_objects:
                self._make_folder_of(path)
            self._filesystem.put_file(str(local), path)

    def delete(self, name: str) -> None:
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
        """Raise OSError or FileNotFoundError, without the cause: its text may contain secrets."""
        try:
            yield
        except SnapshotRefused:
            raise
        except Exception as error:  # noqa: BLE001 - each file system has errors of its own
            reason = f"{type(error).__name__}: {redacted_text(str(error))}"
            kind = FileNotFoundError if isinstance(error, FileNotFoundError) else OSError
        else:
            return
        raise kind(
            f"could not {doing} in {self.shown}: {reason}; check the address and the credentials"
        ) from None


class _RemoteFile:
    def __init__(self, file: Any, translated: Callable[[], AbstractContextManager[None]]) -> None:
        self._file = file
        self._translated = translated

    def read(self, size: int, /) -> bytes:
        with self._translated():
            return cast("bytes", self._file.read(size))

    def seek(self, offset: int, /) -> None:
        with self._translated():
            self._file.seek(offset)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
