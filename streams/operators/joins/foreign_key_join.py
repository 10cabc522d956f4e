"""Foreign-key joins of two tables: the five steps of KIP-213, on batches.

1. `SubscriptionSend` (left): sends subscriptions to the partitions of the right table.
2. `SubscriptionReceive` (right): stores them.
3. `SubscriptionJoin` (right): responds with the right row.
4. `ForeignTableJoin` (right): responds again whenever that row changes.
5. `ResponseJoin` (left): joins the response with the left row. If the left row has changed since
   its subscription, a newer response is in flight, and this one is dropped.

The rules are those of the Kafka Streams classes `<name>ProcessorSupplier`.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, compress, repeat
from operator import attrgetter, eq, is_
from typing import Any, ClassVar, Final, NamedTuple, cast

from mmh3 import mmh3_x64_128_utupledigest

from tidewheel.state_stores.buffers.commit_buffer import CommitBuffer
from tidewheel.state_stores.layout.key_schema import prefix_end
from tidewheel.state_stores.ports import SerdePort
from tidewheel.streams.operators.joins.named_serde import NamedSerde
from tidewheel.streams.operators.joins.subscription import (
    Instruction,
    Response,
    Subscription,
    combined_keys,
    key_prefix,
    responses_of,
    subscriptions_of,
)
from tidewheel.streams.operators.joins.table_join import joinable
from tidewheel.streams.operators.stateless import collect_each, repeated, spread
from tidewheel.streams.operators.tables.table_view import Failed, TableView, look_up
from tidewheel.streams.user_functions import UserFunction
from tidewheel.tasks.processing.api.handlers import FAILURES
from tidewheel.tasks.processing.engine.operator import NodeContext, Operator, Output
from tidewheel.tasks.processing.engine.record_batch import RecordBatch, has_none

_HASH_SEED: Final = 104729
_HALVES: Final = struct.Struct(">QQ")


class ForeignKeyTopics(NamedTuple):
    """Topic names without the application id."""

    registration: str
    response: str


def hash_row(row: bytes | None) -> bytes | None:
    """Return the hash by which a response is recognised as stale, or None for a deleted row.

    Equal to Kafka Streams' `Murmur3.hash128`: seed 104729, both halves big-endian. A crafted
    collision would let one stale response through.

    >>> hash_row(b"").hex()
    '9d2764a018e329428c3cf3b035938518'
    """
    return None if row is None else _HALVES.pack(*mmh3_x64_128_utupledigest(row, _HASH_SEED))


class ForeignKeyOperator(Operator):
    needs_whole_task = "a foreign-key join reads rows of other keys"

    def __init__(self, topics: ForeignKeyTopics) -> None:
        self._topics = topics

    def named(self, serde: SerdePort, part: str = "") -> NamedSerde:
        """Bind a serde to Kafka Streams' topic name for it: registration topic plus `part`."""
        return NamedSerde(serde, self.context.internal_topic(self._topics.registration) + part)

    def of_response(self, serde: SerdePort) -> NamedSerde:
        return NamedSerde(serde, self.context.internal_topic(self._topics.response))

    def keep_flagged(self, batch: RecordBatch, flags: Sequence[bool], reason: str) -> RecordBatch:
        """Return the records whose flag is true; drop and count the others."""
        if all(flags):
            return batch
        flagged = batch.select(flags)
        first = next(index for index, flag in enumerate(flags) if not flag)
        self.context.dropped(len(batch) - len(flagged), reason, batch, first)
        return flagged

    def results_of(
        self, batch: RecordBatch, work: Callable[[int], Any]
    ) -> Iterator[tuple[int, Any]]:
        for index in range(len(batch)):
            try:
                result = work(index)
            except FAILURES as error:
                self.context.failed(batch, index, error)
            else:
                yield index, result

    def without_failed(self, batch: RecordBatch, failed: Failed) -> list[int]:
        """Return the indices without an error; hand the others to the exception handler."""
        for index in sorted(failed):
            self.context.failed(batch, index, failed[index])
        return [index for index in range(len(batch)) if index not in failed]


_primary_key = attrgetter("primary_key")
_hash = attrgetter("hash")

_DELETING = tuple(each for each in Instruction if each.deletes)

