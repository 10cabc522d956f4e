"""Blobs: a task's output records as columns, for one partition of a topic, with their order."""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, repeat
from typing import Any, Final, Self, cast

import msgspec

from tidewheel.tasks.processing.api.record import Headers
from tidewheel.tasks.processing.engine.output import ANY_PARTITION, OutputColumns

#: Records of a full blob.
BLOB_RECORDS: Final = 2_000


class Blob(msgspec.Struct, array_like=True, kw_only=True):
    """Consecutive outputs of one task for one partition.

    Attributes:
        task: Sub-topology and partition of the task that made them.
        number: Number among the task's blobs for this partition.
        orders: Order time of each record, which never falls within a task's outputs for a
            partition: the largest timestamp so far, or the order time of the record's cause.
    """

    topic: str
    partition: int
    task: tuple[int, int]
    number: int
    orders: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    timestamps: list[int]
    headers: list[tuple[tuple[str, bytes | None], ...]] | None = None

    def __len__(self) -> int:
        return len(self.orders)

    def encode(self) -> bytes:
        """Return the blob as bytes.

        >>> blob = Blob(topic="t", partition=0, task=(0, 1), number=0, orders=[5], keys=[None], values=[b"v"], timestamps=[5])
        >>> Blob.decode(blob.encode()) == blob
        True
        """
        return _ENCODER.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return _DECODER.decode(data)  # type: ignore[return-value] # of this class


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Blob)


class Outbox:
    """Deals a task's outputs to partitions and collects them in blobs.

    `partition_of` is the partitioner of sinks without one, for (key, partition count). Records
    without a key go to partitions in turns, one order for each topic.
    """

    def __init__(
        self,
        task: tuple[int, int],
        *,
        partition_count: Callable[[str], int],
        partition_of: Callable[[bytes, int], int],
        blob_records: int = BLOB_RECORDS,
    ) -> None:
        self._task = task
        self._partition_count = partition_count
        self._partition_of = partition_of
        self._blob_records = blob_records
        self._filling: dict[tuple[str, int], Blob] = {}
        #: Order time of the last record for each partition.
        self._latest: dict[tuple[str, int], int] = {}
        self._turns: dict[str, int] = {}

    def add(self, columns: OutputColumns, causes: Sequence[int] | None) -> Iterator[Blob]:
        """Yield the blobs that are full.

        `causes`: order times of the records that caused these; None to order by timestamps.
        """
        orders = columns.timestamps if causes is None else causes
        for partition, rows in self._dealt(columns).items():
            target = (columns.topic, partition)
            blob = self._filling.get(target)
            if blob is None:
                blob = self._filling[target] = self._empty(target, 0)
            latest = self._latest.get(target, -1)
            added = list(accumulate(_taken(orders, rows), max, initial=latest))[1:]
            self._latest[target] = added[-1]
            if columns.headers is not None and blob.headers is None:
                blob.headers = [()] * len(blob)
            if blob.headers is not None:
                no_headers: Sequence[Headers] = [()] * len(columns)
                blob.headers += _taken(columns.headers or no_headers, rows)
            blob.orders += added
            blob.keys += _taken(columns.keys, rows)
            blob.values += _taken(columns.values, rows)
            blob.timestamps += _taken(columns.timestamps, rows)
            if len(blob) >= self._blob_records:
                self._filling[target] = self._empty(target, blob.number + 1)
                yield blob

    def flush(self) -> Iterator[Blob]:
        for blob in self._filling.values():
            if len(blob):
                yield blob
        self._filling.clear()

    def _empty(self, target: tuple[str, int], number: int) -> Blob:
        topic, partition = target
        return Blob(
            topic=topic,
            partition=partition,
            task=self._task,
            number=number,
            orders=[],
            keys=[],
            values=[],
            timestamps=[],
        )

    def _dealt(self, columns: OutputColumns) -> dict[int, list[int] | None]:
        """Return the rows for each partition; None for all rows."""
        count = self._partition_count(columns.topic)
        chosen = columns.partitions
        if count == 1:
            return {0: None}
        if isinstance(chosen, int) and chosen != ANY_PARTITION:
            return {chosen: None}
        dealt: list[list[int]] = [[] for _ in range(count)]
        for row, partition in enumerate(self._partitions(columns, count)):
            dealt[partition].append(row)
        return {partition: rows for partition, rows in enumerate(dealt) if rows}

    def _partitions(self, columns: OutputColumns, count: int) -> Sequence[int]:
        keys, chosen = columns.keys, columns.partitions
        if isinstance(chosen, int):
            if None not in keys:
                return list(map(self._partition_of, cast("Sequence[bytes]", keys), repeat(count)))
            chosen = [ANY_PARTITION] * len(keys)
        return [
            self._choose(columns.topic, key, count) if partition == ANY_PARTITION else partition
            for key, partition in zip(keys, chosen, strict=True)
        ]

    def _choose(self, topic: str, key: bytes | None, count: int) -> int:
        if key is not None:
            return self._partition_of(key, count)
        turn = self._turns.get(topic, 0)
        self._turns[topic] = turn + 1
        return turn % count


def _taken(column: Sequence[Any], rows: list[int] | None) -> Sequence[Any]:
    return column if rows is None else list(map(column.__getitem__, rows))
