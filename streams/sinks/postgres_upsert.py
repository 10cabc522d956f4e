"""`PostgresUpsert`: rows of a Postgres table, and their positions in the same transaction."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.failpoints import failpoint
from tidewheel.streams.errors import ConfigError, FencedError, StreamsError
from tidewheel.streams.sinks.arguments import Limits, imported
from tidewheel.tasks.processing.api.sink import (
    RefusedRow,
    RowsRefused,
    Sink,
    SinkBatch,
    SinkTaskInfo,
)

if TYPE_CHECKING:
    from psycopg import Connection, Cursor
    from psycopg.sql import Composed

#: libpq's parameters, unless the connection string sets them: a dead server is noticed.
_DEFAULTS: Final = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
#: A stopped worker must not keep its locks: the next owner of its task waits for them.
_SESSION: Final = (
    "set idle_in_transaction_session_timeout = '10s'; set lock_timeout = '10s'; "
    "set client_min_messages = warning"
)
_JSON_TYPES: Final = ("json", "jsonb")


class _Row(NamedTuple):
    """Columns of one row, with True last for a deletion, and its place in the input."""

    columns: tuple[Any, ...]
    batch: SinkBatch
    row: int


class PostgresUpsert(Sink):
    """Writes each record as a row of a Postgres table; a record without a value deletes its row.

    Rows and the next offsets are stored in one transaction, so every record counts exactly once,
    also after crashes. A worker that has lost its task is fenced: the transaction compares the
    stored offsets and their owner.

    The table and a unique index on the key columns must exist. The table of positions is created.

    Args:
        conninfo: libpq's connection string or URL, or a function that returns it at each
            connection, such as `lambda: os.environ["SHOP_DB"]`. Default: libpq's variables
            (`PGHOST`, `PGPASSWORD`, ...). It is never logged.
        table: "orders" or "shop.orders", as the database spells it: "Orders" is another table.
        key: Columns of the record's key: one, or several for a key that is a tuple or a mapping.
        columns: Columns of the value, which is a mapping, or an object with these attributes.
        to_row: `f(key, value)` -> mapping by column, in place of the rules above.
        tombstones: "delete", or "ignore" for records without a value.
        positions_table: Table of the next offsets.

    >>> sink = PostgresUpsert("postgresql://shop@db/shop", table="orders", key="id", columns=["total"])
    >>> sink.target
    'PostgresUpsert orders'
    """

    def __init__(
        self,
        conninfo: str | Callable[[], str] = "",
        *,
        table: str,
        key: str | Sequence[str],
        columns: Sequence[str] = (),
        to_row: Callable[[Any, Any], Mapping[str, Any]] | None = None,
        tombstones: Literal["delete", "ignore"] = "delete",
        positions_table: str = "tidewheel_positions",
        batch_rows: int | None = None,
        batch_bytes: int | None = None,
        flush_every_ms: int | None = None,
        retries: int | None = None,
    ) -> None:
        self._psycopg = imported("psycopg", "PostgresUpsert", "postgres")
        imported("psycopg.sql", "PostgresUpsert", "postgres")
        imported("psycopg.types.json", "PostgresUpsert", "postgres")
        Limits("PostgresUpsert", batch_rows, batch_bytes, flush_every_ms, retries).apply(self)
        self._conninfo = conninfo
        self._table = table
        self._key = (key,) if isinstance(key, str) else tuple(key)
        self._columns = (*self._key, *columns)
        self._to_row = to_row
        self._deletes = tombstones == "delete"
        self._positions_table = positions_table
        if not self._key or len(set(self._columns)) < len(self._columns):
            raise ConfigError(
                f"PostgresUpsert {table}: key={key!r} and columns={list(columns)!r} must name each column once"
            )
        if tombstones not in ("delete", "ignore"):
            raise ConfigError(
                f'PostgresUpsert {table}: tombstones={tombstones!r} must be "delete" or "ignore"'
            )
        for name in (table, positions_table):
            if not all(name.split(".")) or name.count(".") > 1:
                raise ConfigError(
                    f'PostgresUpsert: {name!r} names no table; give a name such as "orders" or "shop.orders"'
                )
        if not callable(conninfo):
            self._parameters()
        self._connection: Connection[Any] | None = None
        self._rows: list[_Row] = []
        self._refused: list[RefusedRow] = []

    @property
    def target(self) -> str:
        """Return the table."""
        return f"PostgresUpsert {self._table}"

    def _parameters(self) -> dict[str, Any]:
        given = self._conninfo() if callable(self._conninfo) else self._conninfo
        try:
            parameters: dict[str, Any] = self._psycopg.conninfo.conninfo_to_dict(given)
        except self._psycopg.ProgrammingError:
            # Its text quotes the connection string, which may have a password.
            raise ConfigError(
                f"PostgresUpsert {self._table}: conninfo is no connection string of libpq; give one such as "
                "'host=db dbname=shop user=app' or 'postgresql://app@db/shop'"
            ) from None
        return _DEFAULTS | parameters

    # -- connection ------------------------------------------------------------------------------

    def open(self, task: SinkTaskInfo) -> Mapping[TopicPartition, int]:
        """Connect, claim the task's positions, and return them."""
        try:
            return self._connect(task)
        except self._psycopg.ProgrammingError as error:
            raise self._set_up_error(error) from error

    def _set_up_error(self, error: Any) -> StreamsError:
        return StreamsError(
            f"{self.target}: the database refuses the set-up ({error.diag.message_primary or error}); correct table=, "
            "columns= and positions_table=, or grant the role select, insert, update and delete on both tables"
        )

    def _connect(self, task: SinkTaskInfo) -> Mapping[TopicPartition, int]:
        self._rows, self._refused = [], []
        self._application = task.application_id
        self._owner = secrets.token_hex(8)
        parameters = self._parameters()
        parameters.setdefault(
            "application_name", f"{task.application_id} {task.sink} {task.task_id}"[:63]
        )
        self._connection = connection = self._psycopg.connect(**parameters, autocommit=True)
        connection.execute(_SESSION)
        self._read_columns(connection)
        self._create_tables(connection)
        self._stored = self._claim(connection, task.start)
        return self._stored

    def _read_columns(self, connection: "Connection[Any]") -> None:
        table = self._quoted(self._table)
        types = dict(
            connection.execute(
                "select attname, atttypid::regtype::text from pg_attribute "
                "where attrelid = to_regclass(%s) and attnum > 0 and not attisdropped",
                [table],
            ).fetchall()
        )
        missing = [column for column in self._columns if column not in types]
        if missing:
            raise StreamsError(
                f"{self.target}: "
                + (
                    f"the table has no column {', '.join(missing)}; add it, or correct key= and columns="
                    if types
                    else "there is no such table in the search path; create it, or correct table="
                )
            )
        unique = connection.execute(
            "select 1 from pg_index where indrelid = to_regclass(%s) and indisunique and indpred is null "
            "and (select array_agg(attname::text order by attname::text) from pg_attribute "
            "where attrelid = indrelid and attnum = any (indkey)) = %s and indnatts = %s",
            [table, sorted(self._key), len(self._key)],
        ).fetchone()
        if unique is None:
            columns = ", ".join(self._key)
            raise StreamsError(
                f"{self.target}: no unique index has exactly the key columns ({columns}); add one: create unique index on "
                f"{self._table} ({columns})"
            )
        self._is_json = [types[column] in _JSON_TYPES for column in self._columns]

    def _create_tables(self, connection: "Connection[Any]") -> None:
        positions = self._identifier(self._positions_table)
        exists = connection.execute(
            "select to_regclass(%s)", [self._quoted(self._positions_table)]
        ).fetchone()
        if exists is None or exists[0] is None:
            errors = self._psycopg.errors
            # `if not exists` fails while another task's creation is not committed yet.
            with suppress(errors.UniqueViolation, errors.DuplicateTable, errors.DuplicateObject):
                connection.execute(
                    self._sql(
                        "create table if not exists {} (application text, target text, topic text, partition int, "
                        "next_offset bigint not null, owner text not null, "
                        "updated_at timestamptz not null default now(), "
                        "primary key (application, target, topic, partition))",
                        positions,
                    )
                )
        connection.execute(
            self._sql(
                "create temp table tidewheel_rows on commit delete rows as "
                "select {}, false as tidewheel_deleted, 0 as tidewheel_number from {} with no data",
                self._list(self._columns),
                self._identifier(self._table),
            )
        )

    def _claim(
        self, connection: "Connection[Any]", start: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Become the owner of the positions; create missing ones at the start of the task.

        Waits for a transaction in progress of the earlier owner.
        """
        claim = self._sql(
            "insert into {} as stored (application, target, topic, partition, next_offset, owner) "
            "values (%s, %s, %s, %s, %s, %s) on conflict (application, target, topic, partition) "
            "do update set owner = excluded.owner returning next_offset",
            self._identifier(self._positions_table),
        )
        stored: dict[TopicPartition, int] = {}
        with connection.transaction():
            for at, offset in sorted(start.items()):
                values = [self._application, self._table, *at, offset, self._owner]
                row = connection.execute(claim, values).fetchone()
                assert row is not None, "an upsert returns its row"
                stored[at] = row[0]
        return stored

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # -- rows ------------------------------------------------------------------------------------

    def write(self, batch: SinkBatch) -> None:
        """Keep rows until the flush."""
        for row, (key, value) in enumerate(zip(batch.keys, batch.values, strict=True)):
            if value is None and not self._deletes:
                continue
            try:
                columns = self._columns_of(key, value)
            except Exception as error:  # noqa: BLE001 - the user's function, or a value without its columns
                self._refused.append(RefusedRow(batch, row, error))
            else:
                self._rows.append(_Row(columns, batch, row))

    def _columns_of(self, key: Any, value: Any) -> tuple[Any, ...]:
        if value is None:
            fields: Mapping[str, Any] = self._key_fields(key)
            found = [fields.get(column) for column in self._columns]
        elif self._to_row is not None:
            fields = self._to_row(key, value)
            found = [fields[column] for column in self._columns]
        else:
            fields = self._key_fields(key)
            found = [
                fields[column] if column in fields else _field(value, column)
                for column in self._columns
            ]
        return (
            *(
                self._psycopg.types.json.Jsonb(item) if is_json and item is not None else item
                for item, is_json in zip(found, self._is_json, strict=True)
            ),
            value is None,
        )

    def _key_fields(self, key: Any) -> dict[str, Any]:
        if key is None:
            raise ValueError("a null key names no row")
        if len(self._key) == 1:
            return {self._key[0]: key}
        if isinstance(key, tuple | list):
            return {column: key[place] for place, column in enumerate(self._key)}
        return {column: _field(key, column) for column in self._key}

    def flush(self, positions: Mapping[TopicPartition, int]) -> None:
        """Store the rows and positions in one transaction."""
        connection = self._connection
        assert connection is not None, "open comes first"
        if self._refused:
            raise RowsRefused(self._refused)
        try:
            with connection.transaction(), connection.cursor() as cursor:
                if self._rows:
                    self._copy(cursor, self._rows)
                self._advance(cursor, positions)
                if self._rows:
                    self._upsert(cursor)
                failpoint("in_sink_flush")
        except (
            self._psycopg.errors.InsufficientPrivilege,
            self._psycopg.errors.GeneratedAlways,
        ) as error:
            raise self._set_up_error(error) from error
        except Exception as error:
            if self._is_of_row(error) and (refused := self._find_refused(connection)):
                raise RowsRefused(refused) from error
            raise
        self._stored |= positions
        self._rows = []

    def _advance(self, cursor: "Cursor[Any]", positions: Mapping[TopicPartition, int]) -> None:
        advance = self._sql(
            "update {} set next_offset = %s, updated_at = now() where application = %s and target = %s "
            "and topic = %s and partition = %s and next_offset = %s and owner = %s",
            self._identifier(self._positions_table),
        )
        for at, offset in sorted(positions.items()):
            before = self._stored[at]
            values = [offset, self._application, self._table, *at, before, self._owner]
            cursor.execute(advance, values)
            if cursor.rowcount != 1:
                raise FencedError(
                    f"{self.target}: another worker owns the positions of {at} now; nothing was stored"
                )

    def _copy(self, cursor: "Cursor[Any]", rows: Sequence[_Row]) -> None:
        columns = self._list((*self._columns, "tidewheel_deleted", "tidewheel_number"))
        with cursor.copy(self._sql("copy tidewheel_rows ({}) from stdin", columns)) as copy:
            for number, row in enumerate(rows):
                copy.write_row((*row.columns, number))

    def _upsert(self, cursor: "Cursor[Any]") -> None:
        """Apply the last row of each key."""
        key, columns = self._list(self._key), self._list(self._columns)
        table = self._identifier(self._table)
        latest = self._sql(
            "select distinct on ({}) * from tidewheel_rows order by {}, tidewheel_number desc",
            key,
            key,
        )
        if self._deletes:
            cursor.execute(
                self._sql(
                    "delete from {} as stored using ({}) as latest where latest.tidewheel_deleted and {}",
                    table,
                    latest,
                    self._joined(" and ", "stored.{0} = latest.{0}", self._key),
                )
            )
        others = self._columns[len(self._key) :]
        update = (
            self._sql("update set {}", self._joined(", ", "{0} = excluded.{0}", others))
            if others
            else self._sql("nothing")
        )
        cursor.execute(
            self._sql(
                "insert into {} ({}) select {} from ({}) as latest where not tidewheel_deleted "
                "on conflict ({}) do {}",
                table,
                columns,
                columns,
                latest,
                key,
                update,
            )
        )

    # -- refused rows ----------------------------------------------------------------------------

    def _is_of_row(self, error: Any) -> bool:
        """Return True if a row may be at fault, not the server or the connection."""
        psycopg = self._psycopg
        if isinstance(error, psycopg.Error):
            unadaptable = isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None
            of_row = (
                psycopg.DataError,
                psycopg.IntegrityError,
                psycopg.errors.RaiseException,
                psycopg.errors.ProgramLimitExceeded,
            )
            return unadaptable or isinstance(error, of_row)
        return isinstance(error, ValueError | TypeError | OverflowError)

    def _find_refused(self, connection: "Connection[Any]") -> list[RefusedRow]:
        """Apply halves of the rows, in order, down to single ones; roll everything back."""
        refused: list[RefusedRow] = []
        pending = [self._rows]
        with connection.transaction(force_rollback=True), connection.cursor() as cursor:
            while pending:
                rows = pending.pop()
                try:
                    with connection.transaction():
                        self._copy(cursor, rows)
                        self._upsert(cursor)
                        cursor.execute("set constraints all immediate")
                        cursor.execute("truncate tidewheel_rows")
                except Exception as error:
                    if not self._is_of_row(error):
                        raise
                    if len(rows) == 1:
                        row = rows[0]
                        refused.append(RefusedRow(row.batch, row.row, self._without_detail(error)))
                    else:
                        middle = len(rows) // 2
                        pending += [rows[middle:], rows[:middle]]
        return refused

    def _without_detail(self, error: Any) -> Exception:
        """Return the error without the server's details, which quote the whole row."""
        is_of_server = isinstance(error, self._psycopg.Error) and error.diag.message_primary
        plain: Exception = type(error)(error.diag.message_primary) if is_of_server else error
        return plain

    def reset(self, application_id: str) -> None:
        """Delete the application's positions in this table."""
        connected = self._psycopg.connect(**self._parameters(), autocommit=True)
        with suppress(self._psycopg.errors.UndefinedTable), connected as connection:
            connection.execute(
                self._sql(
                    "delete from {} where application = %s and target = %s",
                    self._identifier(self._positions_table),
                ),
                [application_id, self._table],
            )

    # -- SQL -------------------------------------------------------------------------------------

    def _sql(self, text: str, *parts: Any) -> "Composed":
        composed: Composed = self._psycopg.sql.SQL(text).format(*parts)
        return composed

    def _identifier(self, name: str) -> Any:
        return self._psycopg.sql.Identifier(*name.split("."))

    def _quoted(self, name: str) -> str:
        quoted: str = self._identifier(name).as_string(None)
        return quoted

    def _list(self, columns: Sequence[str]) -> "Composed":
        return self._joined(", ", "{0}", columns)

    def _joined(self, between: str, text: str, columns: Sequence[str]) -> "Composed":
        parts = [self._sql(text, self._psycopg.sql.Identifier(column)) for column in columns]
        joined: Composed = self._psycopg.sql.SQL(between).join(parts)
        return joined


def _field(value: Any, column: str) -> Any:
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value)[column]
    return getattr(value, column)
