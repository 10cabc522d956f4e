"""Worker input: one source for the buffers of all running tasks, with back-pressure and lag."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from tidewheel.rebalance.model import TopicPartition, position_key
from tidewheel.rebalance.protocol.rest import Rest
from tidewheel.tasks.errors import MissingSourceTopicError
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan, is_matched
from tidewheel.tasks.kafka.ports import Clock, RecordSource
from tidewheel.tasks.kafka.shared_reader import SharedReader, partition_of
from tidewheel.tasks.key_ranges.shard_records import ShardDeal
from tidewheel.tasks.task.partition_group import PartitionBuffer
from tidewheel.tasks.task.task import Task
from tidewheel.tasks.task.worker_settings import InputCheck, WorkerSettings

_log = logging.getLogger(__name__)
#: After a source topic was deleted: seconds until a plan without it must arrive, and between
#: requests for one.
_PLAN_TIMEOUT_S: Final = 60.0
_REQUEST_INTERVAL_S: Final = 1.0

#: Seconds to wait for a larger batch after fewer than `_FEW_RECORDS` records, if outputs appear
#: with the commit anyway.
_GATHER_S: Final = 0.01
_FEW_RECORDS: Final = 500

#: Seconds until busy partitions pause: others may queue behind them.
_POLL_INTERVAL_S: Final = 1.0


class WorkerInput:
    """Input of a worker; only its loop's thread calls it.

    Attributes:
        check: Checks the first records of each partition for keys in wrong partitions.
        keeps_up: True if tasks had few buffered records after the last fetch.
    """

    def __init__(
        self,
        source: RecordSource,
        settings: WorkerSettings,
        clock: Clock,
        *,
        gathers: bool,
    ) -> None:
        self.check: InputCheck | None = None
        self.source = source
        self._reader = SharedReader(source)
        self.owners: dict[TopicPartition, Task] = {}
        self._settings = settings
        self._clock = clock
        self._gathers = gathers
        self._gather_until_s = 0.0
        self.keeps_up = False
        self._polled_s = 0.0
        #: Paused partitions, and the records at which each resumes.
        self._throttled: dict[TopicPartition, int] = {}
        self._rest: Rest | None = None
        source.assign({})

    def add(self, task: Task, offsets: Mapping[TopicPartition, int]) -> None:
        self.owners.update(dict.fromkeys(task.inputs, task))
        self._reader.add(offsets)
        for partition in task.inputs:
            self._apply_rest(partition, task, offsets[partition])

    def set_rest(self, rest: Rest | None) -> None:
        """Stop taking external input, or take it again (None)."""
        self._rest = rest
        positions = self._reader.positions() if self.owners else {}
        for partition, task in self.owners.items():
            self._apply_rest(partition, task, positions[partition])

    def _apply_rest(self, partition: TopicPartition, task: Task, position: int) -> None:
        buffer = task.group.buffers[partition]
        if self._rest is None:
            if buffer.stop is not None:
                buffer.open()
        elif partition.topic in task.plan.external_topics:
            until = self._rest.until.get(position_key(partition.whole))
            buffer.close(buffer.stop if until is None else until, position)

    def has_reached(self, partition: TopicPartition, offset: int) -> bool:
        """Return True if a rest demands no record of this input from `offset` on."""
        return self._rest is None or offset >= self._rest.until.get(
            position_key(partition.whole), 0
        )

    def findings(self, task: Task) -> str:
        if self.check is None:
            return ""
        return self.check.findings({partition.topic for partition in task.inputs})

    def remove(self, task: Task) -> None:
        self._remove(partition for partition in task.inputs if self.owners.get(partition) is task)

    def forget(self, topic: str) -> None:
        """Stop reading a deleted topic; its offsets can no longer be committed."""
        self._remove(partition for partition in self.owners if partition.topic == topic)

    def _remove(self, partitions: Iterable[TopicPartition]) -> None:
        dropped = sorted(partitions)
        for partition in dropped:
            del self.owners[partition]
            self._throttled.pop(partition, None)
        self._reader.remove(dropped)

    def gather_s(self, ready: Iterable[Task]) -> float:
        """Return the seconds to wait for more input; 0 if a ready task has records."""
        left_s = self._gather_until_s - self._clock.monotonic_s()
        return 0.0 if left_s <= 0 or any(task.group.records for task in ready) else left_s

    def fetch(self, ready: Collection[Task], idle_s: Callable[[], float]) -> int:
        """Move arrived records to the tasks' buffers; return their number.

        Waits up to `idle_s()` seconds unless a ready task has records. Other tasks do not count:
        they may wait for records that this fetch reads.
        """
        buffered = sum(task.group.records for task in ready)
        now_s = self._clock.monotonic_s()
        most = self._settings.max_poll_records
        if buffered >= most and self._unpaused(ready) >= most:
            self.keeps_up = False
            if now_s < self._polled_s + _POLL_INTERVAL_S or not self._pause_busy():
                return 0
        self._polled_s = now_s
        consumed = 0
        timeout_s = 0.0 if buffered else idle_s()
        for chunk in self.source.poll(self._settings.max_poll_records, timeout_s):
            if self.check is not None and partition_of(chunk) in self.check.waiting:
                self.check.sample(chunk)
            consumed += len(chunk)
            deal = ShardDeal(chunk)
            for at, share in self._reader.shares(chunk):
                task = self.owners.get(at)
                if task is None:  # prefetched for a revoked task
                    continue
                own = deal.own(share, at.shard) if task.is_dealt else share
                if own is not None:
                    task.group.add(own)
                    self._throttle(at, task)
        self.keeps_up = buffered + consumed < min(_FEW_RECORDS, self._settings.max_poll_records)
        gathers = self._gathers and self.keeps_up and consumed > 0
        self._gather_until_s = self._clock.monotonic_s() + _GATHER_S if gathers else 0.0
        self._release()
        return consumed

    def _throttle(self, partition: TopicPartition, task: Task) -> None:
        buffer = task.group.buffers[partition]
        size_bytes = buffer.bytes + buffer.waiting_bytes
        records = buffer.records + buffer.waiting_records
        full = (
            size_bytes >= self._settings.buffered_bytes_per_partition
            or records >= self._settings.buffered_records_per_partition
        )
        if full:
            self._pause([partition], self._settings.buffered_records_per_partition)

    def _unpaused(self, ready: Iterable[Task]) -> int:
        return sum(
            buffer.records
            for task in ready
            for partition, buffer in task.group.buffers.items()
            if partition not in self._throttled
        )

    def _pause(self, partitions: Iterable[TopicPartition], full: int) -> None:
        paused = sorted(set(partitions) - self._throttled.keys())
        if paused:
            self._throttled |= dict.fromkeys(paused, full // 4)
            self._reader.pause(paused)

    def _pause_busy(self) -> bool:
        """Pause busy partitions; return False if none is idle."""
        records = {each: task.group.buffers[each].records for each, task in self.owners.items()}
        if all(records.values()):
            return False
        mean = sum(records.values()) / len(records)
        busy = (partition for partition, count in records.items() if count > mean)
        self._pause(busy, self._settings.max_poll_records)
        return True

    def _release(self) -> None:
        drained = [
            partition
            for partition, records in self._throttled.items()
            if self._is_drained(self.owners[partition].group.buffers[partition], records)
        ]
        if drained:
            for partition in drained:
                del self._throttled[partition]
            self._reader.resume(drained)

    def _is_drained(self, buffer: PartitionBuffer, records: int) -> bool:
        size_bytes = buffer.bytes + buffer.waiting_bytes
        few_bytes = size_bytes <= self._settings.buffered_bytes_per_partition // 4
        return few_bytes and buffer.records + buffer.waiting_records <= records

    def update_lags(self, tasks: Collection[Task]) -> None:
        waiting = [task for task in tasks if task.group.waits]
        if waiting:
            # Lag to the last stable offset, as in Kafka Streams: an open transaction may never end.
            positions = self._reader.positions()
            ends = self._reader.of_inputs(self.source.stable_offsets())
            lags = {
                partition: max(end - positions[partition], 0) for partition, end in ends.items()
            }
            for task in waiting:
                task.group.update_lags(lags)

    def offsets(self) -> dict[TopicPartition, int]:
        """Return the offsets to commit, past trailing transaction markers, else lag remains."""
        positions = self._reader.positions() if self.owners else {}
        offsets: dict[TopicPartition, int] = {}
        for partition, task in self.owners.items():
            position, stop = positions.get(partition, -1), task.group.buffers[partition].stop
            position = position if stop is None else min(position, stop)
            offsets[partition] = task.offset_to_commit(partition, position)
        return offsets

    def lags(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        ends = self._reader.of_inputs(self.source.end_offsets())
        return {
            partition: max(ends[partition] - offset, 0)
            for partition, offset in offsets.items()
            if partition in ends
        }


class DeletedTopics:
    """Deleted source topics: the worker reads the others until a plan without them arrives.

    `check_topics` requests that plan.
    """

    def __init__(
        self,
        work: WorkerInput,
        plan: ApplicationPlan,
        clock: Clock,
        check_topics: Callable[[], None],
    ) -> None:
        self._work = work
        self._plan = plan
        self._clock = clock
        self._check_topics = check_topics
        self._error: MissingSourceTopicError | None = None
        self._deadline_s = 0.0
        self._next_request_s = 0.0

    def fetch(self, ready: Collection[Task], idle_s: Callable[[], float]) -> int:
        """Call `WorkerInput.fetch`; stop reading a deleted topic that a pattern matched."""
        try:
            return self._work.fetch(ready, idle_s)
        except MissingSourceTopicError as error:
            if error.topic is None or not is_matched(self._plan, error.topic):
                raise
            _log.warning(
                "topic %s is gone; the other topics of its pattern are still read", error.topic
            )
            self._work.forget(error.topic)
            self._error = error
            self._next_request_s = self._clock.monotonic_s()
            self._deadline_s = self._next_request_s + _PLAN_TIMEOUT_S
            return 0

    def check(self) -> None:
        """Request a plan without the deleted topic; raise if none arrives (it may exist again)."""
        if self._error is None:
            return
        now_s = self._clock.monotonic_s()
        if now_s >= self._deadline_s:
            raise self._error
        if now_s >= self._next_request_s:
            self._next_request_s = now_s + _REQUEST_INTERVAL_S
            self._check_topics()
