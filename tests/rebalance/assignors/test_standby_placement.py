"""Standby placement over machines, racks and tags."""

from collections.abc import Iterable
from dataclasses import replace

from hypothesis import given

from tests.rebalance.assignors.requests import asked, requests, tasks
from tidewheel.rebalance.assignors.standby_placement import place_standbys
from tidewheel.rebalance.assignors.task_assignor import AssignmentMember, AssignmentRequest
from tidewheel.rebalance.model import TaskId

T0, T1, T2 = (TaskId(0, partition) for partition in range(3))


def zoned(places: Iterable[tuple[str, str]]) -> list[AssignmentMember]:
    return [
        AssignmentMember(name=f"m{index}", tags={"zone": zone, "cluster": cluster})
        for index, (zone, cluster) in enumerate(places, start=1)
    ]


def placed(
    members: Iterable[AssignmentMember], owner: str, standbys: int, *, sticky: bool = True
) -> tuple[str, ...]:
    request = asked(members, tasks(1), standbys)
    return place_standbys(request, {T0: owner}, sticky=sticky)[T0]


def test_another_host_comes_first() -> None:
    members = [
        AssignmentMember(name="a", host="h1", rack="r1"),
        AssignmentMember(name="b", host="h1", rack="r2", tags={"zone": "z"}),
        AssignmentMember(name="c", host="h2", rack="r1"),
    ]
    assert placed(members, "a", 1) == ("c",)


def test_another_rack_comes_before_a_smaller_load() -> None:
    members = [
        AssignmentMember(name="a", rack="r1"),
        AssignmentMember(name="b", rack="r1"),
        AssignmentMember(name="c", rack="r2"),
    ]
    request = asked(members, tasks(3), 1)
    answer = place_standbys(request, {T0: "a", T1: "c", T2: "c"})
    assert answer[T0] == ("c",)
    assert {answer[T1], answer[T2]} == {("a",), ("b",)}


def test_copies_are_spread_over_every_tag() -> None:
    """Kafka Streams' example: two clusters, three zones each; the second copy adds only a zone."""
    members = zoned(
        [("1a", "k1"), ("1b", "k1"), ("1c", "k1"), ("1a", "k2"), ("1b", "k2"), ("1c", "k2")]
    )
    tags = {member.name: member.tags for member in members}
    for owner in tags:
        holders = [owner, *placed(members, owner, 2)]
        assert {tags[name]["zone"] for name in holders} == {"1a", "1b", "1c"}
        assert {tags[name]["cluster"] for name in holders} == {"k1", "k2"}


def test_members_with_used_tag_values_are_chosen_by_load() -> None:
    assert placed(zoned([("z", "k")] * 3), "m1", 1) == ("m2",)
    assert placed(zoned([("z", "k")] * 3), "m1", 5) == ("m2", "m3")


def test_a_single_member_has_no_standby() -> None:
    assert placed([AssignmentMember(name="a")], "a", 2) == ()


def test_existing_copies_stay() -> None:
    names = ("a", "b", "c", "d", "e")
    members = {name: AssignmentMember(name=name) for name in names}
    members["d"] = AssignmentMember(name="d", on_disk=frozenset({T0}))
    assert placed(members.values(), "a", 1) == ("d",)
    members["c"] = AssignmentMember(name="c", owned=frozenset({T0}))
    assert placed(members.values(), "a", 1) == ("c",)
    members["e"] = AssignmentMember(name="e", copies=frozenset({T0}))
    assert placed(members.values(), "a", 1) == ("e",)
    assert placed(members.values(), "a", 2) == ("c", "e")
    assert placed(members.values(), "a", 2, sticky=False) == ("b", "c")


def test_a_copy_moves_for_a_better_place() -> None:
    members = [
        AssignmentMember(name="a", rack="r1"),
        AssignmentMember(name="b", rack="r1", copies=frozenset({T0})),
    ]
    assert placed(members, "a", 1) == ("b",)
    assert placed([*members, AssignmentMember(name="c", rack="r2")], "a", 1) == ("c",)


def test_a_copy_moves_from_an_overloaded_member() -> None:
    members = [
        AssignmentMember(name="a"),
        AssignmentMember(name="b", copies=frozenset({T0, T1, T2})),
    ]
    owners = dict.fromkeys((T0, T1, T2), "a")
    assert place_standbys(asked(members, tasks(3), 1), owners) == dict.fromkeys(owners, ("b",))
    three = asked([*members, AssignmentMember(name="c")], tasks(3), 1)
    assert sorted(place_standbys(three, owners).values()) == [("b",), ("b",), ("c",)]


@given(requests())
def test_L5_evenly_spread_copies_stay(request: AssignmentRequest) -> None:
    owners = {
        task: min(member.name for member in request.members)
        for task, shape in request.tasks.items()
        if shape.stateful
    }
    first = place_standbys(request, owners)
    members = [
        replace(
            member,
            copies=frozenset(task for task, names in first.items() if member.name in names),
        )
        for member in request.members
    ]
    assert place_standbys(replace(request, members=tuple(members)), owners) == first
