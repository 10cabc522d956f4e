"""Joins of two tables by a foreign key of the left one: the five steps of KIP-213, each on batches.

The left side sends subscriptions to the partitions of the other table (`SubscriptionSend`). There they are kept
(`SubscriptionReceive`) and answered at once (`SubscriptionJoin`), and again whenever the row they wait for changes
(`ForeignTableJoin`). Back at the left row's partition the two are joined, unless the left row has changed since it asked:
then another answer is on its way (`ResponseJoin`). Rules are those of the Kafka Streams classes of these names with
`ProcessorSupplier` behind them.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, ClassVar, NamedTuple, cast

from state_stores.commit_buffer import CommitBuffer
from state_stores.key_schema import prefix_end
from state_stores.ports import SerdePort
from streams.functions import UserFunction
from streams.operators.murmur3 import hash128
from streams.operators.stateless import spread
from streams.operators.subscription import (
    Instruction,
    Response,
    Subscription,
    combined_key,
    key_prefix,
)
from streams.operators.table_join import joinable
from streams.operators.table_view import TableView, look_up
from tasks.processing.handlers import FAILURES
from tasks.processing.operator import NodeContext, Operator, Output
from tasks.processing.record_batch import RecordBatch


class ForeignKeyTopics(NamedTuple):
    """The bare names of the two topics of a join; serdes are told names made of them."""

    registration: str
    response: str


class _Serializer:
    """One serde under one topic's name, as an operator uses it."""

    def __init__(self, serde: SerdePort, topic: str) -> None:
        self._serde = serde
        self._topic = topic

    def __call__(self, value: Any) -> bytes:
        """Return the bytes of a value, which must have some."""
        data = self._serde.serialize(self._topic, value)
        if data is None:
            raise ValueError(f"{self._serde!r} made None of a {type(value).__name__}")
        return data

    def read(self, data: bytes) -> Any:
        """Return the value of some bytes."""
        return self._serde.deserialize(self._topic, data)

    def keys_of(self, batch: RecordBatch) -> Sequence[bytes | None] | None:
        """Return the batch's serialised keys where they are this serde's; else None."""
        return batch.key_bytes if batch.key_serde is self._serde else None

    def note_keys(self, batch: RecordBatch, key_bytes: list[bytes | None]) -> RecordBatch:
        """Return the batch with its keys' bytes, which a sink with the same serde need not make again."""
        if self._serde.canonical:
            batch.key_bytes, batch.key_serde = key_bytes, self._serde
        return batch


class ForeignKeyOperator(Operator):
    """What the steps share: the topics' names, and records that a rule or an error drops."""

    needs_whole_task = "a foreign-key join looks up rows of other keys"

    def __init__(self, topics: ForeignKeyTopics) -> None:
        self._topics = topics

    def named(self, serde: SerdePort, part: str = "") -> _Serializer:
        """Return a serde under the name of the registration topic and a part of it ("-pk", "-fk", "-vh")."""
        return _Serializer(serde, self.context.internal_topic(self._topics.registration) + part)

    def of_response(self, serde: SerdePort) -> _Serializer:
        """Return a serde under the name of the response topic."""
        return _Serializer(serde, self.context.internal_topic(self._topics.response))

    def kept(self, batch: RecordBatch, flags: Sequence[bool], reason: str) -> RecordBatch:
        """Return the records whose flag is true; the others are dropped and counted."""
        if all(flags):
            return batch
        kept = batch.select(flags)
        self.context.dropped(len(batch) - len(kept), reason)
        return kept

    def each(self, batch: RecordBatch, work: Callable[[int], Any]) -> Iterator[tuple[int, Any]]:
        """Yield each record's index and what `work` made of it; those it failed on go to the processing handler."""
        for index in range(len(batch)):
            try:
                result = work(index)
            except FAILURES as error:  # user code or a serde: the processing handler decides
                self.context.failed(batch, index, error)
            else:
                yield index, result


#: A subscription with the foreign key it goes to, and that key's bytes.
_Addressed = tuple[Any, bytes | None, Subscription]


