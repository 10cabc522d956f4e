"""Sinks outside Kafka: the interface of `KStream.to_sink`, and the batches that it receives."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidewheel.rebalance.model import TopicPartition
from tidewheel.tasks.processing.api.record import Headers


@dataclass(frozen=True, slots=True, eq=False)
class SinkBatch:
    """Rows of one topic partition as columns of equal length, in the order of their offsets.

    `keys` and `values` are deserialised; None is a null key, or a tombstone. `timestamps` are
    milliseconds since the epoch. Rows of one input record (`flat_map`) have the same offset.

    >>> batch = SinkBatch("orders", 0, [7, 8], ["a", "b"], [1, None], [0, 0])
    >>> len(batch), batch.headers_of(0)
    (2, ())
    """

    topic: str
    partition: int
    offsets: Sequence[int]
    keys: Sequence[Any]
    values: Sequence[Any]
    timestamps: Sequence[int]
    #: None if no row has headers.
    headers: Sequence[Headers] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def headers_of(self, row: int) -> Headers:
        """Return the headers of a row, as (name, bytes)."""
        return () if self.headers is None else self.headers[row]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkTaskInfo:
    """The task that a sink serves.

    Attributes:
        sink: Name of the sink's node.
        start: Next offset of each input partition, as committed in Kafka.
    """

    application_id: str
    sink: str
    task_id: str
    start: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that the outside can't accept, such as one that violates a constraint."""

    batch: SinkBatch
    row: int
    error: Exception


class RowsRefused(Exception):  # noqa: N818 - the rows are at fault, not the sink
    """Raised by `Sink.write` and `Sink.flush`: nothing was stored, and these rows never can be.

    The production exception handler decides about each row. If all are skipped, and their dead
    letters are committed, the sink is opened again and receives all other rows again.

    Next step:
        None for a caller: your sink raises it.

    >>> batch = SinkBatch("orders", 0, [7], ["a"], [-1], [0])
    >>> RowsRefused([RefusedRow(batch, 0, ValueError("negative"))]).rows[0].row
    0
    """

    def __init__(self, rows: Sequence[RefusedRow]) -> None:
        super().__init__(f"{len(rows)} rows were refused; the first: {rows[0].error}")
        self.rows = rows


class Sink(ABC):
    """A destination outside Kafka, for `KStream.to_sink`.

    Each task uses a shallow copy of the object, in a thread of the task's own. Acquire connections
    in `open`, not in `__init__`.

    An exception of `open`, `write` or `flush` closes the sink. After a pause it is opened again, and
    receives all rows since its last flush again. An attribute `retry_after_s` of the exception makes
    the pause longer. A `StreamsError` is final and ends the worker.

    >>> class Lines(Sink):
    ...     def open(self, task):
    ...         self.lines = []
    ...     def write(self, batch):
    ...         self.lines.extend(f"{key}={value}" for key, value in zip(batch.keys, batch.values))
    ...     def flush(self, positions):
    ...         print(*self.lines)
    ...         self.lines.clear()
    """

    #: A flush is due at this many rows, or bytes of raw records, or this long after its first row.
    batch_rows: int = 5_000
    batch_bytes: int = 16 * 1024 * 1024
    flush_every_ms: int = 500
    #: Failed attempts in a row before the worker ends; None: tries for ever.
    retries: int | None = None

    @property
    def target(self) -> str:
        """Return the destination for `describe()` and logs, without secrets."""
        return type(self).__name__

    def open(self, task: SinkTaskInfo) -> Mapping[TopicPartition, int] | None:  # noqa: ARG002 - for sinks with positions
        """Connect; return the next offset of each partition that the outside has stored.

        Rows below these offsets are not written again. None: the outside stores no offsets, so rows
        may come twice after a crash.
        """
        return None

    @abstractmethod
    def write(self, batch: SinkBatch) -> None:
        """Receive rows; they need not be stored before `flush` returns."""

    @abstractmethod
    def flush(self, positions: Mapping[TopicPartition, int]) -> None:
        """Store all rows since the last flush, and `positions` with them, atomically if possible.

        `positions` has the next offset of each partition that advanced, also without rows.

        Raises:
            RowsRefused: The outside never accepts these rows; nothing was stored.
            FencedError: Another owner of the task has written meanwhile.
        """

    def close(self) -> None:  # noqa: B027 - most sinks have a connection to close, some have none
        """Release connections. Called after errors too, and once for each `open`."""

    def reset(self, application_id: str) -> None:  # noqa: B027 - for sinks with positions
        """Delete the application's stored positions: `tidewheel reset` calls it."""


#: A sink, or a function without arguments that returns a new one for each task.
SinkOrSupplier = Sink | Callable[[], Sink]


class InMemory(Sink):
    """A sink that appends rows to a list, for tests; all tasks share the list.

    `rows` has (key, value) of each row. `positions` has the next offset of each partition.

    >>> sink = InMemory()
    >>> sink.write(SinkBatch("orders", 0, [7], ["a"], [1], [0]))
    >>> sink.flush({})
    >>> sink.rows
    [('a', 1)]
    """

    batch_rows: int = 1

    def __init__(self) -> None:
        self.rows: list[tuple[Any, Any]] = []
        self.positions: dict[TopicPartition, int] = {}
        self._pending: tuple[tuple[Any, Any], ...] = ()

    def open(self, task: SinkTaskInfo) -> Mapping[TopicPartition, int]:  # noqa: ARG002 - the interface
        """Return the positions of the rows in the list."""
        self._pending = ()
        return dict(self.positions)

    def write(self, batch: SinkBatch) -> None:
        """Keep rows until the flush."""
        self._pending += tuple(zip(batch.keys, batch.values, strict=True))

    def flush(self, positions: Mapping[TopicPartition, int]) -> None:
        """Append the rows."""
        self.rows.extend(self._pending)
        self.positions.update(positions)
        self._pending = ()
