"""Frame rows to records of a source topic: encodes, partitions and orders them. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tidewheel.state_stores.ports import SerdePort
from tidewheel.streams.bulk.bootstrap.rows import plain_of, rank_of, shown, time_of
from tidewheel.streams.errors import ConfigError, SerializationError, StreamsError
from tidewheel.streams.serdes.partitioning import partition_of
from tidewheel.tasks.processing.api.record import Headers

KEY: Final = "key"
VALUE: Final = "value"
TIMESTAMP: Final = "timestamp"
HEADERS: Final = "headers"
PARTITION: Final = "partition"
OFFSET: Final = "offset"

_OPTIONAL: Final = (HEADERS, PARTITION, OFFSET)
_BINARY: Final = "binary"
#: Sorts before all rows of a partition: the text of an error, or a number.
BEFORE_ALL: Final = (-1,)


class Record(NamedTuple):
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


#: Partition and order, and the record or the text of an error.
PlacedRecord = tuple[tuple[int, tuple[Any, ...]], tuple[Any, ...] | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Roles of a frame's columns.

    Attributes:
        values: The column `value`, or the columns that are fields of the value.
        binary: Columns whose bytes are not encoded again.
    """

    values: tuple[str, ...]
    is_whole: bool
    binary: frozenset[str]
    optional: frozenset[str]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((KEY, TIMESTAMP, *self.values, *sorted(self.optional))))


def columns_of(topic: str, dtypes: Sequence[tuple[str, str]]) -> Columns:
    """Return the roles of the columns of a topic's frame, given by name and Spark type.

    >>> columns_of("t", [("key", "string"), ("value", "binary"), ("timestamp", "bigint"), ("offset", "int")]).names
    ('key', 'timestamp', 'value', 'offset')
    >>> columns_of("t", [("key", "string"), ("a", "int"), ("timestamp", "bigint"), ("b", "int")]).values
    ('a', 'b')
    """
    names = [name for name, _ in dtypes]
    listed = ", ".join(names)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"topic {topic}: the frame has several columns {', '.join(twice)}; it has {listed}. Leave one of each, such as "
            "by select()"
        )
    special = {KEY, TIMESTAMP, *_OPTIONAL}
    values = (VALUE,) if VALUE in names else tuple(name for name in names if name not in special)
    missing = [name for name in (KEY, TIMESTAMP) if name not in names]
    if not values:
        missing.append(VALUE)
    if missing:
        raise ConfigError(
            f"topic {topic}: the frame has no column {', '.join(missing)}; it has {listed}. Name the columns `key`, `timestamp` and "
            "`value` (without `value`, all other columns are its fields), such as by selectExpr('id AS key', 'at AS timestamp', "
            "'*'); NULL AS key for records without one"
        )
    return Columns(
        values=values,
        is_whole=VALUE in names,
        binary=frozenset(name for name, kind in dtypes if kind == _BINARY),
        optional=frozenset(_OPTIONAL).intersection(names),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordEncoder:
    """Encodes rows by the serdes of the topic's source.

    Attributes:
        order_by: Columns that order rows of equal times, before key and value.
    """

    topic: str
    partitions: int
    columns: Columns
    key_serde: SerdePort
    value_serde: SerdePort
    order_by: tuple[str, ...] = ()

    def placed(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[PlacedRecord]:
        """Yield the rows as records; an error's text in place of the first bad row and all later ones."""
        for row in rows:
            try:
                yield self._placed(row)
            except StreamsError as error:
                yield (0, BEFORE_ALL), str(error)
                return

    def _placed(self, row: Mapping[str, Any]) -> PlacedRecord:
        columns = self.columns
        key = self._bytes(KEY, self.key_serde, row[KEY], row)
        data = row[VALUE] if columns.is_whole else {name: row[name] for name in columns.values}
        value = self._bytes(VALUE, self.value_serde, data, row)
        timestamp = time_of(
            row[TIMESTAMP], f"topic {self.topic}: timestamp of the row with key {shown(row[KEY])}"
        )
        headers = self._headers(row) if HEADERS in columns.optional else ()
        if OFFSET in columns.optional:
            order: tuple[Any, ...] = (self._whole_number(OFFSET, row),)
        else:
            order = (
                timestamp,
                *(rank_of(row[column]) for column in self.order_by),
                _rank(key),
                _rank(value),
                [(name, _rank(header)) for name, header in headers],
            )
        partition = self._partition(key, value, row)
        return (partition, order), (timestamp, key, value, headers)

    def _bytes(
        self, column: str, serde: SerdePort, data: Any, row: Mapping[str, Any]
    ) -> bytes | None:
        if data is None:
            return None
        if column in self.columns.binary:
            return bytes(data)
        try:
            encoded: bytes | None = serde.serialize(self.topic, plain_of(serde, data))
        except SerializationError as error:
            raise StreamsError(
                f"topic {self.topic}: the {column} of the row with key {shown(row[KEY])} does not fit the serde of the topology: "
                f"{error.fact or error}; give the column the type that the serde takes, such as by a cast"
            ) from error
        return encoded

    def _partition(self, key: bytes | None, value: bytes | None, row: Mapping[str, Any]) -> int:
        if PARTITION not in self.columns.optional:
            # Records without a key are spread by their value, so that each run gives the same.
            return partition_of((value or b"") if key is None else key, self.partitions)
        partition = self._whole_number(PARTITION, row)
        if partition >= self.partitions:
            raise StreamsError(
                f"topic {self.topic}: a row is of partition {partition}, but the topic has {self.partitions} partitions; drop the "
                f"column, or let the topic have more (run_batch: partitions={partition + 1})"
            )
        return partition

    def _whole_number(self, column: str, row: Mapping[str, Any]) -> int:
        number = row[column]
        if type(number) is not int or number < 0:
            raise StreamsError(
                f"topic {self.topic}: {column} of the row with key {shown(row[KEY])} is {number!r}; it must be a whole number "
                "from 0"
            )
        return number

    def _headers(self, row: Mapping[str, Any]) -> Headers:
        headers = row[HEADERS] or ()
        try:
            return tuple(
                (name, None if value is None else bytes(value))
                for name, value in (tuple(header.values()) for header in headers)
            )
        except (AttributeError, TypeError, ValueError):
            raise StreamsError(
                f"topic {self.topic}: headers of the row with key {shown(row[KEY])} are {shown(headers)}; they must be of type "
                "array<struct<key:string,value:binary>>"
            ) from None


def _rank(data: bytes | None) -> tuple[bool, bytes]:
    """Return the sort position of bytes or null."""
    return data is not None, data or b""


def records_of(
    topic: str, placed: Iterable[PlacedRecord], *, has_offsets: bool
) -> Iterator[Record]:
    """Yield the records of a partition; raise `StreamsError` for a bad row or a doubled offset."""
    last: tuple[Any, ...] | None = None
    for (_, order), row in placed:
        if isinstance(row, str):
            raise StreamsError(row)
        if has_offsets and order == last:
            raise StreamsError(
                f"topic {topic}: two rows of one partition have the offset {order[0]}; leave one of them, or drop the column "
                "`offset` (rows are then ordered by their timestamp)"
            )
        last = order
        yield Record(*row)