class SubscriptionSend(ForeignKeyOperator):
    """Tells the other table's partitions which of its rows the left table's rows now point to."""

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
        self._versioned = versioned
        self._serdes = (primary_key_serde, value_serde, foreign_key_serde)

    def init(self, context: NodeContext) -> None:
        """Give the serdes their names."""
        super().init(context)
        primary_key, value, foreign_key = self._serdes
        self._primary_key = self.named(primary_key, "-pk")
        self._value = self.named(value, "-vh")
        self._foreign_key = self.named(foreign_key, "-fk")
        # All inputs of a task have its number, also where a change comes out of a cache and not from a record.
        self._partition = int(context.task_id.rpartition("_")[2])

    def process(self, batch: RecordBatch) -> Output:
        """Return the subscriptions, by foreign key."""
        batch = joinable(self, batch, versioned=self._versioned)
        key_bytes = self._primary_key.keys_of(batch)
        old_values = batch.old_values or [None] * len(batch)

        def subscriptions(index: int) -> list[_Addressed]:
            key, new = batch.keys[index], batch.values[index]
            messages = self._messages(key, old_values[index], new)
            if not messages:
                return []
            data = self._primary_key(key) if key_bytes is None else cast("bytes", key_bytes[index])
            row_hash = None if new is None else hash128(self._value(new))
            return [
                (target, target_bytes, Subscription(row_hash, instruction, data, self._partition))
                for target, target_bytes, instruction in messages
            ]

        lists: list[list[_Addressed]] = [[] for _ in range(len(batch))]
        for index, messages in self.each(batch, subscriptions):
            lists[index] = messages
        flat = list(chain.from_iterable(lists))
        if not flat:
            return None
        output = spread(batch, lists).with_keys(
            [target for target, _, _ in flat], [message for _, _, message in flat]
        )
        return self._foreign_key.note_keys(output, [data for _, data, _ in flat])

    def _messages(
        self, key: Any, old: Any, new: Any
    ) -> list[tuple[Any, bytes | None, Instruction]]:
        """Return (foreign key, its bytes, instruction) of what a changed row sends."""
        if old is None and new is None:
            return []
        before, before_bytes = self._target(key, old)
        after, after_bytes = self._target(key, new)
        moved = before is not None and before_bytes != after_bytes
        forget = (before, before_bytes, Instruction.DELETE_KEY_NO_PROPAGATE)
        if self._left_join:
            # Also to no key at all: the answer, which has no value, is the row's result then.
            asked = (after, after_bytes, Instruction.PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE)
            return [forget, asked] if moved else [asked]
        if new is not None and after is None:
            self.context.dropped(1, "null foreign key")
        if after is None:
            gone = (before, before_bytes, Instruction.DELETE_KEY_AND_PROPAGATE)
            return [] if before is None else [gone]
        if moved:
            # Nobody knows whether the row had a result; a missing row of the other table has to delete it.
            asked = (after, after_bytes, Instruction.PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE)
            return [forget, asked]
        return [(after, after_bytes, Instruction.PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE)]

    def _target(self, key: Any, value: Any) -> tuple[Any, bytes | None]:
        if value is None:
            return None, None
        extract = self._extract
        target = extract.call(key, value) if extract.takes_key else extract.call(value)
        return target, None if target is None else self._foreign_key(target)


class SubscriptionReceive(ForeignKeyOperator):
    """Keeps the subscriptions by foreign key, and gives them on to be answered."""

    _buffer: CommitBuffer

    def __init__(
        self, topics: ForeignKeyTopics, store_name: str, foreign_key_serde: SerdePort
    ) -> None:
        super().__init__(topics)
        self._store_name = store_name
        self._foreign_key_serde = foreign_key_serde

    def init(self, context: NodeContext) -> None:
        """Look up the store."""
        super().init(context)
        self._buffer = context.store(self._store_name).buffer
        self._foreign_key = self.named(self._foreign_key_serde, "-fk")

    def process(self, batch: RecordBatch) -> Output:
        """Return the same subscriptions."""
        batch = self.kept(batch, list(map(_is_addressed, batch.keys, batch.values)), "null key")
        key_bytes = self._foreign_key.keys_of(batch)

        def keep(index: int) -> None:
            key, subscription = batch.keys[index], batch.values[index]
            if key is None:  # a row that points nowhere waits for nothing
                return
            data = self._foreign_key(key) if key_bytes is None else cast("bytes", key_bytes[index])
            self._buffer.put(
                combined_key(data, subscription.primary_key),
                None if subscription.instruction.deletes else subscription,
                batch.timestamps[index],
            )

        kept = [index for index, _ in self.each(batch, keep)]
        return batch if len(kept) == len(batch) else batch.take(kept)


def _is_addressed(key: Any, subscription: Subscription | None) -> bool:
    return subscription is not None and (
        key is not None
        or subscription.instruction is Instruction.PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE
    )


