"""Writer of one task's rows to its sink: positions, rows since the last flush, refused rows."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.errors import StreamsError
from tidewheel.state_stores.failpoints import failpoint
from tidewheel.tasks.errors import FencedError, SinkBehindError
from tidewheel.tasks.figures import LATENCY_S, Histogram
from tidewheel.tasks.processing.api.sink import RowsRefused, Sink, SinkBatch, SinkTaskInfo
from tidewheel.tasks.processing.engine.record_batch import RecordBatch

_log = logging.getLogger(__name__)


class SinkItem(msgspec.Struct, eq=False):
    """Rows of one run of input records, after the stateless steps.

    Attributes:
        end: Next offset of the partition after these rows; it may advance without rows.
        time_ms: Largest timestamp of the partition up to there.
    """

    partition: TopicPartition
    end: int
    time_ms: int
    batches: list[RecordBatch]
    bytes: int

    @property
    def rows(self) -> int:
        return sum(map(len, self.batches))


class Refusal(msgspec.Struct, frozen=True, eq=False):
    """A row that the sink refused: row `index` of batch number `batch` of an item."""

    item: SinkItem
    batch: int
    index: int
    error: Exception

    @property
    def records(self) -> RecordBatch:
        return self.item.batches[self.batch]


class SinkFigures:
    """Figures of one task's sink; its thread writes them, any thread reads them.

    Attributes:
        problem: Why the last attempt failed, and since when; empty while the sink works.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.refused = 0
        self.retries = 0
        self.problem = ""
        self.flush_latency = Histogram(LATENCY_S)


class _Sent(msgspec.Struct, frozen=True, eq=False):
    """A batch that the sink has received, and its rows' indices in the item's batch."""

    sent: SinkBatch
    item: SinkItem
    batch: int
    indices: Sequence[int]


