"""`transform_values` of a table: a user's transformer computes values with stores and schedules.

Rules: Kafka Streams' KTableTransformValues. The transformer is called for deleted rows, too. One
transformer serves the changes and the table view of a task.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tidewheel.state_stores.errors import StateStoreError
from tidewheel.streams.operators.tables.table import TableSource
from tidewheel.streams.operators.tables.table_view import BoundView, Failed, Rows, TableView
from tidewheel.tasks.processing.api.handlers import FAILURES
from tidewheel.tasks.processing.api.supplied import NOT_KEYED, is_keyed
from tidewheel.tasks.processing.engine.operator import NodeContext, Output
from tidewheel.tasks.processing.engine.punctuation import Schedule
from tidewheel.tasks.processing.engine.record_batch import RecordBatch
from tidewheel.tasks.processing.engine.transformer import (
    HostingContext,
    RunningTransformer,
    ValueTransformerWithKey,
)

#: Makes a transformer; called once per task.
TransformerSupplier = Callable[[], ValueTransformerWithKey[Any, Any, Any]]


class TableTransformValues(TableSource):
    runs_users_object = True

    def __init__(
        self, supplier: TransformerSupplier, stores: tuple[str, ...], store_name: str | None
    ) -> None:
        super().__init__(store_name)
        self._supplier = supplier
        self._stores = frozenset(stores)
        self.needs_whole_task = "" if is_keyed(supplier) else NOT_KEYED

    def init(self, context: NodeContext) -> None:
        super().init(context)
        self._running = RunningTransformer(self._supplier(), context, self._stores)

    def close(self) -> None:
        self._running.close()

    def punctuate(self, schedule: Schedule, now_ms: int) -> None:
        self._running.punctuate(schedule, now_ms)

    def process(self, batch: RecordBatch) -> Output:
        batch = self.without_nulls(batch, values=False)
        computes_old = self.sends_old_values and not self._store_name
        olds = batch.old_values if computes_old else None
        values: list[Any] = []
        old_values: list[Any] = []
        indices: list[int] = []
        for index, value in enumerate(batch.values):
            try:
                values.append(self._at(batch, index, value))
            except StateStoreError:
                raise
            except FAILURES as error:
                self.context.failed(batch, index, error)
                continue
            indices.append(index)
            if olds is not None:
                old_values.append(self._old(batch, index, olds[index]))
        if len(indices) < len(batch):
            batch = batch.take(indices)
        changed = batch.with_values(values, old_values if computes_old else None)
        return changed if computes_old else super().process(changed)

    def _at(self, batch: RecordBatch, index: int, value: Any) -> Any:
        row = batch.rows[index] if batch.source is not None else 0
        return self._running.transform(
            batch.keys[index], value, batch.timestamps[index], batch.source, row
        )

    def _old(self, batch: RecordBatch, index: int, old: Any) -> Any:
        try:
            return self._at(batch, index, old)
        except StateStoreError:
            raise
        except FAILURES:
            return None

    def look_up(self, key: Any, value: Any, timestamp: int) -> Any:
        """Compute the table view's row from the parent's, which may be missing."""
        return self._running.transform(key, value, timestamp, None, 0)


@dataclass(frozen=True, slots=True)
class TransformValuesView(TableView):
    parent: TableView
    node: str

    def init(self, context: NodeContext) -> BoundView:
        assert isinstance(context, HostingContext), "users' objects run in tasks"
        return _TransformedRows(self.parent.init(context), context, self.node)


class _TransformedRows(BoundView):
    def __init__(self, parent: BoundView, context: HostingContext, node: str) -> None:
        self._parent = parent
        self._context = context
        self._node = node

    @property
    def versioned(self) -> bool:
        return self._parent.versioned

    def get_many(
        self,
        keys: Sequence[Any],
        key_bytes: Sequence[bytes | None] | None = None,
        *,
        failed: Failed | None = None,
    ) -> Rows:
        return self._transformed(
            keys, self._parent.get_many(keys, key_bytes, failed=failed), failed
        )

    def get_as_of(
        self, keys: Sequence[Any], timestamps: Sequence[int], *, failed: Failed | None = None
    ) -> Rows:
        rows = self._parent.get_as_of(keys, timestamps, failed=failed)
        return self._transformed(keys, rows, failed)

    def _transformed(self, keys: Sequence[Any], rows: Rows, failed: Failed | None) -> Rows:
        # Resolved per call: that node may be initialised after this one.
        operator = self._context.operator(self._node)
        assert isinstance(operator, TableTransformValues)
        values: list[Any] = []
        for index, (key, value, timestamp) in enumerate(zip(keys, *rows, strict=True)):
            result: Any = None
            if key is not None and (failed is None or index not in failed):
                try:
                    result = operator.look_up(key, value, timestamp)
                except StateStoreError:
                    raise
                except FAILURES as error:
                    if failed is None:
                        raise
                    failed[index] = error
            values.append(result)
        return values, rows[1]
