"""The stream time of each position of a task's input: what lateness is judged by where key ranges share the task.

At factor 1 a windowed operator takes note of the largest timestamp it has seen. A key range sees its own records only,
and is ahead of other ranges or behind them, so there the loop that hands the records out notes with each one the time
that an operator of the whole task would have had at its turn. Pure but for its one number.
"""

from itertools import accumulate, islice
from typing import Protocol, runtime_checkable

import msgspec

from tidewheel.tasks.processing.engine.record_batch import RecordBatch, SourceRecords, has_none

#: No record yet.
NO_TIME = -1


@runtime_checkable
class ObservesPositions(Protocol):
    """An operator that judges by the time of a record's position."""

    @property
    def observed_time_ms(self) -> int:
        """Return the largest timestamp seen, -1 before the first record."""
        ...

    def times_at(self, position_ms: int) -> tuple[int, ...]:
        """Return what `times` would give if all records before a position were done, whose time is `position_ms`."""
        ...


class Counted(msgspec.Struct, frozen=True):
    """Which records a sub-topology's time is made of.

    Attributes:
        sources: Names of the source nodes whose records count.
        null_keys: Whether records without a key count; windows drop them before they look at the time.
        null_values: Whether records without a value count; sliding windows drop those, too.
    """

    sources: frozenset[str]
    null_keys: bool = False
    null_values: bool = True


class PositionClock:
    """The time at the position that one task's loop has come to.

    Args:
        counted: Which records make the time.
        time_ms: The time at the first position to come, -1 for none (see `OperatorTimes.position_time_ms`).

    >>> from tidewheel.tasks.processing.engine.record_batch import RecordBatch, SourceRecords
    >>> records = SourceRecords("clicks", 0, [7, 8, 9], [b"a", b"b", b"a"], [b"1"] * 3, [40, 20, 50], None)
    >>> batch = RecordBatch(["a", "b", "a"], [1, 1, 1], [40, 20, 50], None, range(3), records)
    >>> PositionClock(Counted(frozenset({"clicks"})), 30).times("clicks", records, batch)
    [40, 40, 50]
    """

    def __init__(self, counted: Counted, time_ms: int = NO_TIME) -> None:
        self._counted = counted
        #: The largest timestamp of all records before the position, in milliseconds.
        self.time_ms = time_ms

    def times(self, source: str, records: SourceRecords, batch: RecordBatch) -> list[int]:
        """Move on behind some records; return the time at each row of them, with its own timestamp counted.

        Args:
            source: Name of the node that decoded them.
            records: The records as consumed.
            batch: Those of them that were accepted, with the timestamps that count.
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
        """Return the timestamps, with -1 for a record that does not count."""
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
