"""Stream time by input position, by which key ranges judge lateness.

A key range sees only its own records, ahead of or behind other ranges. The loop therefore attaches
to each record the stream time of the whole task.
"""

from itertools import accumulate, islice
from typing import Protocol, runtime_checkable

import msgspec

from tidewheel.tasks.processing.engine.record_batch import RecordBatch, SourceRecords, has_none

NO_TIME = -1


@runtime_checkable
class ObservesPositions(Protocol):
    """An operator that judges lateness by the stream time at a record's input position."""

    @property
    def observed_time_ms(self) -> int: ...

    def times_at(self, position_ms: int) -> tuple[int, ...]:
        """Return the `times` that hold where the task's stream time is `position_ms`."""
        ...


class Counted(msgspec.Struct, frozen=True):
    """Rule for the records that advance a sub-topology's stream time.

    `sources`: names of their source nodes. Windows ignore null keys, sliding windows null values,
    too.
    """

    sources: frozenset[str]
    null_keys: bool = False
    null_values: bool = True


class PositionClock:
    """Stream time of a task after each record that its loop reads; starts at `time_ms`.

    >>> from tidewheel.tasks.processing.engine.record_batch import RecordBatch, SourceRecords
    >>> records = SourceRecords("clicks", 0, [7, 8, 9], [b"a", b"b", b"a"], [b"1"] * 3, [40, 20, 50], None)
    >>> batch = RecordBatch(["a", "b", "a"], [1, 1, 1], [40, 20, 50], None, range(3), records)
    >>> PositionClock(Counted(frozenset({"clicks"})), 30).times("clicks", records, batch)
    [40, 40, 50]
    """

    def __init__(self, counted: Counted, time_ms: int = NO_TIME) -> None:
        self._counted = counted
        self.time_ms = time_ms

    def times(self, source: str, records: SourceRecords, batch: RecordBatch) -> list[int]:
        """Advance over `records`; return the stream time after each row.

        `batch` has the records that `source` accepted.
        """
        count = len(records)
        counted = self._counted
        if source not in counted.sources or not len(batch):
            return [self.time_ms] * count
        stamps = self._stamps(batch)
        if len(batch) != count:
            by_row = [NO_TIME] * count
            for row, timestamp in zip(batch.rows, stamps, strict=True):
                by_row[row] = timestamp
            stamps = by_row
        times = list(islice(accumulate(stamps, max, initial=self.time_ms), 1, None))
        self.time_ms = times[-1]
        return times

    def _stamps(self, batch: RecordBatch) -> list[int]:
        """Return the timestamps, -1 for records that do not advance time."""
        stamps = batch.timestamps
        for counts, column in (
            (self._counted.null_keys, batch.keys),
            (self._counted.null_values, batch.values),
        ):
            if not counts and has_none(column):
                stamps = [
                    NO_TIME if item is None else timestamp
                    for item, timestamp in zip(column, stamps, strict=True)
                ]
        return stamps
