"""Task states (Kafka Streams' names) and legal moves between them; ARCHITECTURE.md draws them."""

from collections.abc import Callable
from enum import StrEnum

from tidewheel.tasks.processing.api.coroutines import close_loop


class TaskState(StrEnum):
    CREATED = "CREATED"
    RESTORING = "RESTORING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    CLOSED = "CLOSED"


MOVES: dict[TaskState, frozenset[TaskState]] = {
    TaskState.CREATED: frozenset({TaskState.RESTORING, TaskState.CLOSED}),
    TaskState.RESTORING: frozenset({TaskState.RUNNING, TaskState.SUSPENDED}),
    TaskState.RUNNING: frozenset({TaskState.SUSPENDED}),
    TaskState.SUSPENDED: frozenset({TaskState.RUNNING, TaskState.CLOSED}),
    TaskState.CLOSED: frozenset(),
}


def moved(task: str, state: TaskState, to: TaskState) -> TaskState:
    """Return `to` if the move is legal; raise RuntimeError otherwise.

    >>> moved("0_1", TaskState.CREATED, TaskState.RESTORING)
    <TaskState.RESTORING: 'RESTORING'>
    """
    if to not in MOVES[state]:
        allowed = ", ".join(sorted(MOVES[state])) or "nowhere"
        raise RuntimeError(
            f"task {task} cannot go from {state} to {to}; from there it goes to {allowed}"
        )
    return to


class TaskLifecycle:
    def __init__(self, task: str) -> None:
        self._task = task
        self.state = TaskState.CREATED

    def move_to(self, state: TaskState) -> None:
        self.state = moved(self._task, self.state, state)

    def end(self, close_processing: Callable[[], None]) -> None:
        """Close the processors and move to CLOSED, even if closing fails."""
        if self.state in (TaskState.RESTORING, TaskState.RUNNING):
            self.move_to(TaskState.SUSPENDED)
        try:
            close_processing()
        finally:
            self.move_to(TaskState.CLOSED)
            close_loop()