class _Responding(ForeignKeyOperator):
    """What makes responses: both of the other table's serdes, and the left key's."""

    def __init__(
        self,
        topics: ForeignKeyTopics,
        primary_key_serde: SerdePort,
        foreign_value_serde: SerdePort,
    ) -> None:
        super().__init__(topics)
        self._response_serdes = (primary_key_serde, foreign_value_serde)

    def init(self, context: NodeContext) -> None:
        """Give the serdes their names."""
        super().init(context)
        primary_key, foreign_value = self._response_serdes
        self._primary_key = self.named(primary_key, "-pk")
        self._foreign_value = self.of_response(foreign_value)

    def responses(
        self, batch: RecordBatch, keys: list[Any], key_bytes: list[bytes | None], values: list[Any]
    ) -> RecordBatch:
        """Return the batch with responses by primary key in the place of its records."""
        return self._primary_key.note_keys(batch.with_keys(keys, values), key_bytes)


class SubscriptionJoin(_Responding):
    """Answers subscriptions from the other table."""

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
        """Bind the view of the other table."""
        super().init(context)
        self._foreign_table = self._view.init(context)

    def process(self, batch: RecordBatch) -> Output:
        """Return the responses, by primary key; a result is as new as the newer of both rows."""
        batch = batch.select(
            [
                subscription.instruction is not Instruction.DELETE_KEY_NO_PROPAGATE
                for subscription in batch.values
            ]
        )
        if not len(batch):
            return None
        batch, rows, times = look_up(self, self._foreign_table, batch)

        def respond(index: int) -> tuple[Any, Response] | None:
            subscription: Subscription = batch.values[index]
            row = rows[index]
            if (
                row is None
                and subscription.instruction is Instruction.PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE
            ):
                return None
            if subscription.instruction is Instruction.DELETE_KEY_AND_PROPAGATE:
                row = None
            value = None if row is None else self._foreign_value(row)
            response = Response(subscription.hash, value, subscription.primary_partition)
            return self._primary_key.read(subscription.primary_key), response

        answers = [
            (index, answer) for index, answer in self.each(batch, respond) if answer is not None
        ]
        if not answers:
            return None
        key_bytes = [batch.values[index].primary_key for index, _ in answers]
        output = batch.take([index for index, _ in answers])
        output.timestamps = [max(batch.timestamps[index], times[index]) for index, _ in answers]
        return self.responses(
            output,
            [key for _, (key, _) in answers],
            key_bytes,
            [response for _, (_, response) in answers],
        )


class ForeignTableJoin(_Responding):
    """Answers all subscriptions to a row of the other table again when the row has changed."""

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
        """Look up the subscriptions."""
        super().init(context)
        self._buffer = context.store(self._store_name).buffer
        self._foreign_key = self.named(self._foreign_key_serde, "-fk")

    def process(self, batch: RecordBatch) -> Output:
        """Return the responses, by primary key; they are as new as the change."""
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
        for index, answers in self.each(batch, answer):
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
    """Joins responses with the left rows that asked for them."""

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
        """Bind the view of the left table."""
        super().init(context)
        value, foreign_value = self._serdes
        self._value = self.named(value, "-vh")
        self._foreign_value = self.of_response(foreign_value)
        self._table = self._view.init(context)

    def process(self, batch: RecordBatch) -> Output:
        """Return the results; answers to what the left row was before are dropped."""
        whole = [
            key is not None and response is not None
            for key, response in zip(batch.keys, batch.values, strict=True)
        ]
        batch = self.kept(batch, whole, "null key or value")
        if not len(batch):
            return None
        batch, rows, _ = look_up(self, self._table, batch)

        def join(index: int) -> tuple[bool, Any]:
            response: Response = batch.values[index]
            row = rows[index]
            if response.hash != (None if row is None else hash128(self._value(row))):
                return False, None
            return True, self._joined(batch.keys[index], row, response.foreign_value)

        joined = list(self.each(batch, join))
        results = [(index, result) for index, (current, result) in joined if current]
        if len(results) < len(joined):
            self.context.dropped(len(joined) - len(results), "response to an older row")
        if not results:
            return None
        return batch.take([index for index, _ in results]).with_values(
            [result for _, result in results]
        )

    def _joined(self, key: Any, row: Any, foreign_value: bytes | None) -> Any:
        if foreign_value is None and (row is None or not self._left_join):
            return None
        foreign = None if foreign_value is None else self._foreign_value.read(foreign_value)
        joiner = self._joiner
        return joiner.call(key, row, foreign) if joiner.takes_key else joiner.call(row, foreign)
