"""Convergence within the bounds of Kafka Streams' TaskAssignorConvergenceTest.

A step here replaces a probing rebalance: afterwards every copy has caught up. Bounds: one learner
moves one task per step; each task and each copy moves at most twice.
"""

from random import Random

import pytest

from tests.rebalance.refine.refining import STATEFUL, STATELESS, SmallGroup
from tidewheel.rebalance.assignors.builtin import BUILT_IN, resolve
from tidewheel.rebalance.model import TaskId, TaskShape


def group(
    assignor: str, *, stateless: int, stateful: int, members: int, warmups: int, standbys: int = 0
) -> SmallGroup:
    tasks: dict[TaskId, TaskShape] = {TaskId(0, each): STATELESS for each in range(stateless)}
    tasks |= {TaskId(1, each): STATEFUL for each in range(stateful)}
    return SmallGroup(
        assignor=resolve(assignor),
        tasks=tasks,
        num_standby_replicas=standbys,
        max_warmup_replicas=warmups,
        names={f"m{index}" for index in range(members)},
    )


def uneven(small: SmallGroup) -> int:
    """Return the difference in stateful tasks between fullest and emptiest member."""
    counts = dict.fromkeys(small.names, 0)
    for task, owner in small.owners.items():
        counts[owner] += small.tasks[task].stateful
    return max(counts.values()) - min(counts.values())


@pytest.mark.parametrize("assignor", BUILT_IN)
def test_the_first_target_is_reached_in_one_step(assignor: str) -> None:
    assert group(assignor, stateless=7, stateful=11, members=3, warmups=2).settle(1) == 1


@pytest.mark.parametrize("assignor", BUILT_IN)
def test_converges_after_adding_a_member(assignor: str) -> None:
    small = group(assignor, stateless=7, stateful=11, members=1, warmups=2)
    small.settle(1)
    small.names.add("m1")
    small.settle(11 // 2 + 1)
    assert small.cold == []


@pytest.mark.parametrize("assignor", BUILT_IN)
def test_converges_after_a_member_died(assignor: str) -> None:
    small = group(assignor, stateless=11, stateful=13, members=7, warmups=2)
    small.settle(1)
    small.drop("m0")
    small.settle(13 // 2 + 2)
    assert small.cold == []


@pytest.mark.parametrize("assignor", BUILT_IN)
@pytest.mark.parametrize("seed", range(40))
def test_converges_after_random_perturbations(assignor: str, seed: int) -> None:
    chance = Random(f"{assignor} {seed}")
    size, stateful = chance.randint(1, 10), chance.randint(1, 10)
    standbys = chance.randint(0, size)
    small = group(
        assignor,
        stateless=chance.randint(1, 10),
        stateful=stateful,
        members=size,
        warmups=chance.randint(1, stateful),
        standbys=standbys,
    )
    small.settle(2 * (stateful + stateful * standbys))
    known = set(small.names)
    for _ in range(chance.randint(1, 10)):
        if chance.random() < 0.5:
            for name in chance.sample(
                sorted(small.names), min(chance.randrange(size), len(small.names))
            ):
                small.drop(name)
        else:
            for _ in range(chance.randrange(size)):
                back = sorted(known - small.names)
                new = chance.random() < 0.5 or not back
                small.names.add(f"m{len(known)}" if new else chance.choice(back))
                known |= small.names
        if small.names:
            small.settle(2 * (stateful + stateful * standbys))
            assert small.owners.keys() == small.tasks.keys()
            assert uneven(small) <= 1
    assert small.cold == []
