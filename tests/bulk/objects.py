"""Object store on the local disk for fsspec: `objects:///folder/of/it/bucket/path`.

Folders, renames, appends and copies are errors. New and deleted objects change the listing only
after `settle`. Importing this module registers the scheme, also on executors.
"""

import secrets
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final, NoReturn
from urllib.parse import quote, unquote

import fsspec  # type: ignore[import-untyped] # it has no types

from tidewheel.streams.bulk.driver import BulkDriver
from tidewheel.streams.bulk.executors import Counted, ExecutorWork

_BUCKET: Final = "bucket"
_LISTED: Final = "listed"


def bucket_url(folder: Path) -> str:
    (folder / _BUCKET).mkdir()
    settle(folder)
    return f"objects://{folder}/{_BUCKET}"


def objects(folder: Path) -> dict[str, Path]:
    return {unquote(file.name): file for file in sorted((folder / _BUCKET).iterdir())}


def settle(folder: Path) -> None:
    (folder / _LISTED).write_text("\n".join(objects(folder)), encoding="utf-8")


class ObjectStore(fsspec.AbstractFileSystem):  # type: ignore[misc] # it has no types
    protocol = "objects"
    cachable = False
    #: Like fsspec's object stores.
    async_impl: ClassVar[bool] = True

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[str]:
        assert not detail
        bucket, prefix = _split(path)
        listed = (bucket.parent / _LISTED).read_text(encoding="utf-8").splitlines()
        below = f"{prefix}/"
        names = {name[len(below) :].partition("/")[0] for name in listed if name.startswith(below)}
        if not names:
            raise FileNotFoundError(path)
        return [f"{path}/{name}" for name in sorted(names)]

    def open(self, path: str, mode: str = "rb", **_: Any) -> BinaryIO:
        assert mode == "rb"
        return _file(path).open("rb")

    def pipe_file(self, path: str, value: bytes, **_: Any) -> None:
        self._put(path, lambda aside: aside.write_bytes(value))

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        self._put(rpath, lambda aside: shutil.copyfile(lpath, aside))

    def _put(self, path: str, write: Callable[[Path], object]) -> None:
        bucket, _ = _split(path)
        aside = bucket.with_name(secrets.token_hex(8))
        write(aside)
        aside.replace(_file(path))

    def rm_file(self, path: str) -> None:
        """As with S3, a missing object is no error."""
        _file(path).unlink(missing_ok=True)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError("an object store can't do this")

    mkdir = makedirs = mv = move = rename = copy = cp_file = touch = _refuse


def _split(path: str) -> tuple[Path, str]:
    folder, _, name = path.removeprefix("objects://").partition(f"/{_BUCKET}/")
    return Path(folder) / _BUCKET, name


def _file(path: str) -> Path:
    bucket, name = _split(path)
    return bucket / quote(name, safe="")


fsspec.register_implementation(ObjectStore.protocol, ObjectStore, clobber=True)


class ObjectsDriver(BulkDriver):
    def run(self, function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        return super().run(partial(_knowing, function), *args, **options)


def _knowing(function: Callable[..., Any], work: ExecutorWork, item: Any, count: Counted) -> Any:
    return function(work, item, count)
