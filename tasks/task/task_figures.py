"""Figures of a task: dropped and skipped records, metrics."""

from collections.abc import Callable
from typing import Final

from tidewheel.tasks.processing.api.record import RecordMetadata
from tidewheel.tasks.processing.engine.drops import Drop
from tidewheel.tasks.processing.engine.task_processing import TaskCounters
from tidewheel.tasks.task.partition_group import PartitionGroup
from tidewheel.tasks.task.sink_writer import SinkFigures
from tidewheel.tasks.task.task_parts import TaskParts

_EXPIRED_PUT_REASON: Final = "put with a time that its store does not keep any more"


def _none() -> int:
    return 0


class TaskCounts:
    """Counts of one task; `counters` and `expired_puts` return totals of all its key ranges.

    Attributes:
        in_hand: Returns the records that key ranges have and have not finished.
    """

    def __init__(
        self,
        parts: TaskParts,
        group: PartitionGroup,
        counters: Callable[[], TaskCounters],
        expired_puts: Callable[[], int],
    ) -> None:
        self._task_id = str(parts.task_id)
        self._policy = parts.policy
        self._group = group
        self._counters = counters
        #: Figures of the task's sink outside Kafka; None without one.
        self.sink: SinkFigures | None = None
        self._expired_puts = expired_puts
        #: Expired puts (too old for their store) at the last report: all, and those of processors.
        self._expired_reported = self._expired_of_processors = 0
        self.in_hand: Callable[[], int] = _none

    @property
    def dropped(self) -> int:
        return self._counters().dropped + self._expired_puts()

    @property
    def skipped(self) -> int:
        return self._counters().skipped + self._policy.skipped_outputs[self._task_id]

    def report_expired_puts(self) -> None:
        """Report processors' puts that came too late for a store since the last report."""
        expired = self._expired_puts()
        if expired == self._expired_reported:
            return
        of_processors = expired - self._counters().expired - self._expired_of_processors
        self._expired_reported = expired
        if of_processors > 0:
            self._expired_of_processors += of_processors
            drop = Drop(of_processors, None)
            self._policy.drops.add(
                f"a processor of task {self._task_id}", _EXPIRED_PUT_REASON, drop
            )

    def count_drop(
        self,
        counters: TaskCounters,
        node: str,
        count: int,
        reason: str,
        first: RecordMetadata | None,
    ) -> None:
        counters.dropped += count
        counters.record_drop(node, reason, Drop(count, first))
        self._policy.drops.add(node, reason, Drop(count, first))

    def metrics(self) -> dict[str, float]:
        counters = self._counters()
        sink = self.sink
        figures = {
            "process-total": float(counters.processed),
            "dropped-records-total": float(self.dropped),
            "skipped-records-total": float(self.skipped),
            "punctuate-total": float(counters.punctuations),
            "buffered-records": float(self._group.records + self.in_hand()),
            "enforced-processing-total": float(self._group.enforced),
        }
        if sink is not None:
            figures |= {
                "sink-rows-total": float(sink.rows),
                "sink-refused-rows-total": float(sink.refused),
                "sink-retries-total": float(sink.retries),
            }
        return figures