class SinkWriter:
    """Writes items to a sink; one thread at a time uses it.

    After `close`, `open` connects again and writes all rows since the last flush again.

    Attributes:
        flushed: Next offset of each partition after the last flush.
        flushed_times_ms: Largest timestamps up to there.
    """

    def __init__(
        self,
        make: Callable[[], Sink],
        info: SinkTaskInfo,
        times_ms: Mapping[TopicPartition, int],
    ) -> None:
        self._make = make
        self._info = info
        self.sink = make()
        self.figures = SinkFigures()
        self.flushed: dict[TopicPartition, int] = dict(info.start)
        self.flushed_times_ms = dict(times_ms)
        self._ends: dict[TopicPartition, int] = dict(info.start)
        self._is_open = False
        #: Positions that the outside stores; None before the first `open`, or if it stores none.
        self._stored: dict[TopicPartition, int] | None = None
        self._was_open = False
        self._unflushed: list[SinkItem] = []
        self._sent: dict[int, _Sent] = {}
        self.rows = 0
        self.bytes = 0

    @property
    def is_empty(self) -> bool:
        return not self._unflushed

    @property
    def is_full(self) -> bool:
        return self.rows >= self.sink.batch_rows or self.bytes >= self.sink.batch_bytes

    # -- connection ------------------------------------------------------------------------------

    def open(self) -> None:
        sink = self.sink = self._make()
        self._is_open = True
        stored = sink.open(self._info)
        if stored is not None:
            self._check(stored)
            stored = dict(stored)
        self._stored = stored
        self._was_open = True
        self._sent.clear()
        for item in self._unflushed:
            self._send(item)

    def _check(self, stored: Mapping[TopicPartition, int]) -> None:
        before = self._stored or {}
        for partition, start in self._info.start.items():
            least = max(start, before.get(partition, start))
            offset = stored.get(partition)
            if offset is None and partition not in before:
                continue  # no flush yet
            if offset is None or offset < least:
                raise SinkBehindError(
                    f"sink {self._info.sink} ({self.sink.target}) stores "
                    f"{'no position' if offset is None else f'position {offset}'} of {partition}, but rows up to offset "
                    f"{least} were flushed: it was emptied, or restored from an older copy; stop the application and run "
                    "`tidewheel reset MODULE:TOPOLOGY`, which deletes the sink's positions too, and writes all rows again"
                )
            if not self._was_open and offset > start:
                _log.info(
                    "sink %s stores %s up to offset %d, and Kafka's offset is %d: rows between are not written again",
                    self._info.sink,
                    partition,
                    offset,
                    start,
                )
            if self._was_open and offset > self._ends[partition]:
                raise FencedError(
                    f"sink {self._info.sink} (task {self._info.task_id}): another worker has written {partition} up to "
                    f"offset {offset}, past our {self._ends[partition]}"
                )

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self.sink.close()

    # -- rows ------------------------------------------------------------------------------------

    def write(self, items: Sequence[SinkItem]) -> None:
        # All are kept before the first is sent, which may fail.
        self._unflushed += items
        for item in items:
            self._ends[item.partition] = item.end
            self.rows += item.rows
            self.bytes += item.bytes
        for item in items:
            self._send(item)

    def _send(self, item: SinkItem) -> None:
        stored = (self._stored or {}).get(item.partition, -1)
        for number, records in enumerate(item.batches):
            source = records.source
            assert source is not None, "stateless steps keep the source"
            offsets = [source.offsets[row] for row in records.rows]
            indices: Sequence[int] = range(len(offsets))
            if offsets and offsets[0] < stored:
                indices = [index for index, offset in enumerate(offsets) if offset >= stored]
                records = records.take(indices)  # noqa: PLW2901 - the rows that are not stored
                offsets = [offsets[index] for index in indices]
            if not offsets:
                continue
            partition = item.partition
            sent = SinkBatch(
                topic=partition.topic,
                partition=partition.partition,
                offsets=offsets,
                keys=records.keys,
                values=records.values,
                timestamps=records.timestamps,
                headers=records.headers,
            )
            self._sent[id(sent)] = _Sent(sent, item, number, indices)
            self.sink.write(sent)

    def flush(self) -> None:
        positions = {
            partition: self._ends[partition]
            for partition in {item.partition: None for item in self._unflushed}
            if self._ends[partition] > (self._stored or {}).get(partition, -1)
        }
        if self._sent or (positions and self._stored is not None):
            start_s = time.monotonic()
            failpoint("before_sink_flush")
            self.sink.flush(positions)
            failpoint("after_sink_flush")
            self.figures.flush_latency.observe(time.monotonic() - start_s)
        if self._stored is not None:
            self._stored.update(positions)
        self.figures.rows += sum(len(part.sent) for part in self._sent.values())
        self.figures.problem = ""
        for item in self._unflushed:
            self.flushed_times_ms[item.partition] = item.time_ms
            self.flushed[item.partition] = item.end
        self._unflushed, self._sent, self.rows, self.bytes = [], {}, 0, 0

    # -- refused rows ----------------------------------------------------------------------------

    def refusals(self, refused: RowsRefused) -> list[Refusal]:
        return list(self._refusals(refused))

    def _refusals(self, refused: RowsRefused) -> Iterator[Refusal]:
        for row in refused.rows:
            part = self._sent.get(id(row.batch))
            if part is None or not 0 <= row.row < len(row.batch):
                raise StreamsError(
                    f"sink {self._info.sink} ({self.sink.target}) refused row {row.row} of a batch that it has not received "
                    "since its last flush; make RefusedRow with the batch that `write` received"
                ) from row.error
            yield Refusal(part.item, part.batch, part.indices[row.row], row.error)

    def drop(self, refusals: Sequence[Refusal]) -> None:
        """Leave out refused rows when rows are written again."""
        indices: dict[tuple[int, int], set[int]] = {}
        for refusal in refusals:
            indices.setdefault((id(refusal.item), refusal.batch), set()).add(refusal.index)
        for item in self._unflushed:
            for number, records in enumerate(item.batches):
                refused = indices.get((id(item), number))
                if refused:
                    remaining = [row for row in range(len(records)) if row not in refused]
                    item.batches[number] = records.take(remaining)
        self.figures.refused += len(refusals)
        self.rows = sum(item.rows for item in self._unflushed)
