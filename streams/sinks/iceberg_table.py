"""`IcebergTable`: rows and positions in one Iceberg transaction."""

import random
import time
from collections.abc import Mapping
from typing import Any, Final

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.failpoints import failpoint
from tidewheel.streams.errors import ConfigError, FencedError, StreamsError
from tidewheel.streams.sinks.arguments import Limits, imported
from tidewheel.streams.sinks.rows import POSITION_COLUMNS, ToRow, by_partition, default_row
from tidewheel.tasks.processing.api.sink import Sink, SinkBatch, SinkTaskInfo

#: Attempts of one flush while other writers commit to the table, and pauses (s) between them.
_ATTEMPTS: Final = 20
_PAUSE_S: Final = 0.05
_PAUSE_MAX_S: Final = 2.0
_NO_RETRIES: Final = "commit.retry.num-retries"


class IcebergTable(Sink):
    """Appends each record to an Iceberg table, which must exist.

    Rows and the next offsets are one Iceberg commit: the offsets are properties of the table. So
    readers see whole flushes, and each record counts once, also after crashes. Flushes of several
    tasks are commits one after the other, so flush seldom. Records without a value are left out.

    Args:
        table: Identifier, such as "shop.orders".
        catalog: Name of pyiceberg's catalog, as configured by its file or environment.
        properties: Properties of the catalog, in place of that configuration.
        to_row: `f(key, value)` -> mapping by column. Default: a value's own fields, or columns
            `key` and `value`. Columns that the table lacks are left out.
        position_columns: Fill the columns `_topic`, `_partition`, `_offset` and `_timestamp` of the
            table.

    >>> IcebergTable("shop.orders").target
    'IcebergTable shop.orders'
    """

    batch_rows = 100_000
    batch_bytes = 64 * 1024 * 1024
    flush_every_ms = 60_000

    def __init__(
        self,
        table: str,
        *,
        catalog: str = "default",
        properties: Mapping[str, str] | None = None,
        to_row: ToRow = default_row,
        position_columns: bool = False,
        batch_rows: int | None = None,
        batch_bytes: int | None = None,
        flush_every_ms: int | None = None,
        retries: int | None = None,
    ) -> None:
        self._pyarrow = imported("pyarrow", "IcebergTable", "iceberg")
        self._catalogs = imported("pyiceberg.catalog", "IcebergTable", "iceberg")
        self._errors = imported("pyiceberg.exceptions", "IcebergTable", "iceberg")
        Limits("IcebergTable", batch_rows, batch_bytes, flush_every_ms, retries).apply(self)
        if not all(part for part in ["." in table, *table.split(".")]):
            raise ConfigError(
                f'IcebergTable: table={table!r} must have namespace and name, such as "shop.orders"'
            )
        self._name = table
        self._catalog = catalog
        self._properties = dict(properties or {})
        self._to_row = to_row
        self._position_columns = position_columns
        self._batches: list[SinkBatch] = []

    @property
    def target(self) -> str:
        """Return the table."""
        return f"IcebergTable {self._name}"

    # -- positions -------------------------------------------------------------------------------

    def open(self, task: SinkTaskInfo) -> Mapping[TopicPartition, int]:
        """Load the table, and return the positions in its properties."""
        self._table = self._load()
        names = self._table.schema().column_names
        missing = [name for name in POSITION_COLUMNS if name not in names]
        if self._position_columns and missing:
            raise StreamsError(
                f"{self.target}: position_columns=True, and the table has no column {', '.join(missing)}; add it"
            )
        self._prefix = _prefix(task.application_id)
        self._start = dict(task.start)
        self._batches = []
        self._stored = self._positions()
        return self._stored

    def _load(self) -> Any:
        try:
            catalog = self._catalogs.load_catalog(self._catalog, **self._properties)
        except (ValueError, self._errors.NotInstalledError) as error:
            if type(error) not in (ValueError, self._errors.NotInstalledError):
                raise  # a subclass: an answer of the catalogue that can't be read, which may pass
            raise StreamsError(
                f"{self.target}: catalog {self._catalog} is not configured ({error}); correct catalog= or properties="
            ) from error
        try:
            return catalog.load_table(self._name)
        except self._errors.NoSuchTableError as error:
            raise StreamsError(
                f"{self.target}: there is no such table in catalog {self._catalog}; create it, or correct table="
            ) from error

    def _positions(self) -> dict[TopicPartition, int]:
        properties = self._table.properties
        return {
            at: int(properties[f"{self._prefix}{at}"])
            for at in self._start
            if f"{self._prefix}{at}" in properties
        }

    # -- rows ------------------------------------------------------------------------------------

    def write(self, batch: SinkBatch) -> None:
        """Keep rows until the flush."""
        self._batches.append(batch)

    def flush(self, positions: Mapping[TopicPartition, int]) -> None:
        """Append the rows and set the positions; try again after commits of other writers."""
        rows = self._rows()
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._commit(rows, positions)
                break
            except self._errors.CommitFailedException:
                if attempt == _ATTEMPTS:
                    raise
                pause_s = min(_PAUSE_S * 2 ** (attempt - 1), _PAUSE_MAX_S)
                time.sleep(pause_s * random.uniform(0.5, 1))  # noqa: S311 - no cryptography
                self._table.refresh()
                if self._positions() != self._stored:
                    raise FencedError(
                        f"{self.target}: another worker has committed rows of this task"
                    ) from None
        self._stored |= positions
        self._batches = []

    def _rows(self) -> Any:
        schema = self._table.schema().as_arrow()
        parts = by_partition(self._batches, self._to_row, position_columns=self._position_columns)
        tables = [part.table(self._pyarrow, schema, self.target) for part in parts.values()]
        return self._pyarrow.concat_tables(tables) if tables else schema.empty_table()

    def _commit(self, rows: Any, positions: Mapping[TopicPartition, int]) -> None:
        # Of this object in memory alone: pyiceberg's own retries would add the rows again after
        # another owner of the task has added them.
        self._table.metadata.properties[_NO_RETRIES] = "0"
        transaction = self._table.transaction()
        # An append without rows too: it requires that no other writer has committed.
        transaction.append(rows)
        transaction.set_properties(
            {f"{self._prefix}{at}": str(offset) for at, offset in positions.items()}
        )
        failpoint("in_sink_flush")
        transaction.commit_transaction()

    def reset(self, application_id: str) -> None:
        """Delete the application's positions; rows stay."""
        table = self._load()
        names = [name for name in table.properties if name.startswith(_prefix(application_id))]
        if names:
            with table.transaction() as transaction:
                transaction.remove_properties(*names)


def _prefix(application_id: str) -> str:
    return f"tidewheel.{application_id}."
