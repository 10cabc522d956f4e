"""Sink task: runs stateless steps in the loop's thread, and writes outside Kafka in its own.

Commits never wait for the outside: the offset to commit follows the last flush.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import Final

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.buffers.commit_buffer import Drained
from tidewheel.tasks.key_ranges.vector import Vector
from tidewheel.tasks.processing.api.sink import RowsRefused, SinkTaskInfo
from tidewheel.tasks.processing.api.topology_spec import ExternalSinkSpec
from tidewheel.tasks.processing.engine.error_policy import node_failure
from tidewheel.tasks.processing.engine.record_batch import SourceRecords, memory_bytes
from tidewheel.tasks.processing.engine.sink import ExternalSink
from tidewheel.tasks.task.lifecycle import TaskState
from tidewheel.tasks.task.loop_task import LoopTask
from tidewheel.tasks.task.sink_thread import SinkThread
from tidewheel.tasks.task.sink_writer import Refusal, SinkItem, SinkWriter
from tidewheel.tasks.task.task_parts import TaskParts

_NO_MAPS: Final[Mapping[TopicPartition, Vector]] = {}


class _Letters(Enum):
    """Dead letters of refused rows: rows are written again once these are committed."""

    NONE = 0
    EMITTED = 1
    IN_COMMIT = 2


class SinkTask(LoopTask):
    """A `Task` whose rows leave Kafka.

    Args:
        inline: Write and flush inside `process`, without a thread; the test driver does.
    """

    caches = None

    def __init__(self, parts: TaskParts, spec: ExternalSinkSpec, *, inline: bool) -> None:
        super().__init__(parts)
        self._spec = spec
        self._inline = inline
        self._writer: SinkWriter | None = None
        self._thread: SinkThread | None = None
        self._letters = _Letters.NONE

    @cached_property
    def _end(self) -> ExternalSink:
        operator = self.processing.graph.nodes[self._spec.name].operator
        assert isinstance(operator, ExternalSink)
        return operator

    @property
    def writer(self) -> SinkWriter:
        assert self._writer is not None, "the task has started"
        return self._writer

    @property
    def commit_requested(self) -> bool:
        return self._letters is _Letters.EMITTED

    @commit_requested.setter
    def commit_requested(self, requested: bool) -> None: ...

    # -- life ------------------------------------------------------------------------------------

    def start(
        self,
        offsets: Mapping[TopicPartition, int],
        partition_times_ms: Mapping[TopicPartition, int],
        operator_times_ms: tuple[int, ...] = (),
        old_maps: Mapping[TopicPartition, Vector] = _NO_MAPS,
    ) -> None:
        assert not operator_times_ms, "stateless steps have no times"
        stream_time_ms = self._inputs.start(offsets, partition_times_ms, old_maps)
        self.life.restore_resources.close()
        self.processing.begin(stream_time_ms, ())
        info = SinkTaskInfo(
            application_id=self.processing.application_id,
            sink=self._spec.name,
            task_id=str(self.task_id),
            start=dict(offsets),
        )
        self._writer = SinkWriter(self._spec.make, info, self.partition_times_ms)
        self.figures.sink = self._writer.figures
        if self._inline:
            self._writer.open()
        else:
            self._thread = SinkThread(self._writer, self._spec.name, str(self.task_id))
            self._thread.start()
        self.life.cycle.move_to(TaskState.RUNNING)

    def _close_processing(self) -> None:
        if self._thread is not None:
            self._thread.close()
        elif self._writer is not None:
            self._writer.close()
        super()._close_processing()

    # -- work ------------------------------------------------------------------------------------

    def ready(self, now_ms: int) -> bool:
        has_room = self._thread is None or self._thread.has_room
        return has_room and self.group.records > 0 and self.group.ready(now_ms)

    def process(self, limit: int, late: Callable[[], bool] = lambda: False) -> int:  # noqa: ARG002 - runs are short
        records = self.group.pop(limit)
        return 0 if records is None else self.process_records(records)

    def process_records(self, records: SourceRecords) -> int:
        partition = self._inputs.input_of(records)
        source, batch = self._decode(records)
        if len(batch):
            self.processing.graph.run(source, self._inputs.unprocessed(partition, batch))
        self._advance_offset(records)
        self._put(partition, memory_bytes(records))
        self.counters.processed += len(records)
        return len(records)

    def _put(self, partition: TopicPartition, size_bytes: int) -> None:
        item = SinkItem(
            partition,
            self.next_offsets[partition],
            self.partition_times_ms[partition],
            self._end.pop(),
            size_bytes,
        )
        if self._thread is not None:
            self._thread.put(item)
            return
        try:
            self.writer.write([item])
            self.writer.flush()
        except RowsRefused as refused:
            self._flush_without(refused)

    def _flush_without(self, refused: RowsRefused) -> None:
        while True:
            refusals = self.writer.refusals(refused)
            self._refuse(refusals)
            self.writer.drop(refusals)
            self.writer.close()
            try:
                self.writer.open()
                self.writer.flush()
            except RowsRefused as more:
                refused = more
            else:
                return

    def check(self) -> None:
        if self._thread is None:
            return
        if self._thread.error is not None:
            raise self._thread.error
        if refusals := self._thread.pop_refusals():
            self._refuse(refusals)
            self._letters = _Letters.EMITTED

    def _refuse(self, refusals: Sequence[Refusal]) -> None:
        for refusal in refusals:
            context, record = node_failure(
                refusal.records,
                refusal.index,
                node=self._spec.name,
                task_id=str(self.task_id),
                stage="production",
            )
            raw = (context.raw_key, context.raw_value)
            self.life.parts.policy.apply(context, record, refusal.error, raw=raw)
            self.counters.skipped += 1

    def halt(self, until_s: float, tick: Callable[[], None]) -> None:
        if self._thread is not None:
            self._thread.flush(until_s, tick)

    def wind_down(self) -> bool:
        return self._thread is None or self._thread.wind_down()

    # -- commits ---------------------------------------------------------------------------------

    @property
    def awaits_commit(self) -> bool:
        return self._letters is _Letters.EMITTED

    @property
    def busy(self) -> bool:
        is_behind = self._writer is not None and self._writer.flushed != self.next_offsets
        return self.group.records > 0 or is_behind

    def stage(self, drained: Mapping[str, Drained], *, joins: bool = False) -> None:  # noqa: ARG002 - it has no rows
        if self._letters is _Letters.EMITTED:
            self._letters = _Letters.IN_COMMIT

    def applied(self) -> None:
        if self._letters is _Letters.IN_COMMIT:
            self._letters = _Letters.NONE
            assert self._thread is not None, "only a thread waits for commits"
            self._thread.resume()

    def offset_to_commit(self, partition: TopicPartition, position: int) -> int:
        """Return the offset that the last flush covered.

        Transaction markers after the last record are flushed as a position without rows, so that
        the outside's positions are never behind Kafka's.
        """
        if not self.group.buffers[partition].records and position > self.next_offsets[partition]:
            self.next_offsets[partition] = position
            self._put(partition, 0)
        return self.writer.flushed[partition]

    def progress(self, partition: TopicPartition, offset: int) -> Vector:  # noqa: ARG002 - one range
        return Vector.at(offset)

    def committed_time_ms(self, partition: TopicPartition) -> int:
        return self.writer.flushed_times_ms[partition]

    def operator_times_ms(self) -> tuple[int, ...]:
        return ()