_Message = tuple[Any, bytes | None, Instruction]


class SubscriptionSend(ForeignKeyOperator):
    expands: ClassVar[bool] = True

    def __init__(
        self,
        topics: ForeignKeyTopics,
        foreign_key: UserFunction,
        left_join: bool,
        versioned: bool,
        primary_key_serde: SerdePort,
        value_serde: SerdePort,
        foreign_key_serde: SerdePort,
    ) -> None:
        super().__init__(topics)
        self._extract = foreign_key
        self._left_join = left_join
        #: Instruction for a first or unchanged foreign key. A left join sends it for every change:
        #: an empty response makes it emit the left row.
        self._instruction = (
            Instruction.PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE
            if left_join
            else Instruction.PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE
        )
        self._versioned = versioned
        self._serdes = (primary_key_serde, value_serde, foreign_key_serde)

    def init(self, context: NodeContext) -> None:
        super().init(context)
        primary_key, value, foreign_key = self._serdes
        self._primary_key = self.named(primary_key, "-pk")
        self._value = self.named(value, "-vh")
        self._foreign_key = self.named(foreign_key, "-fk")
        # Responses return to this partition, the task's. Cached changes don't know theirs.
        self._partition = int(context.task_id.rpartition("_")[2])

    def process(self, batch: RecordBatch) -> Output:
        batch = joinable(self, batch, versioned=self._versioned)
        old_values: Sequence[Any] = batch.old_values or [None] * len(batch)
        calls: Iterator[tuple[Any, Any]]
        if all(map(is_, old_values, repeat(None))):
            new_targets = map(self._target, batch.keys, batch.values)
            calls = zip(repeat(None), new_targets)
        else:
            calls = map(self._targets, batch.keys, old_values, batch.values)
        targets, kept_indices = collect_each(self, self._extract, calls, batch)
        if kept_indices is not None:
            batch, old_values = (
                batch.take(kept_indices),
                [old_values[index] for index in kept_indices],
            )
        if not len(batch):
            return None
        failed: Failed = {}
        before, after = map(list, zip(*targets, strict=True))
        before_bytes = self._foreign_key.write_all(before, failed)
        after_bytes = self._foreign_key.write_all(after, failed)
        if not failed and self._send_one_each(batch.values, before_bytes, after_bytes):
            return self._single_subscriptions(batch, after, after_bytes)
        changes = zip(
            old_values, batch.values, before, before_bytes, after, after_bytes, strict=True
        )
        lists = [
            [] if index in failed else self._messages(*change)
            for index, change in enumerate(changes)
        ]
        if not self._left_join and has_none(after):
            self._drop_null_targets(batch, after, failed)
        return self._subscriptions(batch, lists, failed)

    @staticmethod
    def _send_one_each(
        values: Sequence[Any], before: Sequence[bytes | None], after: Sequence[bytes | None]
    ) -> bool:
        """Return True if each row needs one subscription: a foreign key, new or unchanged."""
        return (
            not has_none(values)
            and not has_none(after)
            and all(old is None or old == new for old, new in zip(before, after, strict=True))
        )

    def _single_subscriptions(
        self, batch: RecordBatch, targets: list[Any], target_bytes: list[bytes | None]
    ) -> RecordBatch | None:
        failed: Failed = {}
        key_bytes = self._primary_key.keys_of(batch)
        if key_bytes is None:
            key_bytes = self._primary_key.write_all(batch.keys, failed)
        hashes = [hash_row(row) for row in self._value.write_all(batch.values, failed)]
        if failed:
            indices = self.without_failed(batch, failed)
            batch = batch.take(indices)
            targets, target_bytes, key_bytes, hashes = (
                [column[index] for index in indices]
                for column in (targets, target_bytes, key_bytes, hashes)
            )
        subscriptions = subscriptions_of(
            hashes,
            repeat(self._instruction),
            cast("Sequence[bytes]", key_bytes),
            repeat(self._partition),
        )
        output = repeated(batch, [1] * len(batch)).with_keys(targets, subscriptions)
        return self._foreign_key.attach_keys(output, target_bytes)

    def _subscriptions(
        self, batch: RecordBatch, lists: list[list[_Message]], failed: Failed
    ) -> RecordBatch | None:
        def of_senders(column: Sequence[Any]) -> list[Any]:
            return [
                item if messages else None for item, messages in zip(column, lists, strict=True)
            ]

        key_bytes = self._primary_key.keys_of(batch)
        if key_bytes is None:
            key_bytes = self._primary_key.write_all(of_senders(batch.keys), failed)
        hashes = [hash_row(row) for row in self._value.write_all(of_senders(batch.values), failed)]
        if failed:
            self.without_failed(batch, failed)
            lists = [[] if index in failed else messages for index, messages in enumerate(lists)]
        flat = list(chain.from_iterable(lists))
        if not flat:
            return None
        subscriptions = [
            Subscription(row_hash, message[2], cast("bytes", data), self._partition)
            for messages, row_hash, data in zip(lists, hashes, key_bytes, strict=True)
            for message in messages
        ]
        output = spread(batch, lists).with_keys([target for target, _, _ in flat], subscriptions)
        return self._foreign_key.attach_keys(output, [data for _, data, _ in flat])

    def _drop_null_targets(self, batch: RecordBatch, after: Sequence[Any], failed: Failed) -> None:
        without = [
            index
            for index, (value, target) in enumerate(zip(batch.values, after, strict=True))
            if value is not None and target is None and index not in failed
        ]
        if without:
            self.context.dropped(len(without), "null foreign key", batch, without[0])

    def _messages(
        self,
        old: Any,
        new: Any,
        before: Any,
        before_bytes: bytes | None,
        after: Any,
        after_bytes: bytes | None,
    ) -> list[_Message]:
        """Return a row change's subscriptions; `before` and `after` are foreign keys."""
        if old is None and new is None:
            return []
        moved = before is not None and before_bytes != after_bytes
        forget = (before, before_bytes, Instruction.DELETE_KEY_NO_PROPAGATE)
        if self._left_join:
            subscription = (after, after_bytes, self._instruction)
            return [forget, subscription] if moved else [subscription]
        if after is None:
            deletion = (before, before_bytes, Instruction.DELETE_KEY_AND_PROPAGATE)
            return [] if before is None else [deletion]
        if moved:
            # The row may have had a result, which a missing right row must delete.
            subscription = (after, after_bytes, Instruction.PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE)
            return [forget, subscription]
        return [(after, after_bytes, self._instruction)]

    def _targets(self, key: Any, old: Any, new: Any) -> tuple[Any, Any]:
        return self._target(key, old), self._target(key, new)

    def _target(self, key: Any, value: Any) -> Any:
        if value is None:
            return None
        extract = self._extract
        return extract.call(key, value) if extract.takes_key else extract.call(value)


