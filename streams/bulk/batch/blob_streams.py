"""Streams of blobs for one partition, from a single sequence that is ordered by time."""

import tempfile
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.bulk_restore.storage import Storage
from tidewheel.streams.bulk.batch.stage_files import TOPIC, Part, StageFile, StageReader
from tidewheel.streams.errors import StreamsError
from tidewheel.tasks.batch.blobs import Blob

#: Topic, and the task (sub-topology and partition) that wrote the blobs.
Stream = tuple[str, tuple[int, int]]

#: Memory for the blobs of streams that are read less far; further ones are kept in a file.
_BUFFERED_BYTES: Final = 64 * 1024 * 1024


class BlobStreams:
    """Deals the blobs of a sequence to streams, each of which can be read on its own.

    Args:
        placed: Encoded blobs with (partition, first order time, topic, task, number), sorted.
        counts: Number of blobs of each stream.
        directory: Folder for the blobs that exceed `buffered_bytes`.
    """

    def __init__(
        self,
        placed: Iterator[tuple[tuple[int, Any], bytes]],
        counts: Mapping[Stream, int],
        directory: Path,
        *,
        buffered_bytes: int = _BUFFERED_BYTES,
    ) -> None:
        self._placed = placed
        self._counts = counts
        self._directory = directory
        self._free_bytes = buffered_bytes
        #: Blobs, or their offset and length in the file.
        self._waiting: dict[Stream, deque[bytes | tuple[int, int]]] = {
            stream: deque() for stream in counts
        }
        self._file: Any = None
        self._end = 0

    def of_topic(self, topic: str) -> list[Iterator[Blob]]:
        """Return the streams of a topic in the order of their tasks."""
        return [self._read(stream) for stream in sorted(self._counts) if stream[0] == topic]

    def _read(self, stream: Stream) -> Iterator[Blob]:
        waiting = self._waiting[stream]
        for _ in range(self._counts[stream]):
            while not waiting:
                self._advance()
            entry = waiting.popleft()
            if isinstance(entry, bytes):
                self._free_bytes += len(entry)
                yield Blob.decode(entry)
            else:
                offset, length = entry
                self._file.seek(offset)
                yield Blob.decode(self._file.read(length))

    def _advance(self) -> None:
        found = next(self._placed, None)
        if found is None:
            raise StreamsError(
                "blobs of an earlier step are missing; run the batch again, and report it if it happens twice"
            )
        (_, place), data = found
        _, topic, task, _ = place
        waiting = self._waiting[topic, task]
        if len(data) <= self._free_bytes:
            self._free_bytes -= len(data)
            waiting.append(data)
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115 - closed by `close`
        self._file.seek(self._end)
        self._file.write(data)
        waiting.append((self._end, len(data)))
        self._end += len(data)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def blobs_of(storage: Storage, at: TopicPartition, stage_file: StageFile) -> Generator[Blob]:
    """Yield a task's blobs for one partition of a topic."""
    with StageReader(storage, stage_file) as reader:
        for data in reader.frames(Part(TOPIC, at.topic, at.partition)):
            yield Blob.decode(data)
