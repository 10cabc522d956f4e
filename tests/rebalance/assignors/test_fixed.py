"""Fixed assignment: the slots together run every task exactly once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.rebalance.assignors.fixed import fixed_tasks
from tidewheel.rebalance.model import TaskId

TASKS = st.lists(st.builds(TaskId, st.integers(0, 5), st.integers(0, 30)), unique=True)


@given(TASKS, st.integers(1, 12), st.randoms(use_true_random=False))
def test_slots_share_all_tasks(tasks: list[TaskId], workers: int, random: object) -> None:
    shares = [fixed_tasks(tasks, slot=slot, workers=workers) for slot in range(workers)]
    assert sorted(task for share in shares for task in share) == sorted(tasks)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    shuffled = list(tasks)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert [fixed_tasks(shuffled, slot=slot, workers=workers) for slot in range(workers)] == shares


@pytest.mark.parametrize(("slot", "workers"), [(-1, 2), (2, 2), (0, 0), (5, 1)])
def test_a_slot_must_be_among_the_workers(slot: int, workers: int) -> None:
    with pytest.raises(ValueError, match=f"slot {slot} is not among {workers} workers"):
        fixed_tasks([TaskId(0, 0)], slot=slot, workers=workers)
