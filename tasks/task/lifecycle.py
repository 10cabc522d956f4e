"""The states of a task and the legal moves between them.

    CREATED -> RESTORING -> RUNNING -> SUSPENDED -> CLOSED
       |           |          ^            |
       |           +--> SUSPENDED ---------+--> RUNNING (resumed)
       +--> CLOSED

Words are Kafka Streams'. An illegal move raises and changes nothing.
"""

from enum import StrEnum


class TaskState(StrEnum):
    """Where a task is in its life."""

    CREATED = "CREATED"
    RESTORING = "RESTORING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    CLOSED = "CLOSED"


_MOVES: dict[TaskState, frozenset[TaskState]] = {
    TaskState.CREATED: frozenset({TaskState.RESTORING, TaskState.CLOSED}),
    TaskState.RESTORING: frozenset({TaskState.RUNNING, TaskState.SUSPENDED}),
    TaskState.RUNNING: frozenset({TaskState.SUSPENDED}),
    TaskState.SUSPENDED: frozenset({TaskState.RUNNING, TaskState.CLOSED}),
    TaskState.CLOSED: frozenset(),
}


def moved(task: str, state: TaskState, to: TaskState) -> TaskState:
    """Return `to` if a task may go there from `state`; raises RuntimeError otherwise.

    >>> moved("0_1", TaskState.CREATED, TaskState.RESTORING)
    <TaskState.RESTORING: 'RESTORING'>
    """
    if to not in _MOVES[state]:
        allowed = ", ".join(sorted(_MOVES[state])) or "nowhere"
        raise RuntimeError(
            f"task {task} cannot go from {state} to {to}; from there it goes to {allowed}"
        )
    return to