class SubscriptionReceive(ForeignKeyOperator):
    _buffer: CommitBuffer

    def __init__(
        self, topics: ForeignKeyTopics, store_name: str, foreign_key_serde: SerdePort
    ) -> None:
        super().__init__(topics)
        self._store_name = store_name
        self._foreign_key_serde = foreign_key_serde

    def init(self, context: NodeContext) -> None:
        super().init(context)
        self._buffer = context.store(self._store_name).buffer
        self._foreign_key = self.named(self._foreign_key_serde, "-fk")

    def process(self, batch: RecordBatch) -> Output:
        if has_none(batch.keys) or has_none(batch.values):
            addressed = list(map(_is_addressed, batch.keys, batch.values))
            batch = self.keep_flagged(batch, addressed, "null key")
        failed: Failed = {}
        key_bytes = self._foreign_key.keys_of(batch)
        if key_bytes is None:
            key_bytes = self._foreign_key.write_all(batch.keys, failed)
        if failed:
            indices = self.without_failed(batch, failed)
            batch, key_bytes = batch.take(indices), [key_bytes[index] for index in indices]
        timestamps = batch.timestamps
        subscriptions: Sequence[Subscription] = batch.values
        if has_none(key_bytes):
            has_row = [data is not None for data in key_bytes]
            key_bytes, timestamps = (
                list(compress(key_bytes, has_row)),
                list(compress(timestamps, has_row)),
            )
            subscriptions = list(compress(subscriptions, has_row))
        rows = combined_keys(cast("Sequence[bytes]", key_bytes), map(_primary_key, subscriptions))
        stored: list[Subscription | None] = [
            None if subscription.instruction in _DELETING else subscription
            for subscription in subscriptions
        ]
        if rows and not self._buffer.put_all(rows, stored, timestamps):
            for row in zip(rows, stored, timestamps, strict=True):
                self._buffer.put(*row)
        return batch


