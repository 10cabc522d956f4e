"""Dealer: distributes a task's decoded records to its key ranges, in order. Pure."""

from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate, islice

import msgspec

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.buffers.rows import column_bytes
from tidewheel.tasks.key_ranges.key_ranges import KeyRanges, key_hash, key_hashes
from tidewheel.tasks.key_ranges.ledger import Chunk
from tidewheel.tasks.key_ranges.range_worker import RangeSetting
from tidewheel.tasks.key_ranges.sealed_work import WorkItem
from tidewheel.tasks.key_ranges.vector import Vector
from tidewheel.tasks.processing.engine.output import OutputColumns
from tidewheel.tasks.processing.engine.position_clock import PositionClock
from tidewheel.tasks.processing.engine.record_batch import RecordBatch, SourceRecords, memory_bytes

#: Outputs of error handlers for undecodable records, by row.
Letters = Mapping[int, Sequence[OutputColumns]]

#: Approximate bytes of a range's share of records, besides them.
_SHARE_BYTES = 1_000


class Share(msgspec.Struct, frozen=True):
    index: int
    item: WorkItem


class Dealer:
    """Distributor of one task's records to its key ranges.

    Args:
        clock: Stream time at each record's position; None if no operator uses it.
        stream_time_ms: Stream time before the first record, -1 for none.
    """

    def __init__(self, ranges: KeyRanges, clock: PositionClock | None, stream_time_ms: int) -> None:
        self.ranges = ranges
        self.clock = clock
        self.stream_time_ms = stream_time_ms
        self._chunks = 0

    @property
    def position_ms(self) -> int:
        return self.stream_time_ms if self.clock is None else self.clock.time_ms

    def deal(
        self,
        source: str,
        records: SourceRecords,
        batch: RecordBatch,
        *,
        partition: TopicPartition,
        time_before_ms: int,
        old: Vector | None,
        letters: Letters,
        others: Mapping[TopicPartition, tuple[int, int]],
    ) -> tuple[Chunk, list[Share], Sequence[int]]:
        """Return the records as a chunk, each range's work items, and stream time per record.

        `batch` has the decoded records, `letters` dead letters for others. `old` marks records that
        the former owner finished, or that belong to other shards. `others`: positions of other inputs.
        """
        raw = batch.source
        first = 0 if raw is None or raw is records else bisect_left(raw.offsets, records.offsets[0])
        # Row 0 is the first of `records`; the batch's source may start earlier (decoded ahead).
        rows = batch.rows if first == 0 else [row - first for row in batch.rows]
        stamps = _by_row(batch.timestamps, rows, len(records))
        before_ms, position_before_ms = self.stream_time_ms, self.position_ms
        partition_times = _running(stamps, time_before_ms)
        times = partition_times if before_ms == time_before_ms else _running(stamps, before_ms)
        self.stream_time_ms = times[-1]
        positions = times
        if self.clock is not None:
            positions = self.clock.times(source, records, _rebased(batch, rows, records))
            _store_position_times(positions, batch.source or records, first)
        self._chunks += 1
        # Arrays save memory: a range keeps these columns until its last row is sealed.
        packed = {id(column): array("q", column) for column in (partition_times, times, positions)}
        chunk = Chunk(
            partition=partition,
            offsets=array("q", records.offsets),
            partition_times_ms=packed[id(partition_times)],
            positions_ms=packed[id(positions)],
            time_before_ms=time_before_ms,
            position_before_ms=position_before_ms,
            number=self._chunks,
            others=others,
        )
        times_ms = packed[id(times)]
        shares = self._shares(source, records, batch, rows, times_ms, old)
        if letters:
            shares = self._with_letters(source, records, times_ms, shares, letters)
        return chunk, shares, times_ms

    def _shares(
        self,
        source: str,
        records: SourceRecords,
        batch: RecordBatch,
        rows: Sequence[int],
        times: Sequence[int],
        old: Vector | None,
    ) -> list[Share]:
        chosen: dict[int, Sequence[int]]
        if not len(batch):
            return []
        if old is None and len(self.ranges) == 1:
            chosen = {0: range(len(batch))}
        else:
            chosen = self._chosen(records, rows, old)
        whole = len(chosen) == 1 and all(
            len(chosen_indexes) == len(batch) for chosen_indexes in chosen.values()
        )
        # Copy each range's records: a stuck range must not keep others' in memory.
        alone = whole and batch.source is records
        parts = [batch] if alone else batch.apart(list(chosen.values()))
        shares: list[Share] = []
        for (index, chosen_indexes), part in zip(chosen.items(), parts, strict=True):
            my_rows = rows if whole else [rows[row] for row in chosen_indexes]
            item = WorkItem(
                source=source,
                batch=part,
                times_ms=times,
                rows=my_rows,
                end=len(times),
                size_bytes=memory_bytes(part.source or records) + _SHARE_BYTES,
            )
            shares.append(Share(index, item))
        return shares

    def _chosen(
        self, records: SourceRecords, rows: Sequence[int], old: Vector | None
    ) -> dict[int, Sequence[int]]:
        raw_keys, offsets = records.raw_keys, records.offsets
        if len(rows) != len(records):
            raw_keys = [raw_keys[row] for row in rows]
            offsets = [offsets[row] for row in rows]
        hashes = key_hashes(raw_keys, offsets)
        indexes = self.ranges.indexes_of(hashes)
        by_range: dict[int, list[int]] = {}
        if old is None:
            for position, index in enumerate(indexes):
                by_range.setdefault(index, []).append(position)
        else:
            for position in old.to_do(hashes, offsets):
                by_range.setdefault(indexes[position], []).append(position)
        return dict[int, Sequence[int]](by_range)

    def _with_letters(
        self,
        source: str,
        records: SourceRecords,
        times: Sequence[int],
        shares: list[Share],
        letters: Letters,
    ) -> list[Share]:
        for row, outputs in sorted(letters.items()):
            index = self.ranges.index_of(key_hash(records.raw_keys[row], records.offsets[row]))
            item = WorkItem(
                source=source,
                batch=None,
                times_ms=times,
                rows=(row,),
                end=row + 1,
                letters=outputs,
                size_bytes=sum(map(_letter_bytes, outputs)),
            )
            shares = [*_parted(shares, index, row), Share(index, item)]
        return sorted(shares, key=lambda share: (share.index, share.item.rows[0]))


