"""Worker input: one source for the buffers of all running tasks, with back-pressure and lag."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from tidewheel.rebalance.model import TopicPartition
from tidewheel.tasks.errors import MissingSourceTopicError
from tidewheel.tasks.internal_topics import ApplicationPlan, is_matched
from tidewheel.tasks.ports import Clock, RecordSource
from tidewheel.tasks.task.task import Task
from tidewheel.tasks.worker_settings import InputCheck, WorkerSettings

_log = logging.getLogger(__name__)
#: So long after the client said that a topic is gone, a plan without it has to be there, and how often it is asked for.
_GIVE_UP_S: Final = 60.0
_ASK_S: Final = 1.0


#: Few records that have come are given this long to become more, where nobody sees a result before a commit: what is done once for
#: a fetch and a slice then serves more of them, and what it would have cost is left to the brokers, whom the commit waits for.
_GATHER_S: Final = 0.01
_FEW: Final = 500


class WorkerInput:
    """The input of a worker. Its loop calls it.

    Args:
        source: The consumer.
        settings: The worker's.
        clock: Time.
        gathers: Whether few records may wait for more.

    Attributes:
        check: Looks at the first records of each partition.
        source: The consumer.
        owners: The running task of each partition that is read.
        keeps_up: Whether tasks had few records after the last fetch, so that they wait for input and not input for them.
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
        self.owners: dict[TopicPartition, Task] = {}
        self._settings = settings
        self._clock = clock
        self._gathers = gathers
        self._gather_until_s = 0.0
        self.keeps_up = False
        self._throttled: set[TopicPartition] = set()
        source.assign({})

    def add(self, task: Task, offsets: Mapping[TopicPartition, int]) -> None:
        self.owners.update(dict.fromkeys(task.inputs, task))
        self.source.add(offsets)

    def findings(self, task: Task) -> str:
        """Return what is wrong with the keys of a task's inputs, empty if nothing was found."""
        return (
            "" if self.check is None else self.check.findings({each.topic for each in task.inputs})
        )

    def remove(self, task: Task) -> None:
        self._drop(each for each in task.inputs if self.owners.get(each) is task)

    def forget(self, topic: str) -> None:
        """Stop reading a deleted topic; its offsets can no longer be committed."""
        self._drop(each for each in self.owners if each.topic == topic)

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        dropped = sorted(partitions)
        for partition in dropped:
            del self.owners[partition]
        self._throttled.difference_update(dropped)
        self.source.remove(dropped)

    def gather_s(self, ready: Iterable[Task]) -> float:
        """Return for how many seconds the next fetch should wait for more to come; these tasks may have something to do."""
        left_s = self._gather_until_s - self._clock.monotonic_s()
        return 0.0 if left_s <= 0 or any(task.group.records for task in ready) else left_s

    def fetch(self, ready: Iterable[Task], idle_s: Callable[[], float]) -> int:
        """Take what has arrived, into the tasks' buffers; return how many records.

        Waits for `idle_s()` seconds if none of the tasks has something to do. Records that wait for those of another
        input are no reason not to fetch: that would wait for ever.
        """
        buffered = sum(task.group.records for task in ready)
        if buffered >= self._settings.max_poll_records:
            self.keeps_up = False
            return 0
        consumed = 0
        timeout_s = 0.0 if buffered else idle_s()
        for chunk in self.source.poll(self._settings.max_poll_records, timeout_s):
            partition = TopicPartition(chunk.topic, chunk.partition)
            task = self.owners.get(partition)
            if task is None:
                continue  # prefetched for a task that is gone
            if self.check is not None and partition in self.check.waiting:
                self.check.sample(chunk)
            task.group.add(chunk)
            consumed += len(chunk)
            self._throttle(partition, task)
        self.keeps_up = buffered + consumed < min(_FEW, self._settings.max_poll_records)
        gathers = self._gathers and self.keeps_up and consumed > 0
        self._gather_until_s = self._clock.monotonic_s() + _GATHER_S if gathers else 0.0
        self._release()
        return consumed

    def _throttle(self, partition: TopicPartition, task: Task) -> None:
        buffer = task.group.buffers[partition]
        full = (
            buffer.bytes >= self._settings.buffered_bytes_per_partition
            or buffer.records >= self._settings.buffered_records_per_partition
        )
        if full and partition not in self._throttled:
            self._throttled.add(partition)
            self.source.pause([partition])

    def _release(self) -> None:
        drained = [
            partition
            for partition in self._throttled
            if self.owners[partition].group.buffers[partition].bytes
            <= self._settings.buffered_bytes_per_partition // 4
            and self.owners[partition].group.buffers[partition].records
            <= self._settings.buffered_records_per_partition // 4
        ]
        if drained:
            self._throttled.difference_update(drained)
            self.source.resume(drained)

    def update_lags(self, tasks: Collection[Task]) -> None:
        """Pass the known lags to tasks that may have to wait for an input."""
        waiting = [task for task in tasks if task.group.waits]
        if waiting:
            # Waiting for what is undecided could take for ever: Kafka Streams doesn't, either.
            positions, ends = self.source.positions(), self.source.stable_offsets()
            lags = {each: max(end - positions[each], 0) for each, end in ends.items()}
            for task in waiting:
                task.group.update_lags(lags)

    def offsets(self) -> dict[TopicPartition, int]:
        """Return what each running partition commits: past control records where everything was processed (H32)."""
        positions = self.source.positions() if self.owners else {}
        offsets: dict[TopicPartition, int] = {}
        for partition, task in self.owners.items():
            offsets[partition] = task.offset_to_commit(partition, positions.get(partition, -1))
        return offsets

    def lags(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the known lag of each partition behind the end of its log."""
        ends = self.source.end_offsets()
        return {
            each: max(ends[each] - offset, 0) for each, offset in offsets.items() if each in ends
        }


class GoneTopics:
    """The input of a worker, whose topics may vanish. Its loop calls it; with a plan without them it begins anew.

    Args:
        work: The input.
        plan: By which the tasks run.
        clock: The worker's.
        look: Has the cluster's topics looked at soon.
    """

    def __init__(
        self, work: WorkerInput, plan: ApplicationPlan, clock: Clock, look: Callable[[], None]
    ) -> None:
        self._work = work
        self._plan = plan
        self._clock = clock
        self._look = look
        self._error: MissingSourceTopicError | None = None
        self._give_up_s = 0.0
        self._next_ask_s = 0.0

    def fetch(self, ready: Iterable[Task], idle_s: Callable[[], float]) -> int:
        """Do as `WorkerInput.fetch`; a topic of a pattern that is gone is read no more.

        Raises `MissingSourceTopicError` for one that the topology names.
        """
        try:
            return self._work.fetch(ready, idle_s)
        except MissingSourceTopicError as error:
            if error.topic is None or not is_matched(self._plan, error.topic):
                raise
            _log.warning("topic %s is gone, its pattern's other topics are read on", error.topic)
            self._work.forget(error.topic)
            self._error = error
            self._next_ask_s = self._clock.monotonic_s()
            self._give_up_s = self._next_ask_s + _GIVE_UP_S
            return 0

    def check(self) -> None:
        """Ask for a plan without what is gone; raise if none comes, such as where the topic was made anew at once."""
        if self._error is None:
            return
        now_s = self._clock.monotonic_s()
        if now_s >= self._give_up_s:
            raise self._error
        if now_s >= self._next_ask_s:
            self._next_ask_s = now_s + _ASK_S
            self._look()
