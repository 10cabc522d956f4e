"""Frame rows to changelog records: encodes, partitions and deduplicates rows. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from tidewheel.state_stores.layout.segments import SEGMENT_BYTES, TIME_MAX, SegmentLayout
from tidewheel.state_stores.ports import SerdePort
from tidewheel.state_stores.spec import SEGMENTED_KINDS, StoreKind, StoreSpec
from tidewheel.streams.errors import ConfigError, SerializationError, StreamsError
from tidewheel.streams.serdes.partitioning import partition_of
from tidewheel.streams.serdes.windowed import is_windowed

KEY: Final = "key"
VALUE: Final = "value"
TIMESTAMP: Final = "timestamp"
WINDOW_START: Final = "window_start"
SESSION_START: Final = "session_start"
SESSION_END: Final = "session_end"

#: Columns of `state_dataframe` computed from a row's window or version, so not part of a value.
_DERIVED: Final = frozenset({"window_end", "valid_to"})

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

#: Spark names of the types that plain serdes accept.
_SQL_TYPES: Final = {
    "bytes": "BINARY",
    "string": "STRING",
    "int32": "INT",
    "int64": "BIGINT",
    "float64": "DOUBLE",
    "boolean": "BOOLEAN",
}

_TEXT: Final = "STRING"
#: Plain types to which a CSV key's text is converted.
_CONVERTED: Final = frozenset({"int32", "int64", "float64", "boolean"})

#: Most characters of a key in messages.
_SHOWN: Final = 200

#: Existing changelog rows sort before new ones of the same key.
_EXISTING, _NEW = 0, 1

#: Ranks that sort as Spark does: null, values, NaN.
_NULL, _VALUE, _NAN = 0, 1, 2

#: Rank (null, value or NaN) and value.
Rank = tuple[int, Any]

#: Changelog key, version or 0, existing or new, `order_by` rank, value as a tie-breaker. The rank
#: of existing rows is their order in the changelog.
Order = tuple[bytes, int, int, Rank, bytes]

#: Key, value (None deletes), timestamp.
Written = tuple[bytes, bytes | None, int]


class ChangelogRow(NamedTuple):
    """Row that Spark shuffles to its `partition` and sorts by `order`.

    For a key that the changelog has already, `value` is only a mark: None if deleted, else b"".
    """

    partition: int
    order: Order
    value: bytes | None
    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Roles of a frame's columns.

    Attributes:
        is_whole: True if one column is the value itself; else `values` are its fields.
    """

    values: tuple[str, ...]
    is_whole: bool
    timestamp: str | None = None
    start: str | None = None
    end: str | None = None
    order_by: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        optional = (self.timestamp, self.start, self.end, self.order_by)
        return tuple(dict.fromkeys((KEY, *self.values, *filter(None, optional))))


