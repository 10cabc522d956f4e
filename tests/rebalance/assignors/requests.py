"""Assignor requests for tests."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from hypothesis import strategies as st

from tidewheel.rebalance.assignors.task_assignor import (
    Assignment,
    AssignmentMember,
    AssignmentRequest,
)
from tidewheel.rebalance.model import TaskId, TaskShape

STATEFUL = TaskShape(stateful=True, changelogs=("changelog",))
STATELESS = TaskShape(stateful=False)


def tasks(stateful: int, stateless: int = 0) -> dict[TaskId, TaskShape]:
    """Sub-topology 0 has state, 1 has none."""
    found = {TaskId(0, partition): STATEFUL for partition in range(stateful)}
    return found | {TaskId(1, partition): STATELESS for partition in range(stateless)}


def asked(
    members: Iterable[AssignmentMember],
    shapes: Mapping[TaskId, TaskShape],
    standbys: int = 0,
) -> AssignmentRequest:
    return AssignmentRequest(
        number=1, members=tuple(members), tasks=shapes, num_standby_replicas=standbys
    )


def with_answer(request: AssignmentRequest, answer: Assignment) -> AssignmentRequest:
    """Return the request of a group that has executed an answer."""
    members = [
        replace(
            member,
            owned=frozenset(t for t, owner in answer.owners.items() if owner == member.name),
            copies=frozenset(t for t, names in answer.standbys.items() if member.name in names),
            on_disk=frozenset(),
            lags={},
        )
        for member in request.members
    ]
    return replace(request, members=tuple(members))


def loads(
    request: AssignmentRequest, owners: Mapping[TaskId, str], *, stateful: bool
) -> dict[str, int]:
    counts = Counter(
        owner for task, owner in owners.items() if request.tasks[task].stateful is stateful
    )
    return {member.name: counts[member.name] for member in request.members}


@st.composite
def requests(draw: st.DrawFn, threads: int | None = None) -> AssignmentRequest:
    """Draw a group with arbitrary owners, copies and disk state on few hosts, racks and tags."""
    shapes = tasks(draw(st.integers(0, 12)), draw(st.integers(0, 8)))
    count = draw(st.integers(1, 6))
    owners = draw(st.lists(st.integers(0, count), min_size=len(shapes), max_size=len(shapes)))
    stateful = sorted(task for task, shape in shapes.items() if shape.stateful)
    members: list[AssignmentMember] = []
    for index in range(count):
        owned = frozenset(
            task for task, owner in zip(shapes, owners, strict=True) if owner == index
        )
        copies = draw(subsets(stateful)) - owned
        members.append(
            AssignmentMember(
                name=f"m{index}",
                threads=threads or draw(st.integers(1, 3)),
                host=draw(st.sampled_from(["", "h1", "h2", "h3"])),
                rack=draw(st.sampled_from([None, "r1", "r2"])),
                tags=draw(st.sampled_from(TAGS)),
                owned=owned,
                copies=copies,
                on_disk=draw(subsets(stateful)) - owned - copies,
                lags=dict.fromkeys(
                    draw(subsets(stateful)) & copies, draw(st.sampled_from([0, 10**6]))
                ),
            )
        )
    return asked(members, shapes, draw(st.integers(0, 3)))


TAGS: list[dict[str, str]] = [
    {},
    {"zone": "x"},
    {"zone": "y", "cluster": "x"},
    {"zone": "z", "cluster": "x"},
    {"zone": "x", "cluster": "y"},
]


def subsets(tasks: list[TaskId]) -> st.SearchStrategy[frozenset[TaskId]]:
    """Draw each subset as the bits of one number, which is fast."""
    return st.integers(0, 2 ** len(tasks) - 1).map(
        lambda bits: frozenset(task for index, task in enumerate(tasks) if bits >> index & 1)
    )
