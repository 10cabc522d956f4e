"""Stream-stream joins: records of one key whose timestamps are close to each other.

Each side puts its records into its own window store (`JoinWindow`) and reads partners from the
other side's store (`StreamJoin`). Rules: Kafka Streams' KStreamJoinWindow, KStreamKStreamJoin and
KStreamKStreamSelfJoin.

- A null value is dropped. So is a null key, unless its side keeps unmatched records (left and outer
  joins, KIP-962): then the record is emitted immediately.
- A result has the larger timestamp of both records.
- An unmatched record is emitted with its own timestamp when a later record closes its window.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, compress, groupby, islice, repeat
from operator import lt
from typing import Any, NamedTuple, cast

from tidewheel.state_stores.ports import SerdePort
from tidewheel.state_stores.stores.window_store import WindowStore
from tidewheel.streams.operators.joins.non_joined import NonJoinedSettings, NonJoinedStore
from tidewheel.streams.operators.stateful import MaterializedOperator
from tidewheel.streams.user_functions import UserFunction, stopped
from tidewheel.tasks.processing.api.handlers import FAILURES
from tidewheel.tasks.processing.engine.operator import NodeContext, Operator, Output
from tidewheel.tasks.processing.engine.record_batch import JointRecords, RecordBatch, has_none

#: Partners of one record as (timestamp, value), in the order of time.
Partners = Sequence[tuple[int, Any]]


class JoinSide(NamedTuple):
    """Join window (ms before and after a record's timestamp) and grace period."""

    is_left: bool
    before_ms: int
    after_ms: int
    grace_ms: int


class _Pairs(NamedTuple):
    indices: list[int]
    times_ms: Sequence[int]
    values: list[Any]


class _PutLog:
    """Puts of one batch with records of both sides.

    With it, each record reads the other side's store as of its own place in the batch.
    """

    def __init__(self, observed_ms: int) -> None:
        self._observed_ms = observed_ms
        #: Of each put: place in the batch, timestamp, and the store's stream time before it.
        self._places: list[int] = []
        self._times_ms: list[int] = []
        self._latest_ms: list[int] = []
        self._rows: dict[bytes, int] = {}

    def add_all(
        self, places: Sequence[int], disk_keys: Sequence[bytes], times_ms: Sequence[int]
    ) -> None:
        self._places += places
        self._times_ms += times_ms
        self._rows.update(zip(disk_keys, places, strict=True))

    def pass_time(self, place: int, time_ms: int) -> None:
        """Log a put that stores no row but may advance stream time."""
        self._places.append(place)
        self._times_ms.append(time_ms)

    def observed_ms(self, place: int) -> int:
        if len(self._latest_ms) <= len(self._times_ms):
            self._latest_ms = list(accumulate(self._times_ms, max, initial=self._observed_ms))
        return self._latest_ms[bisect_left(self._places, place)]

    def before(self, places: Iterable[int], disk_keys: Iterable[bytes]) -> list[bool]:
        """Return for each row True if it was put before the reading record's place."""
        return list(map(lt, map(self._rows.get, disk_keys, repeat(-1)), places))


class _OverWindows(MaterializedOperator):
    """An operator over a window store that retains duplicates."""

    needs_whole_task = "it joins two streams, whose records wait for each other by one time"

    store: WindowStore[Any, Any]

    def init(self, context: NodeContext) -> None:
        Operator.init(self, context)
        self.store = context.store(self._store_name)
        self.buffer = self.store.buffer

    def with_any_key_bytes(self, batch: RecordBatch) -> tuple[RecordBatch, list[bytes | None]]:
        if batch.key_bytes is not None and batch.key_serde is self.buffer.spec.key_serde:
            return batch, batch.key_bytes
        if not has_none(batch.keys):
            batch, key_bytes = self.with_key_bytes(batch)
            return batch, cast("list[bytes | None]", key_bytes)
        pieces = [self._piece(batch, index) for index in range(len(batch))]
        indices = [index for index, piece in enumerate(pieces) if piece is not None]
        return batch.take(indices), [piece[0] for piece in pieces if piece is not None]

    def _piece(self, batch: RecordBatch, index: int) -> tuple[bytes | None] | None:
        if batch.keys[index] is None:
            return (None,)
        _, key_bytes = self.with_key_bytes(batch.single(index))
        return (key_bytes[0],) if key_bytes else None

    def canonical(self, batch: RecordBatch, key_bytes: list[bytes | None]) -> RecordBatch:
        """Return the batch with serialised keys for the join to reuse."""
        serde = self.buffer.spec.key_serde
        if batch.key_bytes is not None or not serde.canonical:
            return batch
        batch = batch.with_values(batch.values)
        batch.key_bytes, batch.key_serde = key_bytes, serde
        return batch

    def put(self, batch: RecordBatch, index: int, key_bytes: bytes) -> bool:
        timestamp = batch.timestamps[index]
        try:
            is_stored = self.store.put_bytes(key_bytes, batch.values[index], timestamp, timestamp)
        except FAILURES as error:
            self.context.failed(batch, index, error)
            return False
        if not is_stored:
            self.context.expired(
                f"too late to be kept for later partners in store {self._store_name}", batch, index
            )
            observed_ms = self.store.observed_stream_time_ms
            self.report_late(
                batch,
                index,
                f"came too late to be kept for later partners in store {self._store_name}: stream time is {observed_ms}",
            )
        return is_stored


class JoinWindow(_OverWindows):
    """Writer of one side's records to its store, where the other side finds them."""

    takes_joint = True

    def process(self, batch: RecordBatch) -> Output:
        batch, key_bytes = self.with_any_key_bytes(batch)
        if not len(batch):
            return None
        source, observed_ms = batch.source, self.store.observed_stream_time_ms
        put_log: _PutLog | None = None
        if isinstance(source, JointRecords):
            put_log = source.notes[self._store_name] = _PutLog(observed_ms)
        disk_keys = self._put_all(batch, key_bytes)
        if disk_keys is None:
            self._put_each(batch, key_bytes, put_log)
        elif put_log is not None:
            put_log.add_all(_places(batch), disk_keys, batch.timestamps)
        return self.canonical(batch, key_bytes)

    def _put_all(self, batch: RecordBatch, key_bytes: list[bytes | None]) -> list[bytes] | None:
        if has_none(key_bytes):
            return None
        try:
            return self.store.add_all(
                cast("list[bytes]", key_bytes), batch.values, batch.timestamps
            )
        except FAILURES:
            return None

    def _put_each(
        self, batch: RecordBatch, key_bytes: Sequence[bytes | None], put_log: _PutLog | None
    ) -> None:
        store = self.store
        places = () if put_log is None else _places(batch)
        for index, data in enumerate(key_bytes):
            if data is None or not self.put(batch, index, data) or put_log is None:
                continue
            timestamp = batch.timestamps[index]
            if batch.values[index] is not None:
                row = store.disk_key(data, timestamp, store.buffer.seq)
                put_log.add_all((places[index],), (row,), (timestamp,))
            elif not store.buffer.spec.persistent:
                put_log.pass_time(places[index], timestamp)


def _places(batch: RecordBatch) -> list[int]:
    assert batch.order is not None, "a joint batch has an order"
    return [position[0] for position in batch.order]


def _asking(batch: RecordBatch, key_bytes: Sequence[bytes | None]) -> Sequence[int]:
    every = range(len(batch))
    if not has_none(key_bytes) and not has_none(batch.values):
        return every
    return [
        index for index in every if key_bytes[index] is not None and batch.values[index] is not None
    ]


class _Results:
    def __init__(self) -> None:
        self.indices: list[int] = []
        self.values: list[Any] = []
        self.timestamps: list[int] = []
        #: Result index -> its key, for an unmatched record with another key than the input record.
        self.foreign: dict[int, tuple[Any, bytes]] = {}

    def add(self, index: int, value: Any, timestamp: int) -> None:
        self.indices.append(index)
        self.values.append(value)
        self.timestamps.append(timestamp)

    def batch(self, inputs: RecordBatch, key_serde: Any) -> RecordBatch | None:
        if not self.indices:
            return None
        output = inputs.take(self.indices)
        output.values, output.timestamps = self.values, self.timestamps
        if output.order is not None:
            output.order = [(*position, number) for number, position in enumerate(output.order)]
        for place, (key, key_bytes) in self.foreign.items():
            output.keys[place] = key
            if output.key_bytes is not None:
                output.key_bytes[place] = key_bytes
        if self.foreign and output.key_serde is not key_serde:
            output.key_bytes = output.key_serde = None
        return output


class StreamJoin(_OverWindows):
    """One side of a join.

    `keeps`: this side emits unmatched records. `non_joined`: not None if either side does.
    """

    expands = True

    def __init__(
        self,
        other_store: str,
        joiner: UserFunction,
        side: JoinSide,
        keeps: bool,
        non_joined: NonJoinedSettings | None,
        left_serde: SerdePort,
        right_serde: SerdePort,
    ) -> None:
        super().__init__(other_store)
        self._joiner = joiner
        self._side = side
        self._keeps = keeps
        self._settings = non_joined
        self._serdes = (left_serde, right_serde)
        self._non_joined: NonJoinedStore | None = None
        # Both sides change the store of unmatched records in record order. In a joint batch, one
        # side would process all its records before the other's.
        self.takes_joint = non_joined is None

    def init(self, context: NodeContext) -> None:
        super().init(context)
        settings = self._settings
        if settings is not None:
            self._non_joined = NonJoinedStore(
                settings,
                context.store(settings.store_name),
                (self.buffer.spec.key_serde, *self._serdes),
                is_left=self._side.is_left,
            )

    def times(self) -> tuple[int, ...]:
        return self._non_joined.times() if self._non_joined and self._side.is_left else ()

    def restore_times(self, times: tuple[int, ...]) -> None:
        if self._non_joined and self._side.is_left:
            self._non_joined.restore_times(times)
        else:
            super().restore_times(times)

    def process(self, batch: RecordBatch) -> Output:
        batch, key_bytes = self.with_any_key_bytes(batch)
        if not len(batch):
            return None
        asking = _asking(batch, key_bytes)
        pairs = self._pairs(batch, key_bytes, asking)
        if self._non_joined is None:
            output = self._join_pairs(batch, pairs)
            dropped = (
                sorted(set(range(len(batch))).difference(asking))
                if len(asking) < len(batch)
                else []
            )
        else:
            partners, results = self._partners(batch, pairs), _Results()
            dropped = self._join_waiting(self._non_joined, batch, key_bytes, partners, results)
            output = results.batch(batch, self.buffer.spec.key_serde)
        if dropped:
            self.context.dropped(len(dropped), "null key or value", batch, dropped[0])
        return output

    def _join_waiting(
        self,
        waiting: NonJoinedStore,
        batch: RecordBatch,
        key_bytes: Sequence[bytes | None],
        partners: Sequence[Partners],
        results: _Results,
    ) -> list[int]:
        """Join one by one, storing unmatched records; return the indices of dropped records."""
        waiting.begin()
        waiting.prefetch(
            (data, start)
            for data, row_partners in zip(key_bytes, partners, strict=True)
            if data is not None
            for start, _ in row_partners
        )
        dropped: list[int] = []
        for index, row_partners in enumerate(partners):
            try:
                if not self._join(waiting, batch, index, key_bytes[index], row_partners, results):
                    dropped.append(index)
            except FAILURES as error:
                self.context.failed(batch, index, error)
        return dropped

    def _pairs(
        self, batch: RecordBatch, key_bytes: Sequence[bytes | None], asking: Sequence[int]
    ) -> _Pairs:
        buffer, source = self.store.buffer, batch.source
        put_log: _PutLog | None = None
        if isinstance(source, JointRecords):
            put_log = source.notes.get(self._store_name)
        times: Sequence[int] = batch.timestamps
        keys = cast("Sequence[bytes]", key_bytes)
        places: Sequence[int] = () if put_log is None else _places(batch)
        if len(asking) < len(batch):
            times, keys = [times[index] for index in asking], [keys[index] for index in asking]
        before_ms, after_ms, live_ms = (
            self._side.before_ms,
            self._side.after_ms,
            buffer.live_from_ms,
        )
        lows = [time - before_ms for time in times]
        if min(lows, default=live_ms) < live_ms:
            lows = [
                low if low >= live_ms else max(low, self._live_from_ms(put_log, places, index))
                for index, low in zip(asking, lows, strict=True)
            ]
        highs = [max(0, time + after_ms) for time in times]
        rows_by_key = buffer.rows_of_each(keys, lows, highs)
        rows = [*chain.from_iterable(rows_by_key)]
        indices = [*chain.from_iterable(map(repeat, asking, map(len, rows_by_key)))]
        if put_log is not None and rows:
            present = put_log.before(map(places.__getitem__, indices), rows)
            rows, indices = list(compress(rows, present)), list(compress(indices, present))
        values = buffer.get_many(rows)
        if has_none(values):
            present = [value is not None for value in values]
            rows, indices = list(compress(rows, present)), list(compress(indices, present))
            values = list(compress(values, present))
        return _Pairs(indices, buffer.layout.times_of(rows), values)

    def _live_from_ms(self, put_log: _PutLog | None, places: Sequence[int], index: int) -> int:
        buffer = self.store.buffer
        if put_log is None:
            return buffer.live_from_ms
        return buffer.layout.live_from_ms(put_log.observed_ms(places[index]))

    @staticmethod
    def _partners(batch: RecordBatch, pairs: _Pairs) -> list[Partners]:
        partners: list[Partners] = [()] * len(batch)
        stop = 0
        for index, group in groupby(pairs.indices):
            start, stop = stop, stop + len(list(group))
            partners[index] = list(
                zip(pairs.times_ms[start:stop], pairs.values[start:stop], strict=True)
            )
        return partners

    def _join_pairs(self, batch: RecordBatch, pairs: _Pairs) -> RecordBatch | None:
        indices, times_ms, other_values = pairs
        if not indices:
            return None
        output = batch.take(indices)
        output.timestamps = list(map(max, output.timestamps, times_ms))
        sides = (
            (output.values, other_values) if self._side.is_left else (other_values, output.values)
        )
        columns = (output.keys, *sides) if self._joiner.takes_key else sides
        results, left_out = self._call_each(batch, indices, columns)
        if left_out:
            output = output.take([place for place in range(len(indices)) if place not in left_out])
        output.values = results
        if output.order is not None:
            output.order = [(*position, number) for number, position in enumerate(output.order)]
        return output if len(output) else None

    def _call_each(
        self, batch: RecordBatch, indices: Sequence[int], columns: Sequence[Sequence[Any]]
    ) -> tuple[list[Any], set[int]]:
        """Return the joiner's results and the indices of failed pairs.

        A failed call drops all pairs of its record.
        """
        results: list[Any] = []
        left_out: set[int] = set()
        arguments = [iter(column) for column in columns]
        calls = map(self._joiner.call, *arguments)
        while True:
            error: Exception | None = None
            try:
                results.extend(calls)
            except FAILURES as raised:
                error = raised
            place = len(results) + len(left_out)
            if place == len(indices):
                return results, left_out
            if error is None:
                error = stopped(self._joiner)
            self.context.failed(batch, indices[place], error)
            behind = bisect_right(indices, indices[place], place)
            left_out.update(range(place, behind))
            skipped = behind - place - 1
            for argument in arguments:
                next(islice(argument, skipped, skipped), None)

    def _join(
        self,
        waiting: NonJoinedStore,
        batch: RecordBatch,
        index: int,
        key_bytes: bytes | None,
        partners: Partners,
        results: _Results,
    ) -> bool:
        """Add the results of one record; return False if the join drops it."""
        key, value, timestamp = batch.keys[index], batch.values[index], batch.timestamps[index]
        waiting.tracker.stream_time_ms = max(waiting.tracker.stream_time_ms, timestamp)
        if key_bytes is None or value is None:
            if value is None or not self._keeps:
                return False
            results.add(index, self._joined(key, value, None), timestamp)
            return True
        if timestamp == waiting.tracker.stream_time_ms:
            self._add_due(waiting, batch, index, results)
        for start, other in partners:
            waiting.delete_matched(key_bytes, start, timestamp)
            results.add(index, self._joined(key, value, other), max(timestamp, start))
        if self._keeps and not partners:
            # The record's window has closed: emit it now, without storing it.
            if max(0, timestamp + self._side.after_ms) < waiting.tracker.stream_time_ms:
                results.add(index, self._joined(key, value, None), timestamp)
            else:
                waiting.keep(key_bytes, value, timestamp)
        return True

    def _joined(self, key: Any, value: Any, other: Any) -> Any:
        left, right = (value, other) if self._side.is_left else (other, value)
        return _call(self._joiner, key, left, right)

    def _add_due(
        self, waiting: NonJoinedStore, batch: RecordBatch, index: int, results: _Results
    ) -> None:
        """Emit due unmatched records, at most once per `emit_interval_ms`."""
        if not waiting.may_be_due(self._side.after_ms + self._side.grace_ms):
            return
        now_ms = self.context.now_ms()
        if now_ms < waiting.tracker.next_scan_ms:
            return
        waiting.tracker.next_scan_ms = now_ms + self.context.emit_interval_ms
        for record in waiting.due(batch.timestamps[index]):
            try:
                value = _call(self._joiner, record.key, record.left, record.right)
            except FAILURES as error:
                self.context.failed(batch, index, error)
                continue
            results.foreign[len(results.indices)] = (record.key, record.key_bytes)
            results.add(index, value, record.timestamp)


class SelfJoin(_OverWindows):
    """A stream joined with itself over one store.

    A record is put into the store after it was joined. A record without a key has no partner.
    """

    expands = True

    def __init__(
        self,
        store_name: str,
        joiner: UserFunction,
        before_ms: int,
        after_ms: int,
        retention_ms: int,
        keeps_left: bool = False,
        keeps_right: bool = False,
    ) -> None:
        super().__init__(store_name)
        self._joiner = joiner
        self._keeps = (keeps_left, keeps_right)
        self._before_ms = before_ms
        self._after_ms = after_ms
        self._retention_ms = retention_ms
        self._stream_time_ms = -1

    def times(self) -> tuple[int, ...]:
        return (self._stream_time_ms,)

    def restore_times(self, times: tuple[int, ...]) -> None:
        (self._stream_time_ms,) = times

    def process(self, batch: RecordBatch) -> Output:
        batch, key_bytes = self.with_any_key_bytes(batch)
        results = _Results()
        for index, data in enumerate(key_bytes):
            key, value, timestamp = batch.keys[index], batch.values[index], batch.timestamps[index]
            if value is None or (data is None and not any(self._keeps)):
                self.context.dropped(1, "null key or value", batch, index)
                if data is not None:
                    # As in Kafka Streams, a null value stores no row. It advances the stream time
                    # of an in-memory store only.
                    self.put(batch, index, data)
                continue
            try:
                partners = (
                    self._alone(value, timestamp)
                    if data is None
                    else self._joined(key, value, timestamp, data)
                )
                for joined, joined_ms in partners:
                    results.add(index, joined, joined_ms)
            except FAILURES as error:
                self.context.failed(batch, index, error)
            if data is not None:
                self.put(batch, index, data)
        return results.batch(batch, self.buffer.spec.key_serde)

    def _alone(self, value: Any, timestamp: int) -> Iterable[tuple[Any, int]]:
        keeps_left, keeps_right = self._keeps
        if keeps_left:
            yield _call(self._joiner, None, value, None), timestamp
        if keeps_right:
            yield _call(self._joiner, None, None, value), timestamp

    def _joined(
        self, key: Any, value: Any, timestamp: int, key_bytes: bytes
    ) -> Iterable[tuple[Any, int]]:
        itself = _call(self._joiner, key, value, value)
        self._stream_time_ms = max(self._stream_time_ms, timestamp)
        is_live = timestamp > self._stream_time_ms - self._retention_ms + 1
        for start, other in self._near(key_bytes, timestamp, self._before_ms, self._after_ms):
            yield _call(self._joiner, key, value, other), max(timestamp, start)
        for start, other in self._near(key_bytes, timestamp, self._after_ms, self._before_ms):
            if is_live and start > timestamp:
                yield itself, timestamp
                is_live = False
            yield _call(self._joiner, key, other, value), max(timestamp, start)
        if is_live:
            yield itself, timestamp

    def _near(self, key_bytes: bytes, timestamp: int, before_ms: int, after_ms: int) -> Partners:
        first, last = max(0, timestamp - before_ms), max(0, timestamp + after_ms)
        return [
            (start, value) for start, value, _ in self.store.fetch_bytes(key_bytes, first, last)
        ]


def _call(joiner: UserFunction, key: Any, left: Any, right: Any) -> Any:
    return joiner.call(key, left, right) if joiner.takes_key else joiner.call(left, right)
