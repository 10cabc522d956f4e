"""Records as users see them: the record, its place in the input, and its headers."""

from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar, overload

from tidewheel.state_stores.layout.headers import Headers as Headers  # noqa: PLC0414 - records have them: others take it from here
from tidewheel.state_stores.stores.windowed import fully_frozen

K_co = TypeVar("K_co", covariant=True)
V_co = TypeVar("V_co", covariant=True)
K2 = TypeVar("K2")
V2 = TypeVar("V2")


TIMESTAMP_MAX_MS = (1 << 63) - 1

NO_TIMESTAMP = -1


@fully_frozen
@dataclass(frozen=True, slots=True)
class Record(Generic[K_co, V_co]):
    """A key, a value, a timestamp (ms since the epoch) and headers. Frozen; change it with `replace`.

    >>> Record("k", 1, 1_000).replace(value=2)
    Record(key='k', value=2, timestamp=1000, headers=())
    """

    key: K_co
    value: V_co
    timestamp: int
    headers: Headers = ()

    @overload
    def replace(
        self, *, key: K2, value: V2, timestamp: int = ..., headers: Headers = ...
    ) -> "Record[K2, V2]": ...
    @overload
    def replace(
        self, *, key: K2, timestamp: int = ..., headers: Headers = ...
    ) -> "Record[K2, V_co]": ...
    @overload
    def replace(
        self, *, value: V2, timestamp: int = ..., headers: Headers = ...
    ) -> "Record[K_co, V2]": ...
    @overload
    def replace(self, *, timestamp: int = ..., headers: Headers = ...) -> "Record[K_co, V_co]": ...
    def replace(self, **changes: Any) -> "Record[Any, Any]":
        """Return a copy with changed fields."""
        if type(self) is not Record:
            return replace(self, **changes)
        # `dataclasses.replace` takes three times as long, and most processors call this per record.
        fields: dict[str, Any] = {
            "key": self.key,
            "value": self.value,
            "timestamp": self.timestamp,
            "headers": self.headers,
        }
        fields.update(changes)
        return Record(**fields)


class FixedKeyRecord(Generic[K_co, V_co]):
    """A record whose key cannot change; only the task creates one, so forwarded records keep their partition.

    Compared, hashed and read like `Record`.

    >>> record = FixedKeyRecord.of(Record("k", 1, 1_000))
    >>> record.key, record.replace(value=2).value
    ('k', 2)
    >>> record.replace(key="other")
    Traceback (most recent call last):
    ...
    TypeError: the key of a FixedKeyRecord can't change; use process() instead of process_values() for that
    """

    __slots__ = ("_record",)

    _record: Record[K_co, V_co]

    def __init__(self) -> None:
        raise TypeError(
            "a FixedKeyRecord is made by the task only; change one with record.replace(value=...)"
        )

    @classmethod
    def of(cls, record: Record[Any, Any]) -> "FixedKeyRecord[Any, Any]":
        fixed = object.__new__(cls)
        fixed._record = record
        return fixed

    def thawed(self) -> Record[K_co, V_co]:
        return self._record

    @property
    def key(self) -> K_co:
        return self._record.key

    @property
    def value(self) -> V_co:
        return self._record.value

    @property
    def timestamp(self) -> int:
        return self._record.timestamp

    @property
    def headers(self) -> Headers:
        return self._record.headers

    @overload
    def replace(
        self, *, value: V2, timestamp: int = ..., headers: Headers = ...
    ) -> "FixedKeyRecord[K_co, V2]": ...
    @overload
    def replace(
        self, *, timestamp: int = ..., headers: Headers = ...
    ) -> "FixedKeyRecord[K_co, V_co]": ...
    def replace(self, **changes: Any) -> "FixedKeyRecord[K_co, Any]":
        """Return a copy with another value, timestamp or headers."""
        if "key" in changes:
            raise TypeError(
                "the key of a FixedKeyRecord can't change; use process() instead of process_values() for that"
            )
        return self.of(replace(self._record, **changes))

    def __eq__(self, other: object) -> bool:
        other_record: Any = other
        return isinstance(other, FixedKeyRecord) and self._record == other_record._record

    def __hash__(self) -> int:
        return hash(self._record)

    def __repr__(self) -> str:
        return f"FixedKey{self._record!r}"


class RecordMetadata(NamedTuple):
    """Topic, partition and offset of an input record.

    >>> RecordMetadata("orders", 0, 41).offset
    41
    """

    topic: str
    partition: int
    offset: int


class RecordContext(NamedTuple):
    """The record being processed, for dynamic topic names and extractors.

    Topic, partition and offset are None without an input record (a punctuation, a cache flush).

    >>> def by_partition(key: str, value: str, context: RecordContext) -> str:
    ...     return f"out-{context.partition}"
    """

    topic: str | None
    partition: int | None
    offset: int | None
    timestamp: int
    headers: Headers


class ConsumedRecord(NamedTuple):
    """An input record for a timestamp extractor; key and value are deserialised.

    >>> def created_at(record: ConsumedRecord, partition_time_ms: int) -> int:
    ...     return record.value["created_at_ms"]
    """

    topic: str
    partition: int
    offset: int
    key: Any
    value: Any
    timestamp: int
    headers: Headers
