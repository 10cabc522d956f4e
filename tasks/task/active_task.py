"""Active task: processes the records of one task in the loop's thread."""

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Final

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.buffers.commit_buffer import Drained
from tidewheel.tasks.key_ranges.keyed_analysis import counted, joint_ranks
from tidewheel.tasks.key_ranges.vector import Vector
from tidewheel.tasks.processing.engine.graph import TaskGraph
from tidewheel.tasks.processing.engine.position_clock import PositionClock
from tidewheel.tasks.processing.engine.record_batch import (
    JointBatch,
    JointRecords,
    RecordBatch,
    SourceRecords,
    split_joint,
)
from tidewheel.tasks.task.lifecycle import TaskState
from tidewheel.tasks.task.loop_task import LoopTask
from tidewheel.tasks.task.task_parts import TaskParts

_log = logging.getLogger(__name__)

_NO_MAPS: Final[Mapping[TopicPartition, Vector]] = {}


class ActiveTask(LoopTask):
    """A `Task` without key ranges."""

    awaits_commit = False

    def __init__(self, parts: TaskParts) -> None:
        super().__init__(parts)
        #: True while inputs may have records that earlier key ranges processed and this task skips.
        self._is_catching_up = False
        #: Meanwhile gives operators the task's stream time at each record, to judge lateness.
        self._clock: PositionClock | None = None

    @property
    def caches(self) -> TaskGraph | None:
        graph = self.processing.graph
        return graph if graph.may_flush else None

    @property
    def commit_requested(self) -> bool:
        return self.processing.commit_requested

    @commit_requested.setter
    def commit_requested(self, requested: bool) -> None:
        self.processing.commit_requested = requested

    # -- life ------------------------------------------------------------------------------------------------------

    def start(
        self,
        offsets: Mapping[TopicPartition, int],
        partition_times_ms: Mapping[TopicPartition, int],
        operator_times_ms: tuple[int, ...] = (),
        old_maps: Mapping[TopicPartition, Vector] = _NO_MAPS,
    ) -> None:
        self.stores.reject_unsorted_keys()
        stream_time_ms = self._inputs.start(offsets, partition_times_ms, old_maps)
        self._is_catching_up = bool(self._inputs.old_maps)
        self.life.restore_resources.close()
        self.processing.begin(stream_time_ms, operator_times_ms)
        if self._is_catching_up:
            self._start_catching_up(stream_time_ms)
        self.life.cycle.move_to(TaskState.RUNNING)

    def _start_catching_up(self, stream_time_ms: int) -> None:
        counts = counted(self.plan.spec)
        if self._inputs.progress_before and len(self.processing.stream_schedules):
            _log.warning(
                "task %s: its key ranges had different progress at the last commit and are merged into one now; until the slowest "
                "reaches the position of the fastest, stream-time callbacks see keys for which that time had passed; to avoid "
                "this, return to factor 1 at a lag of 0",
                self.task_id,
            )
        if counts is not None:
            for store in self.stores.stores.values():
                store.divide()
            self._clock = PositionClock(counts, self.processing.position_time_ms(stream_time_ms))

    # -- work ------------------------------------------------------------------------------------------------------

    def ready(self, now_ms: int) -> bool:
        return self.group.records > 0 and self.group.ready(now_ms)

    def process(self, limit: int, late: Callable[[], bool] = lambda: False) -> int:
        """See `Task.process`.

        Stops early if a processor requests a commit or, between single records, `late()` is True
        (the loop's turn is over).
        """
        if len(self._inputs.partitions) > 1 and self._takes_joint(limit):
            return self._process_together(limit)
        records = self.group.pop(limit)
        return 0 if records is None else self.process_records(records, late)

    def process_records(
        self, records: SourceRecords, late: Callable[[], bool] = lambda: False
    ) -> int:
        if not self.processing.graph.batched:
            return self._process_singly(records, late)
        self._process_run(records)
        return len(records)

    def _takes_joint(self, limit: int) -> bool:
        if self._is_catching_up:
            return False
        if self.processing.graph.takes_joint:
            return True
        return self._joint_ranks is not None and self.group.is_interleaved(limit)

    @cached_property
    def _joint_ranks(self) -> Mapping[str, int] | None:
        """Return the ranks by which `split_joint` splits joint batches; None to make none."""
        return joint_ranks(self.plan.spec) if self.processing.graph.batched else None

    def _process_together(self, limit: int) -> int:
        runs = self.group.pop_joint(limit)
        if len(runs) == 1:
            return self.process_records(runs[0][0])
        decoded: list[JointBatch] = []
        sources: list[SourceRecords] = []
        for records, places in runs:
            name, batch = self._decode(records)
            if len(batch):
                assert batch.source is not None, "a source batch has a source"
                # The batch's source may be a longer piece, decoded early, than this run.
                first = bisect_left(batch.source.offsets, records.offsets[0])
                sources.append(batch.source)
                decoded.append((name, batch, [places[row - first] for row in batch.rows]))
        if decoded:
            joint = JointRecords(sources)
            for (_, batch, _), start in zip(decoded, joint.starts, strict=True):
                batch.rows = [row + start for row in batch.rows]
                batch.source = joint
            for part in self._joint_parts(decoded):
                self.processing.graph.run_together(part)
        for records, _ in runs:
            self._advance_offset(records)
        done = sum(len(records) for records, _ in runs)
        self.counters.processed += done
        return done

    def _joint_parts(self, batches: list[JointBatch]) -> Iterable[list[JointBatch]]:
        if self.processing.graph.takes_joint:
            return [batches]
        assert self._joint_ranks is not None, "only tasks with ranks make joint batches"
        return split_joint(batches, self._joint_ranks)

    def _process_run(self, records: SourceRecords) -> None:
        own, own_only = records, self._inputs.takes_own_only
        if own_only:
            own = self._inputs.take_unprocessed(records)
            self._observe_time(self._inputs.input_of(records), records.latest_ms)
            name, batch = self._decode(own)
        else:
            name, batch = self._decode(records)
        done = len(own)
        if len(batch):
            if self._is_catching_up and not own_only:
                batch = self._catch_up(name, records, batch)
                done = len(batch)
            self.processing.graph.run(name, batch)
        self._advance_offset(records)
        self.counters.processed += done

    def _process_singly(self, records: SourceRecords, late: Callable[[], bool]) -> int:
        processing = self.processing
        for row in range(len(records)):
            # Decoded singly: a commit in between must not contain dead letters of later records.
            self._process_run(records.slice(row, row + 1))
            processing.punctuate_stream_time()
            if row + 1 < len(records) and (processing.commit_requested or late()):
                self.group.put_back(records.slice(row + 1, len(records)))
                return row + 1
        return len(records)

    def check(self) -> None: ...

    def halt(self, until_s: float, tick: Callable[[], None]) -> None: ...

    def wind_down(self) -> bool:
        return True

    # -- records that earlier key ranges processed ------------------------------------------------------------------

    def _catch_up(self, name: str, records: SourceRecords, batch: RecordBatch) -> RecordBatch:
        # The first batch after catching up still gets the task's stream time at each record.
        # Operators, which have skipped records, continue their own stream times from there.
        self._is_catching_up = bool(self._inputs.old_maps)
        if self._clock is not None and not self._is_catching_up:
            for store in self.stores.stores.values():
                store.unite()
        if self._clock is not None and batch.source is records:
            records.position_times = self._clock.times(name, records, batch)
        return self._inputs.unprocessed(self._inputs.input_of(records), batch)

    # -- commits ---------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return self.group.records > 0

    def stage(self, drained: Mapping[str, Drained], *, joins: bool = False) -> None:
        with self.stores.trusted():
            self.stores.stage(drained, joins=joins)

    def applied(self) -> None: ...

    def offset_to_commit(self, partition: TopicPartition, position: int) -> int:
        if not self.group.buffers[partition].records:
            self.next_offsets[partition] = max(self.next_offsets[partition], position)
        return self.next_offsets[partition]

    def progress(self, partition: TopicPartition, offset: int) -> Vector:
        old = self._inputs.old_maps.get(partition)
        if old is None:
            return Vector.at(offset)
        self._inputs.settle(partition, offset)
        return old.after(offset)

    def committed_time_ms(self, partition: TopicPartition) -> int:
        return self.partition_times_ms[partition]

    def operator_times_ms(self) -> tuple[int, ...]:
        if not self.processing.has_operator_times:
            return ()
        if self._clock is not None and self._is_catching_up:
            # Operators have not seen the records that earlier key ranges processed.
            return self.processing.operator_times_at(self._clock.time_ms)
        return self.processing.operator_times_ms()
