"""Record batches: records as columns, the input and output of operators.

A batch has records of one source partition or one cache flush, in order. Batches share columns:
never change one in place.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, compress, repeat
from operator import is_, itemgetter
from typing import Any

from tidewheel.state_stores.buffers.rows import column_bytes
from tidewheel.tasks.processing.api.record import Headers, RecordContext, RecordMetadata


def has_none(column: Iterable[Any]) -> bool:
    """Return True if any value is None; `in` would call users' `==`.

    >>> has_none([1, None]), has_none([0, ""])
    (True, False)
    """
    return any(map(is_, column, repeat(None)))


def first_none(column: Iterable[Any]) -> int:
    """Return the index of the first None.

    >>> first_none([1, None, None])
    1
    """
    return next(place for place, value in enumerate(column) if value is None)


def _picker(rows: Sequence[int]) -> Callable[[Sequence[Any]], list[Any]]:
    """Return a function that takes these rows from a column."""
    if len(rows) <= 1:  # `itemgetter` returns a tuple of two or more only
        return lambda column: [column[row] for row in rows]
    pick = itemgetter(*rows)
    return lambda column: list(pick(column))


class SourceRecords:
    """Raw records of a batch, for error contexts, dead letters and dynamic topic names.

    `position_times` is the task's stream time (ms) after each row, by which key ranges judge
    lateness; None without key ranges. `order_ms` orders a task's inputs; None: by timestamps.
    """

    __slots__ = (
        "headers", "offsets", "order_ms", "partition", "position_times", "raw_keys", "raw_values", "timestamps",
        "topic",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        partition: int,
        offsets: Sequence[int],
        raw_keys: Sequence[bytes | None],
        raw_values: Sequence[bytes | None],
        timestamps: Sequence[int],
        headers: Sequence[Headers] | None,
        *,
        position_times: Sequence[int] | None = None,
        order_ms: Sequence[int] | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offsets = offsets
        self.raw_keys = raw_keys
        self.raw_values = raw_values
        self.timestamps = timestamps
        self.headers = headers
        self.position_times = position_times
        self.order_ms = order_ms

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def raw(self) -> tuple[Any, ...]:
        """Return the positional arguments that make the same records."""
        return (
            self.topic, self.partition, self.offsets, self.raw_keys, self.raw_values, self.timestamps, self.headers,
        )  # fmt: skip

    def metadata(self, row: int) -> RecordMetadata:
        return RecordMetadata(self.topic, self.partition, self.offsets[row])

    def slice(self, start: int, stop: int) -> "SourceRecords":
        if start == 0 and stop >= len(self.offsets):
            return self
        return SourceRecords(
            self.topic,
            self.partition,
            self.offsets[start:stop],
            self.raw_keys[start:stop],
            self.raw_values[start:stop],
            self.timestamps[start:stop],
            self.headers[start:stop] if self.headers is not None else None,
            position_times=None if self.position_times is None else self.position_times[start:stop],
            order_ms=None if self.order_ms is None else self.order_ms[start:stop],
        )

    def since(self, offset: int) -> "SourceRecords":
        """Return the records from an offset on."""
        return self.slice(bisect_left(self.offsets, offset), len(self.offsets))

    def before(self, offset: int) -> "SourceRecords":
        """Return the records below an offset."""
        return self.slice(0, bisect_left(self.offsets, offset))

    @property
    def end_offset(self) -> int:
        """Return the offset after the last record; of a shard's records, after other shards', too."""
        return self.offsets[-1] + 1

    @property
    def latest_ms(self) -> int:
        """Return the largest timestamp; of a shard's records, also of other shards' among them."""
        return max(self.timestamps)

    def take(self, rows: Sequence[int]) -> "SourceRecords":
        pick = _picker(rows)
        headers, times, order_ms = self.headers, self.position_times, self.order_ms
        return SourceRecords(
            self.topic,
            self.partition,
            pick(self.offsets),
            pick(self.raw_keys),
            pick(self.raw_values),
            pick(self.timestamps),
            None if headers is None else pick(headers),
            position_times=None if times is None else pick(times),
            order_ms=None if order_ms is None else pick(order_ms),
        )


class JointRecords(SourceRecords):
    """Raw records of several partitions that one graph processes together.

    A batch with this source has an `order` that begins with each record's place among all
    partitions' records. `starts`: the partitions' first rows. `notes`: by store, data that one
    operator leaves for later ones.
    """

    __slots__ = ("_parts", "notes", "starts")

    def __init__(self, parts: Sequence[SourceRecords]) -> None:
        with_headers = any(part.headers is not None for part in parts)
        super().__init__(
            "",
            -1,
            list(chain.from_iterable(part.offsets for part in parts)),
            list(chain.from_iterable(part.raw_keys for part in parts)),
            list(chain.from_iterable(part.raw_values for part in parts)),
            list(chain.from_iterable(part.timestamps for part in parts)),
            list(chain.from_iterable(part.headers or [()] * len(part) for part in parts))
            if with_headers
            else None,
        )
        self._parts = parts
        self.notes: dict[str, Any] = {}
        self.starts = list(accumulate(map(len, parts[:-1]), initial=0))

    def metadata(self, row: int) -> RecordMetadata:
        part = self._parts[bisect_right(self.starts, row) - 1]
        return RecordMetadata(part.topic, part.partition, self.offsets[row])


class RecordBatch:
    """Records as columns.

    Attributes:
        rows: Row of each record in `source`; repeated by flat_map, missing after filter.
        source: The raw input; None for a cache flush or a punctuation.
        old_values: Values before each change, in a table's stream that needs them.
        latest: Of a versioned table, True for its keys' newest versions; None if all are.
        order: Sort keys for record-at-a-time order, if paths of the graph merge; else None.
        key_bytes: Keys serialised by `key_serde`, a canonical serde; dropped when keys change.
    """

    __slots__ = (
        "headers", "key_bytes", "key_serde", "keys", "latest", "old_values", "order", "rows", "source", "timestamps",
        "values",
    )  # fmt: skip

    def __init__(
        self,
        keys: list[Any],
        values: list[Any],
        timestamps: list[int],
        headers: list[Headers] | None,
        rows: Sequence[int],
        source: SourceRecords | None,
        *,
        old_values: list[Any] | None = None,
        latest: list[bool] | None = None,
        order: list[Any] | None = None,
        key_bytes: list[bytes | None] | None = None,
        key_serde: Any = None,
    ) -> None:
        self.keys = keys
        self.values = values
        self.timestamps = timestamps
        self.headers = headers
        self.rows = rows
        self.source = source
        self.old_values = old_values
        self.latest = latest
        self.order = order
        self.key_bytes = key_bytes
        self.key_serde = key_serde

    def __len__(self) -> int:
        return len(self.values)

    def with_values(self, values: list[Any], old_values: list[Any] | None = None) -> "RecordBatch":
        return RecordBatch(
            self.keys, values, self.timestamps, self.headers, self.rows, self.source,
            old_values=old_values, latest=self.latest, order=self.order, key_bytes=self.key_bytes,
            key_serde=self.key_serde,
        )  # fmt: skip

    def with_keys(self, keys: list[Any], values: list[Any] | None = None) -> "RecordBatch":
        return RecordBatch(
            keys, self.values if values is None else values, self.timestamps, self.headers, self.rows, self.source,
            order=self.order,
        )  # fmt: skip

    def select(self, flags: Sequence[Any]) -> "RecordBatch":
        return RecordBatch(
            list(compress(self.keys, flags)),
            list(compress(self.values, flags)),
            list(compress(self.timestamps, flags)),
            None if self.headers is None else list(compress(self.headers, flags)),
            list(compress(self.rows, flags)),
            self.source,
            old_values=None if self.old_values is None else list(compress(self.old_values, flags)),
            latest=None if self.latest is None else list(compress(self.latest, flags)),
            order=None if self.order is None else list(compress(self.order, flags)),
            key_bytes=None if self.key_bytes is None else list(compress(self.key_bytes, flags)),
            key_serde=self.key_serde,
        )

    def take(self, indices: Sequence[int]) -> "RecordBatch":
        pick = _picker(indices)
        return RecordBatch(
            pick(self.keys),
            pick(self.values),
            pick(self.timestamps),
            None if self.headers is None else pick(self.headers),
            pick(self.rows),
            self.source,
            old_values=None if self.old_values is None else pick(self.old_values),
            latest=None if self.latest is None else pick(self.latest),
            order=None if self.order is None else pick(self.order),
            key_bytes=None if self.key_bytes is None else pick(self.key_bytes),
            key_serde=self.key_serde,
        )

    def apart(self, parts: Sequence[Sequence[int]]) -> Iterator["RecordBatch"]:
        """Yield a batch per list of indices; its `source` keeps no other rows in memory."""
        every = self.take(list(chain.from_iterable(parts)))
        source = None if every.source is None else every.source.take(every.rows)
        stop = 0
        for part in parts:
            start, stop = stop, stop + len(part)
            yield RecordBatch(
                every.keys[start:stop],
                every.values[start:stop],
                every.timestamps[start:stop],
                None if every.headers is None else every.headers[start:stop],
                range(len(part)),
                None if source is None else source.slice(start, stop),
                old_values=None if every.old_values is None else every.old_values[start:stop],
                latest=None if every.latest is None else every.latest[start:stop],
                order=None if every.order is None else every.order[start:stop],
                key_bytes=None if every.key_bytes is None else every.key_bytes[start:stop],
                key_serde=every.key_serde,
            )

    def single(self, index: int) -> "RecordBatch":
        if len(self.values) == 1:
            return self
        return RecordBatch(
            [self.keys[index]],
            [self.values[index]],
            [self.timestamps[index]],
            None if self.headers is None else [self.headers[index]],
            (self.rows[index],),
            self.source,
            old_values=None if self.old_values is None else [self.old_values[index]],
            latest=None if self.latest is None else [self.latest[index]],
            order=None if self.order is None else [self.order[index]],
            key_bytes=None if self.key_bytes is None else [self.key_bytes[index]],
            key_serde=self.key_serde,
        )

    def headers_of(self, index: int) -> Headers:
        return () if self.headers is None else self.headers[index]

    def metadata_of(self, index: int) -> RecordMetadata | None:
        return None if self.source is None else self.source.metadata(self.rows[index])

    def position_times(self) -> list[int] | None:
        source = self.source
        if source is None or source.position_times is None:
            return None
        return list(map(source.position_times.__getitem__, self.rows))

    def context_of(self, index: int) -> RecordContext:
        metadata = self.metadata_of(index)
        topic, partition, offset = metadata if metadata is not None else (None, None, None)
        return RecordContext(
            topic, partition, offset, self.timestamps[index], self.headers_of(index)
        )


def merge_in_order(batches: Sequence[RecordBatch]) -> RecordBatch:
    """Merge batches of one source by `order`; no sort key is in two batches."""
    if len(batches) == 1:
        return batches[0]
    orders = list(chain.from_iterable(batch.order or () for batch in batches))
    assert len(orders) == sum(map(len, batches)), "batches that meet carry their order"
    first = batches[0]
    with_headers = any(batch.headers is not None for batch in batches)
    with_old = any(batch.old_values is not None for batch in batches)
    with_latest = any(batch.latest is not None for batch in batches)
    shared_keys = first.key_bytes is not None and all(
        batch.key_bytes is not None and batch.key_serde is first.key_serde for batch in batches
    )
    joined = RecordBatch(
        list(chain.from_iterable(batch.keys for batch in batches)),
        list(chain.from_iterable(batch.values for batch in batches)),
        list(chain.from_iterable(batch.timestamps for batch in batches)),
        list(chain.from_iterable(batch.headers or [()] * len(batch) for batch in batches))
        if with_headers
        else None,
        list(chain.from_iterable(batch.rows for batch in batches)),
        first.source,
        old_values=(
            list(chain.from_iterable(batch.old_values or [None] * len(batch) for batch in batches))
            if with_old
            else None
        ),
        latest=(
            list(chain.from_iterable(batch.latest or [True] * len(batch) for batch in batches))
            if with_latest
            else None
        ),
        order=orders,
        key_bytes=list(chain.from_iterable(batch.key_bytes or () for batch in batches))
        if shared_keys
        else None,
        key_serde=first.key_serde if shared_keys else None,
    )
    return joined.take(sorted(range(len(orders)), key=orders.__getitem__))


#: A source node's records in `JointRecords`, and the place of each among all partitions' records.
JointBatch = tuple[str, RecordBatch, Sequence[int]]


def split_joint(
    batches: Sequence[JointBatch], ranks: Mapping[str, int]
) -> Iterator[list[JointBatch]]:
    """Yield parts, in order, in which each key changes its source to higher ranks only."""
    rows = chain.from_iterable(
        zip(places, repeat(name), _raw_keys(batch)) for name, batch, places in batches
    )
    ends: list[int | None] = []
    last: dict[bytes | None, str] = {}
    for place, name, key in sorted(rows):  # places differ, so keys are not compared
        before = last.get(key, name)
        if before != name and ranks[name] <= ranks[before]:
            ends.append(place)
            last = {}
        last[key] = name
    starts = [0] * len(batches)
    for end in (*ends, None):
        part: list[JointBatch] = []
        for number, (name, batch, places) in enumerate(batches):
            start = starts[number]
            stop = len(places) if end is None else bisect_left(places, end, start)
            starts[number] = stop
            if start < stop:
                part.append((name, batch.take(range(start, stop)), places[start:stop]))
        yield part


def _raw_keys(batch: RecordBatch) -> Iterator[bytes | None]:
    assert batch.source is not None, "a source batch has a source"
    return map(batch.source.raw_keys.__getitem__, batch.rows)


#: Estimated memory of a buffered record, in addition to its key and value.
_RECORD_OVERHEAD_BYTES = 160


def memory_bytes(chunk: SourceRecords) -> int:
    payload = column_bytes(chunk.raw_keys) + column_bytes(chunk.raw_values)
    return payload + len(chunk) * _RECORD_OVERHEAD_BYTES
