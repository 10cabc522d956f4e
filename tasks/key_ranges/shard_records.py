"""Records of one shard, taken from a run of its whole partition before they are decoded."""

from bisect import bisect_left
from collections.abc import Sequence

from tidewheel.rebalance.model import HASH_END, Shard
from tidewheel.tasks.key_ranges.key_ranges import key_hashes
from tidewheel.tasks.processing.engine.record_batch import SourceRecords


class ShardRecords(SourceRecords):
    """A shard's records of a stretch of its partition; its end and its time are the partition's."""

    __slots__ = ("_end", "_end_offset", "_rows", "_run_offsets", "_start", "_times")

    def __init__(
        self,
        records: SourceRecords,
        *,
        rows: Sequence[int],
        run_offsets: Sequence[int],
        times: Sequence[int],
        start: int,
        end: int,
        end_offset: int,
    ) -> None:
        """Take the shard's `records`, which are `rows` of a run of the partition.

        The stretch is the rows from `start` to `end` of that run, whose offsets are `run_offsets`
        and timestamps `times`.
        """
        super().__init__(*records.raw)
        self._rows = rows
        self._run_offsets = run_offsets
        self._times = times
        self._start = start
        self._end = end
        self._end_offset = end_offset

    @property
    def end_offset(self) -> int:
        return self._end_offset

    @property
    def latest_ms(self) -> int:
        return max(self._times[self._start : self._end])

    def slice(self, start: int, stop: int) -> "ShardRecords":
        count = len(self)
        if start == 0 and stop >= count:
            return self
        return ShardRecords(
            super().slice(start, stop),
            rows=self._rows[start:stop],
            run_offsets=self._run_offsets,
            times=self._times,
            start=self._rows[start] if start else self._start,
            end=self._rows[stop] if stop < count else self._end,
            end_offset=self.offsets[stop] if stop < count else self._end_offset,
        )

    def before(self, offset: int) -> "ShardRecords":
        if offset >= self._end_offset:
            return self
        own = bisect_left(self.offsets, offset)
        return ShardRecords(
            super().slice(0, own),
            rows=self._rows[:own],
            run_offsets=self._run_offsets,
            times=self._times,
            start=self._start,
            end=bisect_left(self._run_offsets, offset),
            end_offset=offset,
        )


class ShardDeal:
    """Deals a run of a partition to shards; hashes it once, however many shards a process has.

    >>> run = SourceRecords("in", 0, [7, 8, 9], [b"alice", b"bob", b"carol"], [b"1"] * 3, [5, 9, 2], None)
    >>> own = ShardDeal(run).own(run, Shard(0, 2))
    >>> own.raw_keys, own.end_offset, own.latest_ms
    ([b'alice', b'carol'], 10, 9)
    """

    def __init__(self, run: SourceRecords) -> None:
        self._run = run
        self._by_count: dict[int, list[list[int]]] = {}

    def own(self, share: SourceRecords, shard: Shard) -> ShardRecords | None:
        """Return a shard's records of `share`, the run or its last part; None if there is none."""
        rows = self._rows(shard.of)[shard.number]
        start = len(self._run) - len(share)
        if start:
            rows = rows[bisect_left(rows, start) :]
        if not rows:
            return None
        return ShardRecords(
            self._run.take(rows),
            rows=rows,
            run_offsets=self._run.offsets,
            times=self._run.timestamps,
            start=start,
            end=len(self._run),
            end_offset=self._run.end_offset,
        )

    def _rows(self, count: int) -> list[list[int]]:
        by_shard = self._by_count.get(count)
        if by_shard is None:
            by_shard = self._by_count[count] = [[] for _ in range(count)]
            width = HASH_END // count
            for row, hash_ in enumerate(key_hashes(self._run.raw_keys, self._run.offsets)):
                by_shard[hash_ // width].append(row)
        return by_shard