def time_passes(times_ms: Sequence[int]) -> WorkItem:
    end = len(times_ms)
    return WorkItem(
        source="", batch=None, times_ms=times_ms, rows=(end - 1,), end=end, only_time=True
    )


def with_passed_row(
    item: WorkItem, chunk: Chunk, old: Vector | None, setting: RangeSetting
) -> WorkItem:
    if old is None:
        return item
    passed = bisect_left(chunk.offsets, old.lowest_between(setting.first_hash, setting.end_hash))
    return msgspec.structs.replace(item, passed=passed)


def _parted(shares: Sequence[Share], index: int, row: int) -> list[Share]:
    parted: list[Share] = []
    for share in shares:
        item = share.item
        split = bisect_left(item.rows, row)
        if share.index != index or item.batch is None or not 0 < split < len(item.rows):
            parted.append(share)
            continue
        for part, end in ((range(split), row), (range(split, len(item.rows)), item.end)):
            half = msgspec.structs.replace(
                item,
                batch=item.batch.take(part),
                rows=[item.rows[index_in_batch] for index_in_batch in part],
                end=end,
                # Both parts share the records: the last one counts the memory.
                size_bytes=item.size_bytes if end == item.end else 0,
            )
            parted.append(Share(index, half))
    return parted


def _letter_bytes(letter: OutputColumns) -> int:
    return _SHARE_BYTES + column_bytes(letter.keys) + column_bytes(letter.values)


def _rebased(batch: RecordBatch, rows: Sequence[int], records: SourceRecords) -> RecordBatch:
    if batch.source is records:
        return batch
    return RecordBatch(batch.keys, batch.values, batch.timestamps, batch.headers, rows, records)


def _store_position_times(positions: list[int], source: SourceRecords, first: int) -> None:
    if len(positions) == len(source):
        source.position_times = positions
        return
    times = list(source.position_times or [-1] * len(source))
    times[first : first + len(positions)] = positions
    source.position_times = times


def _by_row(values: Sequence[int], rows: Sequence[int], count: int) -> Sequence[int]:
    if len(rows) == count:
        return values
    column = [-1] * count
    for row, value in zip(rows, values, strict=True):
        column[row] = value
    return column


def _running(stamps: Sequence[int], before_ms: int) -> list[int]:
    return list(islice(accumulate(stamps, max, initial=before_ms), 1, None))
