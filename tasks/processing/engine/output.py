"""Output records as columns of raw bytes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tidewheel.tasks.processing.api.record import Headers, RecordMetadata

#: The producer chooses the partition, by murmur2 of the key.
ANY_PARTITION = -1

#: Columns of at least this many records are passed on as they are, not joined by copying.
_MANY: Final = 256


@dataclass(slots=True, kw_only=True)
class OutputColumns:
    """Records for one topic, in order, until they are produced.

    `source_*` or `inputs(index)` identify the input records for the production exception handler.
    `internal` records are never skipped: they are part of the application's state. A failed
    `dead_letter` causes no second one.
    """

    topic: str
    partitions: int | list[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps: Sequence[int]
    headers: Sequence[Headers] | None = None
    node: str = ""
    task_id: str = ""
    source_topic: str | None = None
    source_partition: int | None = None
    source_offsets: Sequence[int] | None = None
    inputs: Callable[[int], RecordMetadata] | None = None
    internal: bool = False
    dead_letter: bool = False

    def __len__(self) -> int:
        return len(self.values)

    def input_of(self, index: int) -> tuple[str | None, int | None, int | None]:
        if self.inputs is not None:
            return self.inputs(index)
        offset = None if self.source_offsets is None else self.source_offsets[index]
        return self.source_topic, self.source_partition, offset

    def own(self) -> "OutputColumns":
        """Return a copy with lists that `extend` may add to."""
        return replace(
            self,
            keys=list(self.keys),
            values=list(self.values),
            timestamps=list(self.timestamps),
            headers=None if self.headers is None else list(self.headers),
            source_offsets=None if self.source_offsets is None else list(self.source_offsets),
        )

    def extend(self, other: "OutputColumns") -> bool:
        """Append records if all common attributes are equal; return True if they are."""
        if (
            self.topic != other.topic
            or self.node != other.node
            or self.task_id != other.task_id
            or self.partitions != other.partitions
            or self.source_partition != other.source_partition
            or self.source_topic != other.source_topic
            or self.inputs is not None
            or other.inputs is not None
            or self.internal is not other.internal
            or self.dead_letter is not other.dead_letter
            or (self.headers is None) is not (other.headers is None)
            or (self.source_offsets is None) is not (other.source_offsets is None)
        ):
            return False
        _extend(self.keys, other.keys)
        _extend(self.values, other.values)
        _extend(self.timestamps, other.timestamps)
        _extend(self.headers, other.headers)
        _extend(self.source_offsets, other.source_offsets)
        return True


def _extend(column: Sequence[Any] | None, other: Sequence[Any] | None) -> None:
    if other is not None:
        assert isinstance(column, list), "a list of its own"
        column.extend(other)


class OutputRuns:
    """Output columns of which small ones are joined; the order within each topic stays.

    >>> runs = OutputRuns()
    >>> for value in (b"1", b"2"):
    ...     runs.add(OutputColumns(topic="out", partitions=0, keys=[b"k"], values=[value], timestamps=[0]))
    >>> [columns.values for columns in runs.pop()]
    [[b'1', b'2']]
    """

    def __init__(self) -> None:
        self._columns: list[OutputColumns] = []
        self._last: dict[str, OutputColumns] = {}

    def add(self, columns: OutputColumns) -> None:
        last = self._last.get(columns.topic)
        few = len(columns) < _MANY and not isinstance(columns.partitions, list)
        if few and last is not None and last.extend(columns):
            return
        if few:
            self._last[columns.topic] = columns = columns.own()
        elif last is not None:
            del self._last[columns.topic]
        self._columns.append(columns)

    def pop(self) -> list[OutputColumns]:
        columns, self._columns, self._last = self._columns, [], {}
        return columns


def headers_of_changelog(
    count: int, every: Headers, row_headers: Sequence[Headers] | None
) -> Sequence[Headers] | None:
    """Return the headers of changelog records: `own`, or `every` repeated for each.

    >>> headers_of_changelog(2, (("v", b"2"),), None)
    [(('v', b'2'),), (('v', b'2'),)]
    """
    if row_headers is not None:
        return row_headers
    return [every] * count if every else None
