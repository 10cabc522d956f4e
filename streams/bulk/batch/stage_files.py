"""Stage files: the results of one task, durable before the next stage reads them.

A file has frames of bytes and, at its end, an index of their places by part. Names are unique for
each attempt of a task: only files that a task's result names count.
"""

import secrets
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

import msgspec

from tidewheel.state_stores.bulk_restore.storage import Storage
from tidewheel.streams.errors import StreamsError

#: Kinds of parts: blobs for a partition of a topic, rows of a store, and records of its changelog.
TOPIC: Final = "topic"
STORE: Final = "store"
CHANGELOG: Final = "changelog"


class Part(NamedTuple):
    kind: str
    name: str
    partition: int


class Extent(NamedTuple):
    """Place of a frame in its file; `order` is the order time of a blob's first record."""

    offset: int
    length: int
    checksum: int
    order: int


class StageFile(msgspec.Struct, frozen=True, kw_only=True):
    """Name and size of a file; its index begins at `index_at`."""

    name: str
    index_at: int
    size: int


_INDEX: Final = msgspec.msgpack.Decoder(list[tuple[Part, list[Extent]]])


class StageWriter:
    """Writes a file on this machine's disk; `publish` copies it to the storage."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb")
        self._index: dict[Part, list[Extent]] = {}
        self._offset = 0

    def add(self, part: Part, frame: bytes, order: int = 0) -> None:
        extent = Extent(self._offset, len(frame), zlib.crc32(frame), order)
        self._index.setdefault(part, []).append(extent)
        self._offset += self._file.write(frame)

    def publish(self, storage: Storage) -> StageFile:
        index = msgspec.msgpack.encode(list(self._index.items()))
        self._file.write(index)
        self._file.close()
        name = secrets.token_hex(16)
        try:
            storage.put(self._path, name)
        except OSError as error:
            raise StreamsError(
                f"an executor can't write to {storage.shown}: {error}; check that the driver and all executors may write "
                "there (work=)"
            ) from error
        return StageFile(name=name, index_at=self._offset, size=self._offset + len(index))

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StageReader:
    """Reads a file; a context manager."""

    def __init__(self, storage: Storage, stage_file: StageFile) -> None:
        self._shown = storage.shown
        try:
            self._file = storage.open(stage_file.name)
        except OSError as error:
            raise StreamsError(
                f"{self._shown}: a file of an earlier step can't be read: {error}; the driver and all executors must see the same "
                "files there (work=), and they are deleted when the result is closed"
            ) from error
        self._file.seek(stage_file.index_at)
        index = _INDEX.decode(self._file.read(stage_file.size - stage_file.index_at))
        self._index = dict(index)

    def parts(self) -> Iterator[Part]:
        yield from self._index

    def frames(self, part: Part) -> Iterator[bytes]:
        for _, frame in self.ordered_frames(part):
            yield frame

    def ordered_frames(self, part: Part) -> Iterator[tuple[int, bytes]]:
        """Yield each frame with its order."""
        for extent in self._index.get(part, ()):
            self._file.seek(extent.offset)
            frame = self._file.read(extent.length)
            if zlib.crc32(frame) != extent.checksum:
                raise StreamsError(
                    f"{self._shown}: a file of an earlier step is damaged (its checksum is wrong); run the batch again"
                )
            yield extent.order, frame

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.__exit__(kind, error, traceback)
