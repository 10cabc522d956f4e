"""Joins of two tables by key: a change of one side reads the other side's row.

Rules: Kafka Streams' KTableKTableInnerJoin, -LeftJoin, -RightJoin, -OuterJoin and -JoinMerger. A
result has the newer timestamp of both rows. A tombstone is sent where a result may have existed.
Out-of-order changes of a versioned table are left out (KIP-914).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from tidewheel.streams.operators.stateful import TableOperator
from tidewheel.streams.operators.tables.table_view import (
    NO_TIMESTAMP,
    BoundView,
    Failed,
    Rows,
    TableView,
    look_up,
)
from tidewheel.streams.user_functions import UserFunction
from tidewheel.tasks.processing.api.handlers import FAILURES
from tidewheel.tasks.processing.engine.operator import NodeContext, Operator, Output
from tidewheel.tasks.processing.engine.record_batch import RecordBatch, first_none, has_none


class JoinType(NamedTuple):
    """Rows that a result needs; if both rows are missing there is no result.

    >>> INNER.has_result("left", None), LEFT.has_result("left", None), OUTER.has_result(None, "right")
    (False, True, True)
    """

    needs_left: bool
    needs_right: bool

    def has_result(self, left: Any, right: Any) -> bool:
        if left is None:
            return right is not None and not self.needs_left
        return right is not None or not self.needs_right


INNER, LEFT, OUTER = JoinType(True, True), JoinType(True, False), JoinType(False, False)


class Joined(msgspec.Struct, frozen=True):
    kind: JoinType
    joiner: UserFunction

    def __call__(self, key: Any, left: Any, right: Any) -> Any:
        if not self.kind.has_result(left, right):
            return None
        joiner = self.joiner
        return joiner.call(key, left, right) if joiner.takes_key else joiner.call(left, right)


def joinable(operator: Operator, batch: RecordBatch, *, versioned: bool) -> RecordBatch:
    """Drop changes without a key, and changes older than the row of a versioned table."""
    remaining = batch
    if has_none(remaining.keys):
        remaining = remaining.select([key is not None for key in remaining.keys])
        operator.context.dropped(
            len(batch) - len(remaining), "null key", batch, first_none(batch.keys)
        )
    if versioned and remaining.latest is not None:
        newest = remaining.select(remaining.latest)
        if len(newest) < len(remaining):
            operator.context.dropped(
                len(remaining) - len(newest),
                "older than the versioned table's row",
                remaining,
                remaining.latest.index(False),
            )
        remaining = newest
    return remaining


class TableJoin(TableOperator):
    needs_whole_task = ""

    _other: BoundView

    def __init__(self, joined: Joined, other: TableView, versioned: bool, *, is_left: bool) -> None:
        self._joined = joined
        self._versioned = versioned
        self._other_view = other
        self._is_left = is_left
        #: True if a change without the other table's row has no result.
        self._needs_other = joined.kind.needs_right if is_left else joined.kind.needs_left

    def init(self, context: NodeContext) -> None:
        super().init(context)
        self._other = self._other_view.init(context)

    def process(self, batch: RecordBatch) -> Output:
        batch = joinable(self, batch, versioned=self._versioned)
        batch, other_rows, times = look_up(self, self._other, batch)
        old_values: Sequence[Any] = batch.old_values or [None] * len(batch)
        indices: list[int] = []
        new_results: list[Any] = []
        old_results: list[Any] = []
        rows = zip(batch.keys, old_values, batch.values, other_rows, strict=True)
        for index, (key, old, new, other) in enumerate(rows):
            if other is None and (self._needs_other or (new is None and old is None)):
                continue
            try:
                result = self._result(key, new, other)
                old_result = self._result(key, old, other) if self.sends_old_values else None
            except FAILURES as error:
                self.context.failed(batch, index, error)
                continue
            indices.append(index)
            new_results.append(result)
            old_results.append(old_result)
        if not indices:
            return None
        output = batch if len(indices) == len(batch) else batch.take(indices)
        output = output.with_values(new_results, old_results if self.sends_old_values else None)
        output.latest = None
        output.timestamps = [max(batch.timestamps[index], times[index]) for index in indices]
        return output

    def _result(self, key: Any, own_row: Any, other: Any) -> Any:
        left, right = (own_row, other) if self._is_left else (other, own_row)
        return self._joined(key, left, right)


class LeftSide(TableJoin):
    def __init__(self, joined: Joined, right: TableView, versioned: bool) -> None:
        super().__init__(joined, right, versioned, is_left=True)


class RightSide(TableJoin):
    def __init__(self, joined: Joined, left: TableView, versioned: bool) -> None:
        super().__init__(joined, left, versioned, is_left=False)


@dataclass(frozen=True, slots=True)
class JoinedView(TableView):
    """Rows of a join without a store, computed from both tables."""

    joined: Joined
    left: TableView
    right: TableView

    def init(self, context: NodeContext) -> BoundView:
        return _BoundJoin(self.joined, self.left.init(context), self.right.init(context))


class _BoundJoin(BoundView):
    def __init__(self, joined: Joined, left: BoundView, right: BoundView) -> None:
        self._joined = joined
        self._left = left
        self._right = right

    @property
    def versioned(self) -> bool:
        return False

    def get_as_of(
        self, keys: Sequence[Any], timestamps: Sequence[int], *, failed: Failed | None = None
    ) -> Rows:
        raise TypeError(f"a join keeps no versions: {len(keys)} keys, {len(timestamps)} {failed}")

    def get_many(
        self,
        keys: Sequence[Any],
        key_bytes: Sequence[bytes | None] | None = None,
        *,
        failed: Failed | None = None,
    ) -> Rows:
        lefts, left_times = self._left.get_many(keys, key_bytes, failed=failed)
        rights, right_times = self._right.get_many(keys, failed=failed)
        values: list[Any] = []
        times: list[int] = []
        for index, (key, left, right) in enumerate(zip(keys, lefts, rights, strict=True)):
            result = None
            if failed is None or index not in failed:
                try:
                    result = self._joined(key, left, right)
                except FAILURES as error:
                    if failed is None:
                        raise
                    failed[index] = error
            values.append(result)
            times.append(
                NO_TIMESTAMP if result is None else max(left_times[index], right_times[index])
            )
        return values, times
