"""Placement invariants (20, 22): accepted and rejected cases."""

from tests.simulation.laws.placement import has_twice, needless_moves
from tidewheel.rebalance.protocol.records import (
    Copy,
    MemberRecord,
    StepRecord,
    TargetRecord,
    TaskRecord,
)

ONE_EACH = dict.fromkeys("abc", 1)


def _target(owners: str) -> TargetRecord:
    return TargetRecord(
        leader_epoch=1,
        group_epoch=1,
        owners={f"0_{number}": name for number, name in enumerate(owners)},
    )


def _at_home(target: TargetRecord) -> dict[str, TaskRecord]:
    return {task: _task(task, "RUNNING", owner) for task, owner in target.owners.items()}


def _task(task: str, phase: str, owner: str | None) -> TaskRecord:
    return TaskRecord(
        leader_epoch=1,
        task=task,
        phase=phase,
        task_epoch=1,
        owner=owner and f"{owner}.1",
        member=owner,
    )


def _moves(before: str, after: str, threads: dict[str, int] = ONE_EACH) -> str:
    target = _target(before)
    return needless_moves(target, _target(after), _at_home(target), threads)


def test_a_new_member_gets_only_its_share() -> None:
    assert not _moves("aaabbb", "aacbbc")
    assert _moves("aaabbb", "accbbc") == "3 tasks move for c, 2 are its share"


def test_a_share_is_by_threads() -> None:
    assert not _moves("aaabbb", "accbbc", {"a": 1, "b": 1, "c": 2})
    assert _moves("aaabbb", "accbcc", {"a": 1, "b": 1, "c": 2})


def test_only_tasks_of_the_removed_member_move() -> None:
    assert not _moves("aabbcc", "aabbab")
    assert "['0_1'] move although c is gone" in _moves("aabbcc", "abbbaa")


def test_an_unreached_target_is_not_compared() -> None:
    before, after = _target("aabbcc"), _target("abbbaa")
    tasks = _at_home(before) | {"0_5": _task("0_5", "RUNNING", "b")}
    assert not needless_moves(before, after, tasks, ONE_EACH)


def _member(incarnation: str, phase: str, process: str) -> MemberRecord:
    return MemberRecord(
        leader_epoch=1,
        member=incarnation[0],
        incarnation=incarnation,
        phase=phase,
        host="h",
        process_id=process,
        transactional_ids=(),
    )


def _twice(owner_phase: str, *copies: str) -> str:
    """Judge task 0_0 of a.1; a.1, a.2 and ended a.3 share a process."""
    members = {
        "a.1": _member("a.1", "ACTIVE", "p"),
        "a.2": _member("a.2", "ACTIVE", "p"),
        "a.3": _member("a.3", "FENCED", "p"),
        "b.1": _member("b.1", "ACTIVE", "q"),
    }
    learner, *standbys = (Copy(incarnation=each, learn_epoch=2) for each in copies)
    step = StepRecord(
        leader_epoch=1,
        group_epoch=1,
        step_epoch=2,
        learners={"0_0": learner},
        standbys={"0_0": tuple(standbys)},
    )
    return has_twice(step, {"0_0": _task("0_0", owner_phase, "a")}, members)


def test_no_member_owns_a_task_and_keeps_its_copy() -> None:
    assert not _twice("RUNNING", "b.1")
    assert _twice("RUNNING", "a.1")
    assert _twice("RUNNING", "a.2")
    assert _twice("FENCE_WAIT", "a.1")
    assert not _twice("REVOKING", "a.1")
    assert not _twice("RUNNING", "a.3"), "it is over: nothing of it lives"


def test_no_process_keeps_two_copies() -> None:
    assert _twice("REVOKING", "b.1", "b.1")
    assert _twice("REVOKING", "a.1", "a.2")