def _is_addressed(key: Any, subscription: Subscription | None) -> bool:
    return subscription is not None and (
        key is not None
        or subscription.instruction is Instruction.PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE
    )


class _Responding(ForeignKeyOperator):
    def __init__(
        self,
        topics: ForeignKeyTopics,
        primary_key_serde: SerdePort,
        foreign_value_serde: SerdePort,
    ) -> None:
        super().__init__(topics)
        self._response_serdes = (primary_key_serde, foreign_value_serde)

    def init(self, context: NodeContext) -> None:
        super().init(context)
        primary_key, foreign_value = self._response_serdes
        self._primary_key = self.named(primary_key, "-pk")
        self._foreign_value = self.of_response(foreign_value)

    def responses(
        self, batch: RecordBatch, keys: list[Any], key_bytes: list[bytes | None], values: list[Any]
    ) -> RecordBatch:
        return self._primary_key.attach_keys(batch.with_keys(keys, values), key_bytes)


class SubscriptionJoin(_Responding):
    def __init__(
        self,
        topics: ForeignKeyTopics,
        foreign_table: TableView,
        primary_key_serde: SerdePort,
        foreign_value_serde: SerdePort,
    ) -> None:
        super().__init__(topics, primary_key_serde, foreign_value_serde)
        self._view = foreign_table

    def init(self, context: NodeContext) -> None:
        super().init(context)
        self._foreign_table = self._view.init(context)

    def process(self, batch: RecordBatch) -> Output:
        silent = Instruction.DELETE_KEY_NO_PROPAGATE
        is_answered = [subscription.instruction is not silent for subscription in batch.values]
        if not all(is_answered):
            batch = batch.select(is_answered)
        if not len(batch):
            return None
        batch, rows, times = look_up(self, self._foreign_table, batch)
        only_with_row = Instruction.PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE
        is_answered = [
            row is not None or subscription.instruction is not only_with_row
            for subscription, row in zip(batch.values, rows, strict=True)
        ]
        if not all(is_answered):
            batch = batch.select(is_answered)
            rows, times = list(compress(rows, is_answered)), list(compress(times, is_answered))
        return self._answers(batch, rows, times) if len(batch) else None

    def _answers(
        self, batch: RecordBatch, rows: Sequence[Any], times: Sequence[int]
    ) -> RecordBatch:
        deletion = Instruction.DELETE_KEY_AND_PROPAGATE
        failed: Failed = {}
        values = self._foreign_value.write_all(
            [
                None if subscription.instruction is deletion else row
                for subscription, row in zip(batch.values, rows, strict=True)
            ],
            failed,
        )
        key_bytes = list(map(_primary_key, batch.values))
        keys = self._primary_key.read_all(key_bytes, failed)
        partitions = map(attrgetter("primary_partition"), batch.values)
        responses = responses_of(map(_hash, batch.values), values, partitions)
        output = self.responses(batch, keys, key_bytes, responses)
        output.timestamps = list(map(max, batch.timestamps, times))
        return output.take(self.without_failed(batch, failed)) if failed else output


