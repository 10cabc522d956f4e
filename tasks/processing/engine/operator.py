"""What a node of the executable graph is, and what it may ask of the task around it.

An operator takes a batch and returns a batch: the same records in the same order as if they had come one by one.
It never changes a column it was given.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from tidewheel.tasks.processing.engine.record_batch import RecordBatch

#: What `process` gives back: one batch for all children, one per named child, or nothing.
Output = RecordBatch | Mapping[str, RecordBatch] | None

#: (batch, index, why) -> writes one record that came too late to the dead-letter topic.
LateLetter = Callable[[RecordBatch, int, str], None]

#: The keys of what a node puts out: those that came in; the same with a window each; any.
KeysOut = Literal["same", "windowed", "any"]


class NodeContext(Protocol):
    """What a task offers to one of its nodes."""

    @property
    def node_name(self) -> str:
        """Return the node's name."""
        ...

    @property
    def task_id(self) -> str:
        """Return the task's id, as "0_1"."""
        ...

    @property
    def emit_interval_ms(self) -> int:
        """Return how long to wait, by the wall clock, between two looks for what has become final.

        Join non-matches and on-close results are looked for at most this often; 0 looks at every record.
        """
        ...

    def now_ms(self) -> int:
        """Return the wall clock (ms since the epoch)."""
        ...

    def internal_topic(self, name: str) -> str:
        """Return the real name of an internal topic of the application, as serdes are told it."""
        ...

    def store(self, name: str) -> Any:
        """Return a store of the task that is connected to this node."""
        ...

    def failed(self, batch: RecordBatch, index: int, error: Exception) -> None:
        """Give one record to the processing exception handler.

        Returns if the record is to be skipped; raises `RecordFailedError` if the worker is to stop.
        """
        ...

    def dropped(self, count: int, reason: str, batch: RecordBatch, first: int) -> None:
        """Count records that were dropped by a rule (null keys, late records); `first` is the first one's index in a batch."""
        ...

    def expired(self, reason: str, batch: RecordBatch, index: int) -> None:
        """Report a record whose put a store has dropped and counted."""
        ...

    @property
    def late_letter(self) -> LateLetter | None:
        """Return what keeps a record that is dropped because it is late, once it was counted; None: nobody does."""
        ...


class Operator(ABC):
    """A node's work on batches. One object per task and node."""

    #: May put out more records than it took in for one input (flat_map): such a node numbers them.
    expands: ClassVar[bool] = False
    #: Sends each record to exactly one of its children (split).
    exclusive: ClassVar[bool] = False
    #: Runs an object of the user's that may read and write stores, schedule and commit, as a processor may.
    runs_users_object: ClassVar[bool] = False
    #: Why a task with this node is never cut into key ranges. Empty if it may be: then every row that the node reads or
    #: writes is that of the key of the record at hand. A node that doesn't say so itself counts as one that needs all keys.
    needs_whole_task: str = "it is not known to keep to the keys of its records"
    #: How the keys it puts out go with those that came in.
    keys_out: KeysOut = "same"
    #: Puts out a record for each that came in, at the same time, unless one fails.
    keeps_times: ClassVar[bool] = False
    #: Judges records by the largest timestamp of those that came in before them with a key.
    observes_time: ClassVar[bool] = False
    #: Takes batches of several partitions (`JointRecords`) as if their records came one by one in the batches' `order`, also
    #: towards other nodes that use its stores. A node that doesn't say so gets batches of one partition.
    takes_joint: bool = False
    #: Calls a function of the user's once for each batch, which is the cheaper per record the larger the batch is.
    calls_batches: ClassVar[bool] = False
    #: Whether the time (of such an operator, or of its store) goes on with records that have no value, too.
    times_null_values: ClassVar[bool] = True

    #: Whether what a cache gives back has to go in the order of the last changes, because state below depends on it.
    flushes_in_order = True

    context: NodeContext

    def init(self, context: NodeContext) -> None:
        """Remember the context and look up stores; called once before the first batch."""
        self.context = context

    @abstractmethod
    def process(self, batch: RecordBatch) -> Output:
        """Return what goes to the children. `batch` is never empty."""

    def flush(self, limit: int | None = None) -> RecordBatch | None:  # noqa: ARG002 - for operators with a cache
        """Return what a cache has held back from downstream: all of it (at a commit), or the `limit` oldest keys."""
        return None

    def held_back(self) -> tuple[int, int]:
        """Return (keys, bytes) held back from downstream."""
        return (0, 0)

    def left_over(self) -> None:  # noqa: B027 - most operators hold nothing back
        """Note that what is held back now is held beyond a commit, whose flush has changed it."""

    def awaits(self) -> bool:
        """Return whether it waits for coroutines of the user's."""
        return False

    def blocks(self) -> bool:
        """Return whether it may block its thread: it calls a plain function of the user's, or may wait otherwise."""
        return True

    def rows_erased(self, store: str) -> None:  # noqa: B027 - most operators know of rows what the store says
        """Forget what is known of the rows of a store beside the store itself: some were deleted by an operator's order."""

    def times(self) -> tuple[int, ...]:
        """Return the stream times that must survive a restart (observed, last emitted); -1 for none yet.

        Always as many, in the same order. They are committed with the offsets, so they are those of the records
        processed before the commit.
        """
        return ()

    def restore_times(self, times: tuple[int, ...]) -> None:
        """Go on with what `times` gave before a restart; called after `init`, with as many times."""
        assert not times, "an operator with times of its own takes them back"

    def close(self) -> None:  # noqa: B027 - most operators hold nothing
        """Release what `init` took; called once, also after errors."""


@dataclass(frozen=True, slots=True)
class OperatorSupplier:
    """Makes one operator per task; the DSL's suppliers are of this type, so a topology can be read without running it.

    >>> from tidewheel.tasks.processing.engine.operator import Operator
    >>> class Same(Operator):
    ...     def process(self, batch): return batch
    >>> OperatorSupplier(Same)().process("a batch")
    'a batch'
    """

    operator: type[Operator]
    arguments: tuple[Any, ...] = ()

    def __call__(self) -> Operator:
        """Return a new operator."""
        return self.operator(*self.arguments)
