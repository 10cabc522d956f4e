"""Parts of the tasks whose graph runs in the loop's thread."""

from collections.abc import Sequence
from functools import cached_property

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.buffers.commit_buffer import Drained
from tidewheel.tasks.erasure import Erasure
from tidewheel.tasks.key_ranges.range_worker import RangeWorker
from tidewheel.tasks.processing.api.record import RecordMetadata
from tidewheel.tasks.processing.engine.record_batch import RecordBatch, SourceRecords
from tidewheel.tasks.processing.engine.task_processing import TaskCounters, TaskProcessing
from tidewheel.tasks.question import Question
from tidewheel.tasks.task.task_inputs import TaskInputs
from tidewheel.tasks.task.task_life import TaskLife
from tidewheel.tasks.task.task_parts import TaskParts


class LoopTask:
    """Base of `ActiveTask` and `SinkTask`."""

    ranges: Sequence[RangeWorker] = ()

    def __init__(self, parts: TaskParts) -> None:
        self.task_id = parts.task_id
        self.plan = parts.plan
        self.stores = parts.stores
        self._inputs = TaskInputs(parts, self._skip_corrupt, self._count_dropped)
        self.life = TaskLife(
            parts, self._inputs, lambda: self.counters, self._expired_puts, self._close_processing
        )
        self.group = self._inputs.group
        self.next_offsets = self._inputs.next_offsets
        self.partition_times_ms = self._inputs.partition_times_ms
        self.figures = self.life.figures

    def _expired_puts(self) -> int:
        return self.stores.expired_puts

    @cached_property
    def processing(self) -> TaskProcessing:
        return self.life.parts.make_processing(self.figures.metrics)

    def _close_processing(self) -> None:
        if "processing" in self.__dict__:  # else a processor's constructor has failed
            self.processing.graph.close()

    @property
    def inputs(self) -> frozenset[TopicPartition]:
        return self._inputs.partitions

    @property
    def is_dealt(self) -> bool:
        return self._inputs.is_dealt

    @property
    def calls_batches(self) -> bool:
        return self.processing.graph.calls_batches

    @property
    def counters(self) -> TaskCounters:
        return self.processing.counters

    @property
    def stream_time_ms(self) -> int:
        return self.processing.stream_time_ms

    @property
    def uncommitted_bytes(self) -> int:
        return self.stores.uncommitted_bytes

    @property
    def may_be_ahead(self) -> bool:
        return self.stores.may_be_ahead

    def record_timestamp(self) -> int:
        return self.processing.record_timestamp()

    def punctuate_wall_clock(self, now_ms: int) -> bool:
        return self.processing.punctuate_wall_clock(now_ms)

    def next_wall_clock_ms(self) -> int | None:
        return self.processing.wall_clock_schedules.next_due_ms()

    def erase(self, erasure: Erasure) -> None:
        with self.stores.trusted():
            self.processing.erase(erasure)

    def answer(self, question: Question) -> None:
        question.answer(self.stores.uncommitted(question.store))

    def request_seals(self) -> None:
        return None

    def drain(self) -> dict[str, Drained]:
        return self.stores.drain()

    # -- input records -----------------------------------------------------------------------------

    def _decode(self, records: SourceRecords) -> tuple[str, RecordBatch]:
        """Return the source node and the decoded records; advance partition and stream time."""
        partition = self._inputs.input_of(records)
        source = self._inputs.sources[records.topic]
        batch = source.decode(records, self.partition_times_ms[partition])
        if len(batch):
            self._observe_time(partition, max(batch.timestamps))
        return source.spec.name, batch

    def _observe_time(self, partition: TopicPartition, latest_ms: int) -> None:
        times = self.partition_times_ms
        times[partition] = max(times[partition], latest_ms)
        processing = self.processing
        processing.stream_time_ms = max(processing.stream_time_ms, latest_ms)

    def _advance_offset(self, records: SourceRecords) -> None:
        partition = self._inputs.input_of(records)
        self.next_offsets[partition] = records.end_offset

    def _skip_corrupt(self, records: SourceRecords, row: int, error: Exception) -> None:
        if self._inputs.is_processed(records, row):
            return
        self._inputs.refuse(self.life.parts.policy, records, row, error)
        self.counters.skipped += 1

    def _count_dropped(
        self, node: str, count: int, reason: str, first: RecordMetadata | None
    ) -> None:
        self.figures.count_drop(self.counters, node, count, reason, first)