class ForeignTableJoin(_Responding):
    expands: ClassVar[bool] = True

    _buffer: CommitBuffer

    def __init__(
        self,
        topics: ForeignKeyTopics,
        store_name: str,
        versioned: bool,
        foreign_key_serde: SerdePort,
        primary_key_serde: SerdePort,
        foreign_value_serde: SerdePort,
    ) -> None:
        super().__init__(topics, primary_key_serde, foreign_value_serde)
        self._store_name = store_name
        self._versioned = versioned
        self._foreign_key_serde = foreign_key_serde

    def init(self, context: NodeContext) -> None:
        super().init(context)
        self._buffer = context.store(self._store_name).buffer
        self._foreign_key = self.named(self._foreign_key_serde, "-fk")

    def process(self, batch: RecordBatch) -> Output:
        batch = joinable(self, batch, versioned=self._versioned)
        key_bytes = self._foreign_key.keys_of(batch)

        def answer(index: int) -> list[tuple[Any, bytes, Response]]:
            data = (
                self._foreign_key(batch.keys[index])
                if key_bytes is None
                else cast("bytes", key_bytes[index])
            )
            return list(self._answers(key_prefix(data), batch.values[index]))

        lists: list[list[tuple[Any, bytes, Response]]] = [[] for _ in range(len(batch))]
        for index, answers in self.results_of(batch, answer):
            lists[index] = answers
        flat = list(chain.from_iterable(lists))
        if not flat:
            return None
        return self.responses(
            spread(batch, lists),
            [key for key, _, _ in flat],
            [data for _, data, _ in flat],
            [response for _, _, response in flat],
        )

    def _answers(self, prefix: bytes, row: Any) -> Iterator[tuple[Any, bytes, Response]]:
        value: bytes | None = None
        for key, subscription, _ in self._buffer.iterate(prefix, prefix_end(prefix)):
            if row is not None and value is None:
                value = self._foreign_value(row)
            primary_key = key[len(prefix) :]
            response = Response(subscription.hash, value, subscription.primary_partition)
            yield self._primary_key.read(primary_key), primary_key, response


class ResponseJoin(ForeignKeyOperator):
    def __init__(
        self,
        topics: ForeignKeyTopics,
        table: TableView,
        joiner: UserFunction,
        left_join: bool,
        value_serde: SerdePort,
        foreign_value_serde: SerdePort,
    ) -> None:
        super().__init__(topics)
        self._view = table
        self._joiner = joiner
        self._left_join = left_join
        self._serdes = (value_serde, foreign_value_serde)

    def init(self, context: NodeContext) -> None:
        super().init(context)
        value, foreign_value = self._serdes
        self._value = self.named(value, "-vh")
        self._foreign_value = self.of_response(foreign_value)
        self._table = self._view.init(context)

    def process(self, batch: RecordBatch) -> Output:
        if has_none(batch.keys) or has_none(batch.values):
            has_both = [
                key is not None and response is not None
                for key, response in zip(batch.keys, batch.values, strict=True)
            ]
            batch = self.keep_flagged(batch, has_both, "null key or value")
        if not len(batch):
            return None
        batch, rows, _ = look_up(self, self._table, batch)
        failed: Failed = {}
        hashes = [hash_row(row) for row in self._value.write_all(rows, failed)]
        if failed:
            indices = self.without_failed(batch, failed)
            batch = batch.take(indices)
            rows, hashes = [rows[index] for index in indices], [hashes[index] for index in indices]
        current = list(map(eq, map(_hash, batch.values), hashes))
        if not all(current):
            rows = list(compress(rows, current))
            batch = self.keep_flagged(batch, current, "response to an older row")
        return self._results(batch, rows) if len(batch) else None

    def _results(self, batch: RecordBatch, rows: Sequence[Any]) -> RecordBatch | None:
        failed: Failed = {}
        foreign_bytes = [response.foreign_value for response in batch.values]
        foreign = self._foreign_value.read_all(foreign_bytes, failed)
        if failed:
            indices = self.without_failed(batch, failed)
            batch = batch.take(indices)
            rows, foreign_bytes, foreign = (
                [column[index] for index in indices] for column in (rows, foreign_bytes, foreign)
            )
        joiner = self._joiner
        calls: Iterator[Any]
        if has_none(foreign_bytes):
            calls = map(self._joined, batch.keys, rows, foreign_bytes, foreign)
        elif joiner.takes_key:
            calls = map(joiner.call, batch.keys, rows, foreign)
        else:
            calls = map(joiner.call, rows, foreign)
        results, kept_indices = collect_each(self, self._joiner, calls, batch)
        if not results:
            return None
        return (batch if kept_indices is None else batch.take(kept_indices)).with_values(results)

    def _joined(self, key: Any, row: Any, foreign_bytes: bytes | None, foreign: Any) -> Any:
        if foreign_bytes is None and (row is None or not self._left_join):
            return None
        joiner = self._joiner
        return joiner.call(key, row, foreign) if joiner.takes_key else joiner.call(row, foreign)
