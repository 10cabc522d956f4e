"""Targets: when to ask the assignor, and its answer (S4, L5, N6)."""

from hypothesis import given
from hypothesis import strategies as st

from tests.rebalance.leader.round_table import APP, RoundTable, join, on_disk, status, with_settings
from tidewheel.rebalance.assignors.task_assignor import Assignment, AssignmentRequest
from tidewheel.rebalance.leader.coordinator import Coordinator
from tidewheel.rebalance.leader.observations import DISK_FRESH_MS
from tidewheel.rebalance.leader.targets import basis_of
from tidewheel.rebalance.model import TaskId
from tidewheel.rebalance.protocol.group import Group, replay
from tidewheel.rebalance.protocol.messages import AnyMessage, Beat, DiskCopy
from tidewheel.rebalance.protocol.records import (
    GroupRecord,
    LeaderClaim,
    MemberRecord,
    TargetRecord,
)
from tidewheel.rebalance.protocol.task_status import TaskStatus

TASKS = [TaskId(0, number) for number in range(4)]


class Leader:
    """A coordinator whose assignor is the test."""

    def __init__(self) -> None:
        self.now_ms = 0
        group = replay([LeaderClaim(leader_epoch=1, leader="p0")])
        self.coordinator = Coordinator(
            group, app=APP, leader="p0", settings=with_settings(), now_ms=0
        )
        self.written: list[TargetRecord] = []

    def observe_all(self, *messages: AnyMessage) -> None:
        for message in messages:
            self.coordinator.observe(message, self.now_ms)

    def next_request(self) -> AssignmentRequest | None:
        found: AssignmentRequest | None = None
        for _ in range(5):
            decision = self.coordinator.decide(self.now_ms)
            found = decision.assign or found
            self.written += [each for each in decision.records if isinstance(each, TargetRecord)]
            if decision.records:
                self.coordinator.committed(decision.records, self.now_ms)
        return found

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        for incarnation, record in self.coordinator.group.members.items():
            self.observe_all(
                Beat(app=APP, member=record.member, incarnation=incarnation, seq=self.now_ms)
            )


def all_to(name: str) -> Assignment:
    return Assignment(owners=dict.fromkeys(TASKS, name))


def test_the_assignor_gets_one_request_at_a_time_and_none_without_changes() -> None:
    leader = Leader()
    leader.observe_all(join("a"))
    leader.wait(300)
    assert leader.next_request() is None, "it has joined only now: others may follow"
    leader.wait(300)
    request = leader.next_request()
    assert request is not None
    assert leader.next_request() is None
    leader.coordinator.assigned(request, all_to("a"), "", leader.now_ms)
    assert leader.next_request() is None
    assert len(leader.written) == 1
    leader.wait(10_000)
    assert leader.next_request() is None


def test_requests_to_a_failing_assignor_back_off() -> None:
    leader = Leader()
    leader.observe_all(join("a"))
    leader.next_request()
    leader.wait(300)
    for pause_ms in (1_000, 2_000, 4_000):
        request = leader.next_request()
        assert request is not None
        leader.coordinator.assigned(request, None, "it raised ValueError", leader.now_ms)
        assert leader.coordinator.alarm == "it raised ValueError"
        leader.wait(pause_ms - 1)
        assert leader.next_request() is None
        leader.wait(1)
    request = leader.next_request()
    assert request is not None
    leader.coordinator.assigned(request, all_to("a"), "", leader.now_ms)
    leader.next_request()
    assert leader.coordinator.alarm == ""
    assert len(leader.written) == 1


def test_an_invalid_assignment_raises_an_alarm() -> None:
    leader = Leader()
    leader.observe_all(join("a"))
    leader.next_request()
    leader.wait(300)
    request = leader.next_request()
    assert request is not None
    leader.coordinator.assigned(request, all_to("z"), "", leader.now_ms)
    leader.next_request()
    assert "given to 'z', which is not in the group" in leader.coordinator.alarm
    assert not leader.written


def test_an_assignment_to_a_member_that_left_is_requested_again() -> None:
    leader = Leader()
    leader.observe_all(join("a"), join("b"))
    leader.next_request()
    leader.wait(300)
    request = leader.next_request()
    assert request is not None
    leader.now_ms += 3_000
    leader.observe_all(Beat(app=APP, member="a", incarnation="a-1", seq=99_999))
    leader.coordinator.assigned(request, all_to("b"), "", leader.now_ms)
    again = leader.next_request()
    assert not leader.written
    assert again is not None
    assert [member.name for member in again.members] == ["a"]