def columns_of(names: Sequence[str], spec: StoreSpec, order_by: str | None = None) -> Columns:
    """Return the roles of a frame's columns; versioned stores use `timestamp` as the version."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"store {spec.name}: the frame has several columns {', '.join(twice)}; it has {', '.join(names)}. Leave one of each, "
            "such as by --select"
        )
    needed = [KEY]
    start = end = None
    if spec.kind is StoreKind.SESSION:
        start, end = SESSION_START, SESSION_END
    elif spec.kind in SEGMENTED_KINDS:
        start = WINDOW_START
    needed += [name for name in (start, end) if name is not None]
    if spec.kind is StoreKind.VERSIONED:
        needed.append(TIMESTAMP)
    special = {*needed, TIMESTAMP, *(_DERIVED if start or TIMESTAMP in needed else ())}
    missing = [name for name in needed if name not in names]
    if order_by is not None and order_by not in names:
        missing.append(order_by)
    is_whole = VALUE in names
    values = (VALUE,) if is_whole else tuple(name for name in names if name not in special)
    if not values:
        missing.append(VALUE)
    if missing:
        raise ConfigError(
            f"store {spec.name}: the frame has no column {', '.join(missing)}; it has {', '.join(names)}. Name the columns "
            "`key` and `value` (without `value`, all other columns are its fields), such as by --select 'id AS key'"
        )
    return Columns(
        values=values,
        is_whole=is_whole,
        timestamp=TIMESTAMP if TIMESTAMP in names else None,
        start=start,
        end=end,
        order_by=order_by,
    )


@dataclass(slots=True, kw_only=True)
class RowEncoder:
    """Encoder of frame rows by the store's serdes; runs on executors.

    Attributes:
        default_timestamp_ms: For rows without a timestamp; window rows use their window's start,
            session rows their session's end.
    """

    spec: StoreSpec
    topic: str
    partitions: int
    columns: Columns
    default_timestamp_ms: int

    def encode(self, row: Mapping[str, Any]) -> ChangelogRow | None:
        """Return the encoded row; None without a value, unless the store is versioned."""
        key = row[KEY]
        if key is None:
            raise StreamsError(
                f"store {self.spec.name}: a row has no key (null); leave such rows out, such as by where('key IS NOT NULL')"
            )
        value = self._value(row)
        is_versioned = self.spec.kind is StoreKind.VERSIONED
        if value is None and not is_versioned:
            return None
        key_bytes = self._encoded(KEY, self.spec.key_serde, key, key)
        data = None if value is None else self._encoded(VALUE, self.spec.value_serde, value, key)
        if key_bytes is None:
            raise StreamsError(
                f"store {self.spec.name}: the key serde made nothing of key {shown(key)}"
            )
        changelog_key, row_time_ms = self._changelog_key(key, key_bytes, row)
        timestamp = self._timestamp(key, row, row_time_ms)
        order_by = None if self.columns.order_by is None else row[self.columns.order_by]
        return ChangelogRow(
            partition_of(self._partitioned_by(key_bytes), self.partitions),
            (
                changelog_key,
                timestamp if is_versioned else 0,
                _NEW,
                rank_of(order_by),
                b"" if self.columns.order_by is None or data is None else data,
            ),
            data,
            timestamp,
        )

    def _value(self, row: Mapping[str, Any]) -> Any:
        if self.columns.is_whole:
            return row[VALUE]
        return {name: row[name] for name in self.columns.values}

    def _encoded(self, column: str, serde: Any, value: Any, key: Any) -> bytes | None:
        try:
            data: bytes | None = serde.serialize(self.topic, plain_of(serde, value))
        except SerializationError as error:
            raise StreamsError(
                f"store {self.spec.name}: the row of key {shown(key)} does not fit the store's serdes: {error.fact or error}; "
                f"{self._type_advice(column, serde)}"
            ) from error
        return data

    def _type_advice(self, column: str, serde: Any) -> str:
        if column == VALUE and not self.columns.is_whole:
            return (
                "give each field the type that the serde takes, such as by --select 'CAST(price AS DOUBLE) AS price', or for text "
                "by --schema 'zip STRING' (a cast to text comes too late where a type was inferred)"
            )
        sql_type = _SQL_TYPES.get(serde.name, "...")
        if sql_type == _TEXT:
            return (
                f"read the column that becomes {column} as text, such as by --schema 'id STRING' (CSV, JSON), or cast it where it "
                f"is no text in the source: --select 'CAST(id AS STRING) AS {column}'"
            )
        return f"give column {column} the type that the serde takes, such as by --select 'CAST({column} AS {sql_type}) AS {column}'"

    def _partitioned_by(self, key: bytes) -> bytes:
        """Return the key bytes that decide the partition: a windowed key's inner key."""
        serde = self.spec.key_serde
        return key[: -serde.tail_bytes] if is_windowed(serde) else key

    def _changelog_key(
        self, key: Any, data: bytes, row: Mapping[str, Any]
    ) -> tuple[bytes, int | None]:
        if self.spec.kind not in SEGMENTED_KINDS:
            return data, None
        layout = SegmentLayout.of(self.spec)
        if self.spec.kind is not StoreKind.SESSION:
            start = self._time(key, row, WINDOW_START)
            return layout.window_key(data, start)[SEGMENT_BYTES:], start
        start, end = self._time(key, row, SESSION_START), self._time(key, row, SESSION_END)
        if end < start:
            raise StreamsError(
                f"store {self.spec.name}: the session of key {shown(key)} ends ({end}) before it starts ({start})"
            )
        return layout.session_key(data, start, end)[SEGMENT_BYTES:], end

    def _timestamp(self, key: Any, row: Mapping[str, Any], row_time_ms: int | None) -> int:
        if self.columns.timestamp is None or row[TIMESTAMP] is None:
            if self.spec.kind is StoreKind.VERSIONED:
                raise StreamsError(
                    f"store {self.spec.name}: the row of key {shown(key)} has no timestamp, which is its version"
                )
            return self.default_timestamp_ms if row_time_ms is None else row_time_ms
        return self._time(key, row, TIMESTAMP)

    def _time(self, key: Any, row: Mapping[str, Any], column: str) -> int:
        return time_of(
            row[column], f"store {self.spec.name}: {column} of the row of key {shown(key)}"
        )


