"""Metrics of a worker's own work."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.tasks.figures import LATENCY_S, Histogram
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.processing.engine.error_policy import ErrorCounts
from tidewheel.tasks.task.task import Task


class CommitTimes(NamedTuple):
    """Durations of a worker's commits; one tuple, so a reader gets consistent values."""

    number: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0


class WorkerMetrics:
    """Counters of one worker. The loop's thread writes them, any thread reads them.

    Attributes:
        processed: Records that tasks took from their buffers; key ranges may not have finished them.
        rounds: Rounds of the loop; the call watch detects a blocked loop by them.
        lags: Unprocessed offsets of each input partition at the last commit.
        committed: Committed offset of each input partition; its rows are in the stores.
        produced: Output records since the tasks' last start, also those of repartition topics.
        changelog_records: Committed changelog records.
        puts: Rows that commits wrote to each store.
        on_commit: Called with the seconds that a commit took.
    """

    def __init__(self) -> None:
        self.consumed = 0
        self.processed = 0
        self.commit_times = CommitTimes()
        self.rolled_back = 0
        self.rounds = 0
        self.lags: dict[TopicPartition, int] = {}
        self.committed: dict[TopicPartition, CommittedOffset] = {}
        self.commit_latency = Histogram(LATENCY_S)
        self.errors = ErrorCounts()
        self.produced = 0
        self.changelog_records = 0
        self.puts = Counter[str]()
        self.on_commit: Callable[[float], None] | None = None
        self._finished = 0
        self._lock = threading.Lock()

    def finished(self, tasks: Iterable[Task]) -> int:
        """Return the number of records that the worker's tasks have finished; it never falls."""
        with self._lock:
            # The count first: what is taken meanwhile is in hand.
            taken = self.processed
            in_hand = sum(task.figures.in_hand() for task in tasks)
            self._finished = max(self._finished, taken - in_hand)
            return self._finished

    @property
    def commits(self) -> int:
        return self.commit_times.number


class ProcessingRates:
    """Records per second of each task since the last call of `of`."""

    def __init__(self) -> None:
        #: Processed records of each task, and the time of the count.
        self._counts: dict[TaskId, tuple[int, float]] = {}

    def of(self, tasks: Mapping[TaskId, Task], now_s: float) -> dict[TaskId, float]:
        """Return the rate of each task; a new or restarted task has none."""
        rates: dict[TaskId, float] = {}
        counts: dict[TaskId, tuple[int, float]] = {}
        for task_id, task in tasks.items():
            count = task.counters.processed
            before, then_s = self._counts.get(task_id, (count, now_s))
            if count >= before and now_s > then_s:
                rates[task_id] = (count - before) / (now_s - then_s)
            counts[task_id] = (count, now_s)
        self._counts = counts
        return rates
