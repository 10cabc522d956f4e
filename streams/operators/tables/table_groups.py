"""Grouping a table by other keys, and aggregating the groups: what a row was is taken out, what it is is added.

Rules are Kafka Streams' (KTableRepartitionMap, KTableAggregate, KTableReduce): a row whose group is None or has a None
key or value counts nowhere; if a row's group stays the same, one record carries both values and gives one result, else
the old one is taken out of its group before the new one is added to the other; the result's timestamp is the larger of
the old result's and the record's; a None result deletes the group's row.
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
    """Turns changes of rows into changes of groups, on the way to the repartition topic.

    A row on which the function failed was left out when it was new, so it is in no group that it could be taken out
    of, and the function is not asked about it again.
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
        #: Aggregations of a versioned table count the latest rows only (KIP-914).
        self._latest_only = versioned

    def init(self, context: NodeContext) -> None:
        """Look up what the topic is called."""
        super().init(context)
        self._topic = context.internal_topic(self._bare_topic)

    def process(self, batch: RecordBatch) -> Output:
        """Return one or two changes of groups for each change of a row, or none."""
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
            except FAILURES as error:  # user code: the processing handler decides
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
        except FAILURES:  # user code; the handler was asked when the row was new
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
        """Return whether two groups are one, which is whether they have the same bytes: 1 and 1.0 may not."""
        if type(new) is str and type(old) is str:
            return new == old
        serialize = self._key_serde.serialize
        try:
            return serialize(self._topic, new) == serialize(self._topic, old)
        except FAILURES:  # the sink meets the key that can't be serialised
            return False


class TableAggregate(MaterializedOperator):
    """Keeps an aggregate per group: the old value of a row is subtracted, then the new one is added."""

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
        """Return the new aggregates."""
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
    """Keeps a combined value per group; the first value is the first result."""

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
    """Return a count with one more row in it."""
    return count + 1


def subtract_one(_key: Any, _value: Any, count: int) -> int:
    """Return a count with one row less in it."""
    return count - 1