def time_of(value: Any, what: str) -> int:
    """Return a column's time in ms; raise `StreamsError`, which begins with `what`, if it is none.

    >>> time_of(datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC), "start"), time_of(3, "start")
    (2000, 3)
    """
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise StreamsError(
                f"{what} has no time zone; give the column a zone, such as by to_utc_timestamp"
            )
        # Integer arithmetic: float seconds can lose 1 ms, which would select another window.
        value = (value - _EPOCH) // _MILLISECOND
    if type(value) is not int or not 0 <= value <= TIME_MAX:
        raise StreamsError(f"{what} is {value!r}; it must be a timestamp or ms since the epoch")
    return value


def converted_key_type(key_serde: SerdePort) -> str | None:
    name = getattr(key_serde, "name", "")
    return _SQL_TYPES[name] if name in _CONVERTED else None


def rank_of(value: Any) -> Rank:
    """Return the sort position of a value in its column.

    >>> sorted([2.0, float("nan"), None, 1.0], key=rank_of)
    [None, 1.0, 2.0, nan]
    """
    if value is None:
        return _NULL, None
    return (_NAN, None) if value != value else (_VALUE, value)  # noqa: PLR0124 - only NaN differs from itself


def existing_row(
    partition: int, key: bytes, version: int, *, later: int = 0, live: bool = True
) -> ChangelogRow:
    """Return a row for a key of the changelog: `one_per_key` deletes keys that the frame lacks.

    Of several rows of a key, the one with the largest `later` decides if it has a value (`live`).
    """
    rank = _VALUE, later
    return ChangelogRow(
        partition, (key, version, _EXISTING, rank, b""), b"" if live else None, version
    )


def one_per_key(
    rows: Iterable[ChangelogRow],
    spec: StoreSpec,
    *,
    keep_last: bool,
    deleted_at_ms: int,
) -> Iterator[Written]:
    """Yield the changelog records of one partition's sorted rows; `keep_last` allows duplicates.

    `deleted_at_ms` is the timestamp of deletes for keys missing in the frame.
    """
    last: ChangelogRow | None = None
    for row in rows:
        if last is not None and last.order[:2] == row.order[:2]:
            if row.order[2] == _NEW and last.order[2] == _NEW and not keep_last:
                raise StreamsError(_duplicate(spec, row))
        elif last is not None:
            yield from _written(last, spec, deleted_at_ms)
        last = row
    if last is not None:
        yield from _written(last, spec, deleted_at_ms)


def _written(row: ChangelogRow, spec: StoreSpec, deleted_at_ms: int) -> Iterator[Written]:
    key = row.order[0]
    if row.order[2] == _NEW:
        yield key, row.value, row.timestamp
    elif spec.kind is StoreKind.VERSIONED:
        raise StreamsError(version_left(spec, key))
    elif row.value is not None:
        yield key, None, deleted_at_ms


def version_left(spec: StoreSpec, key: bytes) -> str:
    return (
        f"store {spec.name}: an earlier attempt has written a version of key {shown(key)} that is not in the frame now; a "
        "version can't be taken back: run `tidewheel reset` and load the store again"
    )


def _duplicate(spec: StoreSpec, row: ChangelogRow) -> str:
    key: Any = row.order[0]
    if spec.kind in SEGMENTED_KINDS:
        layout = SegmentLayout.of(spec)
        key = layout.key_of(layout.disk_key(key))
    with suppress(StreamsError):
        key = spec.key_serde.deserialize("", key)
    same = "same key and version" if spec.kind is StoreKind.VERSIONED else "same key"
    if spec.kind in SEGMENTED_KINDS:
        same = "same key and window"
    return (
        f"store {spec.name}: several rows have the {same}, such as {shown(key)}; leave one, or name the column whose largest "
        "value wins (--order-by, order_by=)"
    )


def shown(key: Any) -> str:
    """Return a key for a message.

    >>> shown("a" * 300)[-4:]
    'a...'
    """
    text = repr(key)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def plain_of(serde: Any, value: Any) -> Any:
    """Convert a frame's dict to the class that the serde expects."""
    convert = getattr(serde, "from_plain", None)
    return value if convert is None else convert(value)
