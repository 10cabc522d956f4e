"""The states of a task: legal moves only."""

from itertools import product

import pytest

from tidewheel.tasks.task.lifecycle import TaskState, moved

LEGAL = {
    (TaskState.CREATED, TaskState.RESTORING),
    (TaskState.CREATED, TaskState.CLOSED),
    (TaskState.RESTORING, TaskState.RUNNING),
    (TaskState.RESTORING, TaskState.SUSPENDED),
    (TaskState.RUNNING, TaskState.SUSPENDED),
    (TaskState.SUSPENDED, TaskState.RUNNING),
    (TaskState.SUSPENDED, TaskState.CLOSED),
}


@pytest.mark.parametrize(("state", "to"), list(product(TaskState, TaskState)))
def test_only_valid_state_transitions_are_accepted(state: TaskState, to: TaskState) -> None:
    if (state, to) in LEGAL:
        assert moved("0_1", state, to) is to
    else:
        with pytest.raises(RuntimeError, match=f"task 0_1 cannot go from {state} to {to}"):
            moved("0_1", state, to)


def test_every_state_can_end_in_closed() -> None:
    reach = {TaskState.CLOSED}
    for _ in TaskState:
        reach |= {state for state, to in LEGAL if to in reach}
    assert reach == set(TaskState)
    with pytest.raises(RuntimeError, match="it goes to nowhere"):
        moved("0_1", TaskState.CLOSED, TaskState.RUNNING)
