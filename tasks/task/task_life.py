"""Task life: the state, inputs, restores and figures of a task, from start to end."""

from collections.abc import Callable
from contextlib import ExitStack

from tidewheel.rebalance.model import TopicPartition
from tidewheel.tasks.processing.engine.task_processing import TaskCounters
from tidewheel.tasks.task.lifecycle import TaskLifecycle, TaskState
from tidewheel.tasks.task.task_figures import TaskCounts
from tidewheel.tasks.task.task_inputs import TaskInputs
from tidewheel.tasks.task.task_parts import TaskParts


class TaskLife:
    """Parts that `ActiveTask` and `ParallelTask` share."""

    def __init__(
        self,
        parts: TaskParts,
        inputs: TaskInputs,
        counters: Callable[[], TaskCounters],
        expired_puts: Callable[[], int],
        close_processing: Callable[[], None],
    ) -> None:
        self.parts = parts
        self.inputs = inputs
        #: Closed when the task starts or ends.
        self.restore_resources = ExitStack()
        self.figures = TaskCounts(parts, inputs.group, counters, expired_puts)
        self.cycle = TaskLifecycle(str(parts.task_id))
        self._close_processing = close_processing

    @property
    def source_stores(self) -> dict[TopicPartition, str]:
        """Return stores whose changelog is an input."""
        sources = self.parts.stores.sources
        return {at: sources[at] for at in self.inputs.partitions if at in sources}

    def close(self) -> None:
        if self.cycle.state is TaskState.CLOSED:
            return
        try:
            self.retire()
        finally:
            self.parts.stores.close()

    def retire(self) -> None:
        """Close the processors, but not the stores: a copy may follow with them."""
        self.figures.report_expired_puts()
        self.cycle.end(self._end)

    def _end(self) -> None:
        self.restore_resources.close()
        if self.inputs.next_offsets:
            self._close_processing()