def test_an_assignment_for_an_older_request_is_dropped() -> None:
    leader = Leader()
    leader.observe_all(join("a"))
    leader.next_request()
    leader.wait(300)
    request = leader.next_request()
    assert request is not None
    leader.coordinator.assigned(request, None, "too slow", leader.now_ms)
    leader.coordinator.assigned(request, all_to("a"), "", leader.now_ms)
    leader.next_request()
    assert not leader.written


def test_the_assignment_request_lists_the_state_of_each_member() -> None:
    table = RoundTable(with_settings(num_standby_replicas=1))
    requests = watched(table)
    table.start("a", on_disk=(on_disk("0_0", 1_000), on_disk("0_1", 400)))
    table.run(1_000)
    table.start("b", on_disk=(on_disk("0_3", 900),))
    table.run(1_000)
    a, b = requests[-1].members
    assert a.owned == frozenset(TASKS)
    assert set(a.lags.values()) == {0}
    assert b.on_disk == frozenset({TASKS[3]})
    assert b.lags == {TASKS[3]: 100}


def test_lags_of_state_on_disk_use_ends_read_after_the_join_and_expire() -> None:
    table = RoundTable()
    requests = watched(table)
    table.start("a", on_disk=(on_disk("0_0", 1_000),))
    table.run(1_000)
    assert requests[-1].members[0].lags == {TASKS[0]: 0}

    table.ends[f"{APP}-counts-changelog-0"] = 51_000
    table.start("b", on_disk=(on_disk("0_0", 1_000), DiskCopy(task="0_1")))
    table.run(1_000)
    b = requests[-1].members[1]
    assert (b.on_disk, b.lags) == (frozenset(TASKS[:2]), {TASKS[0]: 50_000})

    table.run(DISK_FRESH_MS)
    table.start("c")
    table.run(1_000)
    _, b, _ = requests[-1].members
    assert b.on_disk == frozenset(TASKS[:2])
    assert not b.on_disk & b.lags.keys()


def test_status_of_a_former_owner_is_no_lag_of_its_copy() -> None:
    table = RoundTable(with_settings(num_standby_replicas=1))
    requests = watched(table)
    table.start("a")
    table.run(1_000)
    b = table.start("b")
    table.run(1_000)
    task = next(task for task, name in table.owners().items() if name == "a-1")
    assert task in b.copies
    row = TaskStatus(task=task, role="active", epoch=1, state="RUNNING", lag=7)
    b.member.report(status(b, row), table.now_ms)
    table.run(1_000)
    table.start("c")
    table.run(1_000)
    assert [each.name for each in requests[-1].members] == ["a", "b", "c"]
    assert TaskId.parse(task) in requests[-1].members[1].copies
    assert TaskId.parse(task) not in requests[-1].members[1].lags


def watched(table: RoundTable) -> list[AssignmentRequest]:
    """Return a list that collects each request."""
    requests: list[AssignmentRequest] = []
    decide = table.coordinator.decide

    def watch(now_ms: int) -> object:
        decision = decide(now_ms)
        if decision.assign is not None:
            requests.append(decision.assign)
        return decision

    table.coordinator.decide = watch  # type: ignore[method-assign,assignment]  # the test looks over its shoulder
    return requests


@given(st.permutations(["a", "b", "c"]), st.sampled_from(["threads", "rack", "host", "none"]))
def test_the_basis_ignores_order_and_incarnations_of_members(
    order: list[str], changed: str
) -> None:
    def group(names: list[str], life: int, **given: object) -> Group:
        records = [
            MemberRecord(
                leader_epoch=1,
                member=name,
                incarnation=f"{name}-{life}",
                phase="ACTIVE",
                **(given if name == "b" else {}),  # type: ignore[arg-type]  # one field
            )
            for name in names
        ]
        about = GroupRecord(leader_epoch=1, assignor="sticky")
        return replay([LeaderClaim(leader_epoch=1, leader="p0"), about, *records])

    other: dict[str, object] = {
        "threads": {"threads": 2},
        "rack": {"rack": "r"},
        "host": {"host": "h"},
    }.get(changed, {})  # type: ignore[assignment]  # by name
    same = basis_of(group(["a", "b", "c"], 1), 0) == basis_of(group(order, 2, **other), 0)
    assert same == (changed == "none")
    assert basis_of(group(order, 1), 0) != basis_of(group(order, 1), 1)
