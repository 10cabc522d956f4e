"""Properties of all built-in assignors: complete, balanced, deterministic answers."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rebalance.assignors.requests import STATEFUL, asked, loads, requests, with_answer
from tidewheel.rebalance.assignors.builtin import BUILT_IN, resolve
from tidewheel.rebalance.assignors.process_load import fair_shares
from tidewheel.rebalance.assignors.task_assignor import (
    AssignmentMember,
    AssignmentRequest,
    validated,
)
from tidewheel.rebalance.model import Shard, TaskId

ASSIGNORS = st.sampled_from(sorted(BUILT_IN))


@given(ASSIGNORS, requests())
def test_every_task_has_one_owner_and_all_possible_standbys(
    assignor: str, request: AssignmentRequest
) -> None:
    answer = validated(request, resolve(assignor).assign(request))
    assert answer.owners.keys() == request.tasks.keys()
    copies = min(request.num_standby_replicas, len(request.members) - 1)
    for task, shape in request.tasks.items():
        assert len(answer.standbys.get(task, ())) == (copies if shape.stateful else 0)


@given(ASSIGNORS, requests(threads=1))
def test_stateful_tasks_are_spread_evenly(assignor: str, request: AssignmentRequest) -> None:
    counts = loads(request, resolve(assignor).assign(request).owners, stateful=True).values()
    assert max(counts) - min(counts) <= 1


@given(ASSIGNORS, requests())
def test_stateful_tasks_are_spread_by_threads(assignor: str, request: AssignmentRequest) -> None:
    """KIP-441's measure: no move leaves the old owner as full as the new one."""
    counts = loads(request, resolve(assignor).assign(request).owners, stateful=True)
    threads = {member.name: member.threads for member in request.members}
    fuller = max((counts[name] - 1) / threads[name] for name in counts)
    assert all((counts[name] + 1) / threads[name] > fuller for name in counts if len(counts) > 1)


@given(ASSIGNORS, requests(), st.randoms(use_true_random=False))
def test_the_order_of_the_request_does_not_matter(
    assignor: str, request: AssignmentRequest, chance: object
) -> None:
    members, tasks = list(request.members), list(request.tasks.items())
    for listed in (members, tasks):
        chance.shuffle(listed)  # type: ignore[attr-defined]
    shuffled = replace(request, members=tuple(members), tasks=dict(tasks))
    assert resolve(assignor).assign(shuffled) == resolve(assignor).assign(request)


@given(ASSIGNORS, requests())
def test_an_applied_assignment_is_stable(assignor: str, request: AssignmentRequest) -> None:
    answer = resolve(assignor).assign(request)
    assert resolve(assignor).assign(with_answer(request, answer)) == answer


@given(
    st.integers(0, 60), st.dictionaries(st.text("abc", min_size=1), st.integers(1, 5), min_size=1)
)
def test_fair_shares_add_up(tasks: int, threads: dict[str, int]) -> None:
    shares = fair_shares(tasks, threads)
    assert sum(shares.base.values()) + shares.extras == tasks
    roomy = [name for name in threads if shares.cap[name] == shares.base[name] + 1]
    assert shares.extras <= len(roomy)
    assert all(shares.cap[name] - shares.base[name] in (0, 1) for name in threads)
    if tasks:
        level = max(shares.cap[name] / threads[name] for name in threads)
        assert all((shares.base[name] + 1) / threads[name] >= level for name in threads)
        assert Counter(shares.cap[name] / threads[name] for name in roomy).keys() == {level}


@pytest.mark.parametrize("assignor", BUILT_IN)
def test_without_members_the_assignment_is_empty(assignor: str) -> None:
    request = AssignmentRequest(number=1, members=(), tasks={})
    answer = resolve(assignor).assign(request)
    assert (answer.owners, answer.standbys) == ({}, {})


@pytest.mark.parametrize("assignor", BUILT_IN)
def test_an_assignor_has_the_name_it_is_resolved_by(assignor: str) -> None:
    assert resolve(assignor).name == assignor


@given(
    ASSIGNORS,
    st.integers(1, 6),
    st.integers(1, 6),
    st.sampled_from([2, 4, 8]),
)
def test_K8_shards_of_each_partition_are_spread_over_all_members(
    assignor: str, members: int, partitions: int, count: int
) -> None:
    shapes = {
        TaskId(0, partition, shard): STATEFUL
        for partition in range(partitions)
        for shard in Shard.all_of(count)
    }
    names = [f"m{number}" for number in range(members)]
    request = replace(
        asked([AssignmentMember(name=name) for name in names], shapes, standbys=1),
        assignor=assignor,
    )
    answer = validated(request, resolve(assignor).assign(request))
    for partition in range(partitions):
        of_partition = [name for task, name in answer.owners.items() if task.partition == partition]
        shares = [of_partition.count(name) for name in names]
        assert max(shares) - min(shares) <= 1
    copies = {task: len(answer.standbys.get(task, ())) for task in shapes}
    assert set(copies.values()) == {min(1, members - 1)}
