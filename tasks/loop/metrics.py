"""Metrics of a worker: counters of its own work."""

from collections.abc import Mapping
from typing import NamedTuple

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.tasks.task.task import Task


class CommitTimes(NamedTuple):
    """Commit times of one worker; one value, so a reader gets all three of one moment."""

    number: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0


class WorkerMetrics:
    """Counters of one worker. The loop's thread writes them, any thread reads them.

    Attributes:
        rounds: Rounds of the loop; the call watch sees by it that the loop turns.
        lags: Unprocessed offsets of each input partition at the last commit.
    """

    def __init__(self) -> None:
        self.consumed = 0
        self.processed = 0
        self.commit_times = CommitTimes()
        self.rolled_back = 0
        self.rounds = 0
        self.lags: dict[TopicPartition, int] = {}

    @property
    def commits(self) -> int:
        """Return the number of complete commits."""
        return self.commit_times.number


class ProcessingRates:
    """Records per second of each task since the last call."""

    def __init__(self) -> None:
        #: Records processed by each task, and when that was counted.
        self._counts: dict[TaskId, tuple[int, float]] = {}

    def of(self, tasks: Mapping[TaskId, Task], now_s: float) -> dict[TaskId, float]:
        """Return the rates of some tasks; one that is new, or counts from 0 again, has none."""
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
