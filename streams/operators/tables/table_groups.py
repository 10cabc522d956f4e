"""Groups of a table by other keys, and their aggregation by subtracting and adding rows.

Rules: Kafka Streams' KTableRepartitionMap, KTableAggregate and KTableReduce. A row counts nowhere
if its group, key or value is None. If its group stays the same, one record with both values gives
one result. Otherwise the old value is subtracted first, then the new one is added elsewhere. A
result has the larger timestamp of the old result and the record.
"""

from collections.abc import Callable
from typing import Any

from tidewheel.state_stores.ports import SerdePort
from tidewheel.streams.operators.stateful import MaterializedOperator
from tidewheel.streams.operators.stateless import paired_or_none
from tidewheel.streams.serdes import for_keys
from tidewheel.streams.serdes.changed import Change
from tidewheel.streams.user_functions import UserFunction
from tidewheel.tasks.processing.api.handlers import FAILURES
from tidewheel.tasks.processing.engine.operator import NodeContext, Operator, Output
from tidewheel.tasks.processing.engine.record_batch import RecordBatch

_Pair = tuple[Any, Any] | None


class TableGroupMap(Operator):
    """Mapper of row changes to group changes for the repartition topic.

    If the function fails for an old value, the row was in no group before.
    """

    expands = True
    needs_whole_task = ""
    keys_out = "any"

    def __init__(
        self, function: UserFunction, key_serde: SerdePort, topic: str, versioned: bool
    ) -> None:
        self._function = paired_or_none(function)
        self._key_serde = for_keys(key_serde)
        self._bare_topic = topic
        self._topic = topic
        #: Aggregations of a versioned table use its latest rows only (KIP-914).
        self._latest_only = versioned

    def init(self, context: NodeContext) -> None:
        super().init(context)
        self._topic = context.internal_topic(self._bare_topic)

    def process(self, batch: RecordBatch) -> Output:
        assert batch.old_values is not None, "the table was asked for old values"
        if self._latest_only and batch.latest is not None:
            batch = batch.select(batch.latest)
        indices: list[int] = []
        keys: list[Any] = []
        changes: list[Change] = []
        positions: list[int] = []
        rows = zip(batch.keys, batch.values, batch.old_values or (), strict=True)
        for index, (key, value, old) in enumerate(rows):
            try:
                new_pair = self._pair(key, value)
            except FAILURES as error:
                self.context.failed(batch, index, error)
                continue
            old_pair = self._old_pair(key, old)
            for position, (group, change) in enumerate(self._changes(new_pair, old_pair)):
                indices.append(index)
                keys.append(group)
                changes.append(change)
                positions.append(position)
        output = batch.take(indices)
        if output.order is not None:
            output.order = [(*o, p) for o, p in zip(output.order, positions, strict=True)]
        return output.with_keys(keys, changes)

    def _pair(self, key: Any, value: Any) -> _Pair:
        if value is None:
            return None
        function = self._function
        pair: _Pair = function.call(key, value) if function.takes_key else function.call(value)
        return None if pair is None or pair[0] is None or pair[1] is None else pair

    def _old_pair(self, key: Any, old: Any) -> _Pair:
        try:
            return self._pair(key, old)
        except FAILURES:
            return None

    def _changes(self, new: _Pair, old: _Pair) -> list[tuple[Any, Change]]:
        if new is not None and old is not None and self._are_same(new[0], old[0]):
            return [(new[0], Change(new[1], old[1]))]
        changes: list[tuple[Any, Change]] = []
        if old is not None:
            changes.append((old[0], Change(None, old[1])))
        if new is not None:
            changes.append((new[0], Change(new[1], None)))
        return changes

    def _are_same(self, new: Any, old: Any) -> bool:
        """Compare groups by serialised bytes: equal keys such as 1 and 1.0 may differ there."""
        if type(new) is str and type(old) is str:
            return new == old
        serialize = self._key_serde.serialize
        try:
            return serialize(self._topic, new) == serialize(self._topic, old)
        except (
            FAILURES
        ):  # Treat them as different groups; the sink then reports the key that does not serialise.
            return False


class TableAggregate(MaterializedOperator):
    times_null_values = False

    def __init__(
        self,
        store_name: str,
        initializer: Callable[[], Any],
        adder: Callable[[Any, Any, Any], Any],
        subtractor: Callable[[Any, Any, Any], Any],
    ) -> None:
        super().__init__(store_name)
        self._initializer = initializer
        self._adder = adder
        self._subtractor = subtractor

    def process(self, batch: RecordBatch) -> Output:
        batch = self.without_nulls(batch, values=True)
        batch, key_bytes = self.with_key_bytes(batch)
        return self.update_each(batch, key_bytes, self._update) if len(batch) else None

    def _update(self, key: Any, change: Change, data: bytes, timestamp: int) -> tuple[Any, int]:
        aggregate = self.buffer.get(data)
        if aggregate is not None:
            timestamp = max(timestamp, self.buffer.timestamp(data))
            if change.old is not None:
                aggregate = self._subtractor(key, change.old, aggregate)
        if change.new is not None:
            aggregate = self._added(key, change.new, aggregate)
        return aggregate, timestamp

    def _added(self, key: Any, value: Any, aggregate: Any) -> Any:
        return self._adder(key, value, self._initializer() if aggregate is None else aggregate)


class TableReduce(TableAggregate):
    def __init__(
        self,
        store_name: str,
        adder: Callable[[Any, Any], Any],
        subtractor: Callable[[Any, Any], Any],
    ) -> None:
        super().__init__(
            store_name,
            lambda: None,
            lambda _key, value, result: value if result is None else adder(result, value),
            lambda _key, value, result: subtractor(result, value),
        )


def add_one(_key: Any, _value: Any, count: int) -> int:
    return count + 1


def subtract_one(_key: Any, _value: Any, count: int) -> int:
    return count - 1
