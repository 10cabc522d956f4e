"""Operators: nodes of the executable graph, and the task's services for them.

An operator maps batches to batches, with the same result as record by record. It never changes an
input column.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from tidewheel.tasks.figures import Emission
from tidewheel.tasks.processing.engine.record_batch import RecordBatch
from tidewheel.tasks.processing.engine.steps import Steps

if TYPE_CHECKING:
    from asyncio import Task

    from tidewheel.tasks.processing.api.call_window import CallPlaces

#: One batch for all children, or one per named child.
Output = RecordBatch | Mapping[str, RecordBatch] | None

#: (batch, index, reason): writes one late record to the dead-letter topic.
LateLetter = Callable[[RecordBatch, int, str], None]

KeysOut = Literal["same", "windowed", "any"]


class NodeContext(Protocol):
    @property
    def node_name(self) -> str: ...

    @property
    def task_id(self) -> str: ...

    @property
    def emit_interval_ms(self) -> int:
        """Return the minimum wall-clock time (ms) between two scans for final results."""
        ...

    def now_ms(self) -> int: ...

    def internal_topic(self, name: str) -> str: ...

    def store(self, name: str) -> Any: ...

    def failed(self, batch: RecordBatch, index: int, error: Exception) -> None:
        """Hand a record to the exception handler; raise `RecordFailedError` to stop the worker."""
        ...

    def dropped(self, count: int, reason: str, batch: RecordBatch, first: int) -> None:
        """Count dropped records; `first` is the first one's index in the batch."""
        ...

    def expired(self, reason: str, batch: RecordBatch, index: int) -> None: ...

    @property
    def late_letter(self) -> LateLetter | None: ...


class Operator(ABC):
    """A node's work on batches; one object per task and node."""

    #: May output several records per input (flat_map).
    expands: ClassVar[bool] = False
    #: Sends each record to exactly one child (split).
    exclusive: ClassVar[bool] = False
    #: Keeps nothing from one batch to the next.
    is_stateless: ClassVar[bool] = False
    #: Runs a user's object, which may use stores, schedule and commit.
    runs_users_object: ClassVar[bool] = False
    #: Reason not to split its task into key ranges. Empty if every row it uses belongs to its
    #: record's key.
    needs_whole_task: str = "it is not known to keep to the keys of its records"
    keys_out: KeysOut = "same"
    #: Outputs one record per input, with the same timestamp.
    keeps_times: ClassVar[bool] = False
    #: Name of the figure that counts its results.
    emission: Emission = ""
    #: Judges lateness by the largest timestamp so far of all records whose key is not None.
    observes_time: ClassVar[bool] = False
    #: Accepts batches that mix records of several partitions (`JointRecords`), sorted by `order`.
    #: In a store that nodes share, a record must not see rows of later records.
    takes_joint: bool = False
    #: Calls a user's function once per batch, which is cheaper.
    calls_batches: ClassVar[bool] = False
    #: Records without a value advance its stream time.
    times_null_values: ClassVar[bool] = True

    #: Flushes its cache in the order of changes, because state downstream depends on it.
    flushes_in_order = True

    #: Places for concurrent calls of its coroutine function; None: one call after the other.
    call_places: "CallPlaces | None" = None

    context: NodeContext

    def init(self, context: NodeContext) -> None:
        """Resolve stores; called once before the first batch."""
        self.context = context

    @abstractmethod
    def process(self, batch: RecordBatch) -> Output:
        """Return the output for the children; `batch` is never empty."""

    def flush(self, limit: int | None = None) -> RecordBatch | None:  # noqa: ARG002 - for operators with a cache
        """Remove and return cached changes: all, or those of the `limit` oldest keys."""
        return None

    def may_flush(self) -> bool:
        """Return True if `flush` may return records; fixed after `init`."""
        return False

    def cache_size(self) -> tuple[int, int]:
        """Return the numbers of cached (keys, bytes)."""
        return (0, 0)

    def mark_committed(self) -> None:  # noqa: B027 - most operators have no cache
        """Mark cached keys: this commit stores their rows, so the buffer may drop the rows."""

    def awaits(self) -> bool:
        """Return True if it has `steps`, which yield coroutines of a user's function."""
        return False

    def steps(self, batch: RecordBatch) -> Steps[Output]:
        """Work like `process`, yielding the coroutines; only if it `awaits`."""
        raise NotImplementedError

    def overlaps_calls(self) -> bool:
        """Return True if its coroutine function may be called for several records at a time."""
        return False

    def awaited_row(self) -> int | None:
        """Return the input row of its oldest call in flight, if it knows. Any thread may ask."""
        return None

    def has_call(self, task: "Task[Any]") -> bool:  # noqa: ARG002 - for operators that overlap calls
        """Return True for the asyncio task of one of its overlapping calls. Any thread may ask."""
        return False

    def blocks(self) -> bool:
        """Return True if it may block its thread, such as in a user's function."""
        return True

    def rows_erased(self, store: str) -> None:  # noqa: B027 - most operators cache no rows
        """Forget cached rows of a store: an erasure deleted some."""

    def times(self) -> tuple[int, ...]:
        """Return the stream times to commit, always in the same order; -1 for none."""
        return ()

    def restore_times(self, times: tuple[int, ...]) -> None:
        """Restore committed `times`; called after `init`."""
        assert not times, "an operator with times of its own takes them back"

    def close(self) -> None:  # noqa: B027 - most operators have no resources
        """Release resources; called once, also after errors."""


@dataclass(frozen=True, slots=True)
class OperatorSupplier:
    """Makes one operator per task; its class shows the operator's kind before any is made.

    >>> from tidewheel.tasks.processing.engine.operator import Operator
    >>> class Same(Operator):
    ...     def process(self, batch): return batch
    >>> OperatorSupplier(Same)().process("a batch")
    'a batch'
    """

    operator: type[Operator]
    arguments: tuple[Any, ...] = ()

    def __call__(self) -> Operator:
        return self.operator(*self.arguments)
