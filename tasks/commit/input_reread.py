"""Input reread: fetches the raw input records behind failed outputs and rows."""

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.errors import StreamsError
from tidewheel.tasks.kafka.ports import OffsetOutOfRangeError, RecordSource
from tidewheel.tasks.processing.api.record import Headers
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

_log = logging.getLogger(__name__)

#: Maximum polls for a record: 5 s together, far less than `worker_hang_timeout_ms`.
_POLLS: Final = 50
_POLL_S: Final = 0.1

#: Records that one poll reads and caches: those that fail together are mostly neighbours.
_RECORDS: Final = 1_000

#: Seconds without rereads after a time-out, else each of many failing records would wait.
_PAUSE_S: Final = 60.0


class InputRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers


class InputReread:
    """Reader of consumed input records; creates its client when first needed."""

    def __init__(
        self, make: Callable[[], RecordSource], *, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._make = make
        self._monotonic_s = monotonic_s
        self._reader: RecordSource | None = None
        self._runs: Sequence[SourceRecords] = ()
        self._next = 0
        self._prepared_topics: set[str] = set()
        self._paused_until_s = monotonic_s()

    def find(self, partition: TopicPartition, offset: int) -> InputRecord | None:
        """Return a consumed record; None, with a warning, if it can't be read."""
        record = _find_record(self._runs, partition, offset)
        if record is not None or self._monotonic_s() < self._paused_until_s:
            return record
        why = "it is not in the log any more"
        try:
            if self._read(partition, offset):
                record = _find_record(self._runs, partition, offset)
            else:
                why = f"the cluster has not given it within {_POLLS * _POLL_S:g} s"
                self._pause()
        except OffsetOutOfRangeError:
            self._discard()
        except StreamsError as error:
            why = str(error)
            self._pause()
        if record is None:
            _log.warning(
                "the input record of a failed output, %s offset %d, can't be read again: %s",
                partition,
                offset,
                why,
            )
        return record

    def find_last(
        self, partition: TopicPartition, keys: Collection[bytes], start: int, end: int
    ) -> int | None:
        """Return the offset of the last record with one of these keys in [`start`, `end`).

        None if there is none, or it can't be read.
        """
        partition = partition.whole
        last: int | None = None
        try:
            while start < end and self._read(partition, start):
                for run in self._runs:
                    if (run.topic, run.partition) == partition:
                        offsets = [
                            offset
                            for offset, key in zip(run.offsets, run.raw_keys, strict=True)
                            if key in keys and offset < end
                        ]
                        last = offsets[-1] if offsets else last
                start = self._next
        except (OffsetOutOfRangeError, StreamsError) as error:
            _log.warning("can't search the input of a row in %s again: %s", partition, error)
            self._discard()
        return last

    def close(self) -> None:
        self._discard()

    def _read(self, partition: TopicPartition, offset: int) -> bool:
        """Fetch records from an offset; return False at a time-out."""
        self._runs = ()
        if self._reader is None:
            self._reader = self._make()
            self._prepared_topics.clear()
        reader = self._reader
        if partition.topic not in self._prepared_topics:
            reader.prepare([partition.topic])
            self._prepared_topics.add(partition.topic)
        reader.assign({partition: offset})
        for _ in range(_POLLS):
            self._runs = reader.poll(_RECORDS, _POLL_S)
            self._next = reader.positions()[partition]
            if self._runs or self._next > offset:
                reader.assign({})  # stops prefetching
                return True
        return False

    def _pause(self) -> None:
        self._paused_until_s = self._monotonic_s() + _PAUSE_S
        self._discard()

    def _discard(self) -> None:
        self._runs = ()
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


def _find_record(
    runs: Sequence[SourceRecords], partition: TopicPartition, offset: int
) -> InputRecord | None:
    for run in runs:
        if (run.topic, run.partition) == partition:
            row = bisect_left(run.offsets, offset)
            if row < len(run) and run.offsets[row] == offset:
                headers = () if run.headers is None else run.headers[row]
                return InputRecord(run.raw_keys[row], run.raw_values[row], headers)
    return None
