"""What a user sees of one record: the record itself, where it came from, and its headers."""

from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

K_co = TypeVar("K_co", covariant=True)
V_co = TypeVar("V_co", covariant=True)

#: Headers as Kafka keeps them: ordered, names may repeat, values are bytes or null.
Headers = tuple[tuple[str, bytes | None], ...]

#: The largest timestamp that Kafka keeps.
TIMESTAMP_MAX_MS = (1 << 63) - 1

#: The timestamp of a record that has none (the client could not tell).
NO_TIMESTAMP = -1


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

    def replace(self, **changes: Any) -> "Record[Any, Any]":
        """Return a copy with some fields changed."""
        return replace(self, **changes)


class RecordMetadata(NamedTuple):
    """Where an input record stands: topic, partition and offset.

    >>> RecordMetadata("orders", 0, 41).offset
    41
    """

    topic: str
    partition: int
    offset: int


class RecordContext(NamedTuple):
    """What a dynamic topic name or an extractor is told of the record being processed.

    Topic, partition and offset are None where there is no input record (a punctuation, a cache flush).

    >>> def by_partition(key: str, value: str, context: RecordContext) -> str:
    ...     return f"out-{context.partition}"
    """

    topic: str | None
    partition: int | None
    offset: int | None
    timestamp: int
    headers: Headers


class ConsumedRecord(NamedTuple):
    """An input record as a timestamp extractor sees it; key and value are deserialised.

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
