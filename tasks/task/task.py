"""The `Task` protocol: one sub-topology on one partition."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.state_stores.buffers.commit_buffer import Drained
from tidewheel.tasks.erasure import Erasure
from tidewheel.tasks.kafka.internal_topics import SubtopologyPlan
from tidewheel.tasks.key_ranges.range_worker import RangeWorker
from tidewheel.tasks.key_ranges.sealed_work import SealBarrier
from tidewheel.tasks.key_ranges.vector import Vector
from tidewheel.tasks.processing.engine.task_processing import TaskCounters
from tidewheel.tasks.question import Question
from tidewheel.tasks.task.partition_group import PartitionGroup
from tidewheel.tasks.task.state_manager import StateManager
from tidewheel.tasks.task.task_figures import TaskCounts
from tidewheel.tasks.task.task_life import TaskLife

if TYPE_CHECKING:
    from tidewheel.tasks.processing.engine.graph import TaskGraph


class Task(Protocol):
    """Protocol of all tasks.

    `ActiveTask`: the loop's thread processes. `ParallelTask`: a pool does. `SinkTask`: a thread of
    its own writes outside Kafka.

    Attributes:
        next_offsets: Next offset to process per input partition; commits store it.
        partition_times_ms: Largest timestamp per input partition, -1 before the first record.
    """

    task_id: TaskId
    plan: SubtopologyPlan
    stores: StateManager
    group: PartitionGroup
    next_offsets: dict[TopicPartition, int]
    partition_times_ms: dict[TopicPartition, int]
    life: TaskLife
    figures: TaskCounts

    @property
    def inputs(self) -> frozenset[TopicPartition]: ...

    @property
    def is_dealt(self) -> bool:
        """Return True for a shard that gets its own records only (`ShardRecords`)."""

    @property
    def ranges(self) -> Sequence[RangeWorker]: ...

    def start(
        self,
        offsets: Mapping[TopicPartition, int],
        partition_times_ms: Mapping[TopicPartition, int],
        operator_times_ms: tuple[int, ...] = (),
        old_maps: Mapping[TopicPartition, Vector] = ...,
    ) -> None:
        """Start at committed offsets, with restored stores.

        `old_maps` has each key range's progress there: records below it are skipped.
        """

    def ready(self, now_ms: int) -> bool: ...

    def process(self, limit: int, late: Callable[[], bool] = ...) -> int:
        """Process at most `limit` records; return their number."""

    @property
    def calls_batches(self) -> bool:
        """Return True if an operator calls users' functions with batches."""

    def punctuate_wall_clock(self, now_ms: int) -> bool:
        """Run due wall-clock callbacks; return True if there were any."""

    def next_wall_clock_ms(self) -> int | None: ...

    def erase(self, erasure: Erasure) -> None: ...

    def check(self) -> None:
        """Raise the error that ended one of the task's threads; pass on what these found."""

    def halt(self, until_s: float, tick: Callable[[], None]) -> None:
        """Let the task's threads end work in progress, until `until_s` (monotonic) at the latest.

        Calls `tick` every 10 ms.
        """

    def wind_down(self) -> bool:
        """Begin to end, without waiting; return True if nothing outside Kafka is in progress."""

    def answer(self, question: Question) -> None:
        """Answer a query of uncommitted rows; key ranges do so later, in their threads."""

    @property
    def caches(self) -> "TaskGraph | None":
        """Return the graph whose caches the loop flushes; None if key ranges flush theirs."""

    @property
    def counters(self) -> TaskCounters: ...

    @property
    def commit_requested(self) -> bool: ...

    @commit_requested.setter
    def commit_requested(self, requested: bool) -> None: ...

    @property
    def awaits_commit(self) -> bool:
        """Return True if a commit must follow even if it changes nothing else."""

    @property
    def uncommitted_bytes(self) -> int:
        """Return the approximate bytes of uncommitted state changes (key ranges: and outputs)."""

    @property
    def busy(self) -> bool:
        """Return True if records are buffered or, in key ranges, unfinished or uncommitted."""

    @property
    def may_be_ahead(self) -> bool:
        """Return True if the task may process records while a commit is in progress."""

    def request_seals(self) -> SealBarrier | None:
        """Request that ranges seal (hand over) finished work; return the barrier of fast ones."""

    def drain(self) -> dict[str, Drained]: ...

    def stage(self, drained: Mapping[str, Drained], *, joins: bool = False) -> None:
        """Keep drained rows readable until they are on disk. Ranges did so when they sealed."""

    def applied(self) -> None: ...

    def offset_to_commit(self, partition: TopicPartition, position: int) -> int:
        """Return the lowest unprocessed offset, or `position` if the input is read to its end.

        `position` is the reader's, past trailing transaction markers.
        """

    def progress(self, partition: TopicPartition, offset: int) -> Vector:
        """Return each key range's progress to commit; `offset` is from `offset_to_commit`."""

    def committed_time_ms(self, partition: TopicPartition) -> int:
        """Return the largest timestamp of records before the offset to commit."""

    def operator_times_ms(self) -> tuple[int, ...]:
        """Return the stream times of operators and stores for this commit."""

    @property
    def stream_time_ms(self) -> int: ...

    def record_timestamp(self) -> int:
        """Return the timestamp for changelog records of stores whose rows have none."""
