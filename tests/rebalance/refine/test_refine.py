"""Refinement case by case: owners, learners, parked moves."""

import pytest

from tests.rebalance.refine.refining import (
    T0,
    T1,
    T2,
    T3,
    learner,
    members,
    revoking,
    running,
    standby,
    step,
    unowned,
)
from tidewheel.rebalance.model import TaskId
from tidewheel.rebalance.refine.refine_input import CurrentMember, Readiness

READY, NOTHING, UNKNOWN = Readiness.READY, Readiness.NOTHING, Readiness.UNKNOWN


def test_L3_the_old_owner_keeps_running_a_task_while_the_new_owner_learns() -> None:
    answer = step({T0: running("a")}, {T0: "b"})
    assert answer.owners == {T0: "a"}
    assert answer.learners == {T0: "b"}
    assert answer.reasons == {T0: "stays until b has caught up"}


def test_L2_a_ready_learner_takes_over_and_is_promoted_in_place() -> None:
    answer = step({T0: running("a", learner("b", READY))}, {T0: "b"})
    assert answer.owners == {T0: "b"}
    assert answer.learners == {T0: "b"}


def test_a_promoted_copy_is_no_longer_listed() -> None:
    answer = step({T0: running("b")}, {T0: "b"})
    assert answer.owners == {T0: "b"}
    assert (answer.learners, answer.standbys, answer.reasons) == ({}, {}, {})


@pytest.mark.parametrize("readiness", [UNKNOWN, NOTHING, Readiness.PROGRESSING])
def test_L2_only_a_ready_learner_gets_the_task(readiness: Readiness) -> None:
    answer = step({T0: running("a", learner("b", readiness))}, {T0: "b"})
    assert answer.owners == {T0: "a"}
    assert answer.learners == {T0: "b"}


def test_moves_beyond_the_learner_limit_of_the_group_are_parked() -> None:
    states = {task: running("a") for task in (T0, T1, T2)}
    answer = step(states, {T0: "b", T1: "b", T2: "c"})
    assert answer.owners == dict.fromkeys(states, "a")
    assert answer.learners == {T0: "b", T2: "c"}
    assert answer.parked == {T1}


def test_moves_that_relieve_the_fuller_member_come_first() -> None:
    states = {T0: running("a"), T1: running("c"), T2: running("c")}
    answer = step(states, {T0: "b", T1: "b", T2: "c"}, warmups=1)
    assert answer.learners == {T1: "b"}


def test_a_learner_in_flight_keeps_its_place() -> None:
    answer = step({T0: running("a"), T1: running("a", learner("b"))}, {T0: "b", T1: "b"}, warmups=1)
    assert answer.learners == {T1: "b"}
    assert answer.parked == {T0}


def test_a_learner_without_progress_yields_to_a_stopped_task_of_its_member() -> None:
    states = {
        T0: running("a", learner("b", NOTHING)),
        T1: running("a"),
        T2: running("b", state=Readiness.PROGRESSING),
    }
    answer = step(states, {T0: "b", T1: "c", T2: "b"}, warmups=1)
    assert answer.learners == {T1: "c"}
    states[T0] = running("a", learner("b"))
    assert step(states, {T0: "b", T1: "c", T2: "b"}, warmups=1).learners == {T0: "b"}


def test_a_standby_of_the_target_owner_uses_no_warmup() -> None:
    states = {T0: running("a", standby("b")), T1: running("a")}
    answer = step(states, {T0: "b", T1: "c"}, standbys={T0: ("c",)}, warmups=1)
    assert answer.learners == {T1: "c"}
    assert answer.standbys == {T0: ("b",)}
    assert not answer.parked


def test_a_learner_in_the_place_of_a_waiting_standby_uses_no_warmup() -> None:
    answer = step({T0: running("a")}, {T0: "b"}, standbys={T0: ("a",)}, warmups=0)
    assert answer.owners == {T0: "a"}
    assert answer.standbys == {T0: ("b",)}
    assert not answer.parked


def test_the_old_owner_keeps_its_state_for_a_planned_standby() -> None:
    answer = step({T0: running("a", standby("b", READY))}, {T0: "b"}, standbys={T0: ("a",)})
    assert answer.owners == {T0: "b"}
    assert answer.kept == {T0}
    assert answer.standbys == {T0: ("b",)}


def test_L5_a_learner_without_a_reason_is_dropped() -> None:
    answer = step({T0: running("a", learner("b", READY))}, {T0: "a"})
    assert answer.owners == {T0: "a"}
    assert answer.learners == {}


def test_L5_a_dropped_learner_serves_as_standby_until_the_planned_one_is_ready() -> None:
    wanted = {T0: ("c",)}
    answer = step({T0: running("a", learner("b", READY))}, {T0: "a"}, standbys=wanted)
    assert answer.standbys == {T0: ("b", "c")}
    both = running("a", standby("b", READY), standby("c", READY))
    assert step({T0: both}, {T0: "a"}, standbys=wanted).standbys == wanted


def test_a_new_leader_drops_no_copy_before_its_first_report() -> None:
    known = running("a", standby("b", UNKNOWN), standby("d"), standby("c"))
    present = members("a b c d")
    answer = step({T0: known}, {T0: "a"}, present=present, standbys={T0: ("c",)})
    assert answer.standbys == {T0: ("b", "c")}
    known = running("a", standby("b", UNKNOWN), standby("d", READY), standby("c"))
    answer = step({T0: known}, {T0: "a"}, present=present, standbys={T0: ("c",)})
    assert answer.standbys == {T0: ("c", "d")}


def test_a_ready_learner_is_not_counted_as_a_spare_standby() -> None:
    states, wanted = {T0: running("a", learner("b", READY))}, {T0: ("c",)}
    for settled in (False, True):
        present = (*members("a c"), CurrentMember(name="b", settled=settled))
        answer = step(states, {T0: "b"}, present=present, standbys=wanted)
        assert answer.learners == {T0: "b"}
        assert answer.standbys == {T0: ("c",)}


def test_no_standby_starts_on_the_next_owner() -> None:
    state = unowned(on_disk={"c": 0})
    answer = step({T0: state}, {T0: "b"}, standbys={T0: ("c",)})
    assert answer.owners == {T0: "c"}
    assert answer.standbys == {T0: ("b",)}


def test_an_expelled_member_keeps_no_standby() -> None:
    present = (*members("a c"), CurrentMember(name="b", leaving=True, expelled=True))
    state = running("a", standby("b", READY))
    assert step({T0: state}, {T0: "a"}, present=present, standbys={T0: ("c",)}).standbys == {
        T0: ("c",)
    }


def test_N11_an_unsettled_member_learns_but_gets_no_running_task() -> None:
    newcomer = (*members("a"), CurrentMember(name="b", settled=False))
    states = {T0: running("a", learner("b", READY)), T1: running("a"), T2: running("a")}
    answer = step(states, dict.fromkeys(states, "b"), present=newcomer, stateless=(T2,))
    assert answer.owners == dict.fromkeys(states, "a")
    assert answer.learners == {T0: "b", T1: "b"}


def test_N11_an_unsettled_member_gets_tasks_without_an_owner() -> None:
    newcomer = (CurrentMember(name="b", settled=False),)
    assert step({T0: unowned()}, {T0: "b"}, present=newcomer).owners == {T0: "b"}


def test_N11_settled_members_come_first_for_learners() -> None:
    states = {T0: running("a", learner("b")), T1: running("a")}
    present = (*members("a c"), CurrentMember(name="b", settled=False))
    answer = step(states, {T0: "b", T1: "c"}, present=present, warmups=1)
    assert answer.learners == {T1: "c"}


def test_L4_tasks_of_a_leaving_member_move_behind_learners() -> None:
    present = (CurrentMember(name="a", leaving=True), CurrentMember(name="b", settled=False))
    states = {T0: running("a"), T1: running("a", learner("b", READY)), T2: running("a")}
    answer = step(states, dict.fromkeys(states, "b"), present=present, warmups=1)
    assert answer.owners == {T0: "a", T1: "b", T2: "a"}
    assert answer.learners == {T0: "b", T1: "b"}
    assert answer.parked == {T2}


def test_L4_an_expelled_member_loses_all_tasks() -> None:
    present = (CurrentMember(name="a", leaving=True, expelled=True), *members("b c"))
    states = {T0: running("a", standby("c", READY)), T1: running("a")}
    answer = step(states, {T0: "b", T1: "b"}, present=present)
    assert answer.owners == {T0: "c", T1: "b"}
    assert answer.learners == {T0: "b"}
    assert not step({T0: running("a")}, {T0: "b"}, present=present, standbys={T0: ("a",)}).kept


def test_L4_an_expelled_last_member_releases_without_a_successor() -> None:
    present = (CurrentMember(name="a", leaving=True, expelled=True),)
    assert step({T0: running("a")}, {T0: "a"}, present=present).owners == {}


def test_a_task_without_owner_goes_to_the_best_ready_copy() -> None:
    copies = (standby("b", READY), standby("c", READY), standby("d", READY))
    states = {T0: unowned(*copies), T1: running("c")}
    answer = step(
        states,
        {T0: "a", T1: "c"},
        present=members("a b c d"),
        standbys={T0: ("b",)},
    )
    assert answer.owners[T0] == "d"
    assert answer.learners == {T0: "a"}
    assert answer.standbys[T0] == ("b", "d")


def test_a_task_without_owner_goes_to_its_ready_target_owner() -> None:
    answer = step({T0: unowned(learner("a", READY), standby("b", READY))}, {T0: "a"})
    assert answer.owners == {T0: "a"}
    assert answer.learners == {T0: "a"}


def test_a_task_without_owner_or_copies_starts_cold_at_its_target_owner() -> None:
    assert step({T0: unowned()}, {T0: "b"}).owners == {T0: "b"}


def test_a_copy_that_is_not_ready_is_preferred_to_no_state() -> None:
    answer = step({T0: unowned(standby("a", UNKNOWN))}, {T0: "b"})
    assert answer.owners == {T0: "a"}
    assert step({T0: unowned(standby("a", NOTHING))}, {T0: "b"}).owners == {T0: "b"}
    with_disk = unowned(standby("a", UNKNOWN), on_disk={"c": 20_000})
    assert step({T0: with_disk}, {T0: "c"}).owners == {T0: "c"}
    assert step({T0: unowned(on_disk={"a": -1, "c": 20_000})}, {T0: "b"}).owners == {T0: "c"}


def test_fresh_state_on_the_target_owners_disk_is_opened_there() -> None:
    fresh = unowned(standby("a", READY), on_disk={"b": 20})
    assert step({T0: fresh}, {T0: "b"}).owners == {T0: "b"}
    stale = unowned(standby("a", READY), on_disk={"b": 20_000_000})
    assert step({T0: stale}, {T0: "b"}).owners == {T0: "a"}
    elsewhere = unowned(learner("b"), on_disk={"c": 20})
    assert step({T0: elsewhere}, {T0: "b"}).owners == {T0: "c"}


def test_S1_tasks_wait_for_a_static_member_before_its_rejoin_timeout() -> None:
    states = {T0: unowned(standby("a")), T1: unowned(standby("b", READY))}
    answer = step(states, {T0: "x", T1: "x"}, waiting="x")
    assert answer.owners == {T1: "b"}
    assert answer.reasons[T0] == "waits for x"


def test_S1_a_task_returns_behind_a_learner_to_its_returned_member() -> None:
    answer = step({T0: running("b")}, {T0: "a"}, standbys={T0: ("b",)})
    assert answer.owners == {T0: "b"}
    assert answer.standbys == {T0: ("a",)}


def test_a_target_owner_that_left_gets_no_task() -> None:
    answer = step({T0: running("a"), T1: unowned()}, {T0: "x", T1: "x"})
    assert answer.owners == {T0: "a"}
    assert answer.learners == {}
    assert answer.parked == {T0, T1}


def test_a_handover_in_progress_is_finished() -> None:
    answer = step({T0: revoking("a", "b", learner("b", READY))}, {T0: "c"})
    assert answer.owners == {T0: "b"}
    assert answer.learners == {T0: "b"}


def test_a_handover_to_a_dead_member_is_reverted() -> None:
    assert step({T0: revoking("a", "x")}, {T0: "x"}).owners == {T0: "a"}


def test_a_standby_waits_while_its_member_runs_the_task() -> None:
    answer = step(
        {T0: running("a", learner("b"))},
        {T0: "b"},
        standbys={T0: ("a", "c")},
    )
    assert answer.owners == {T0: "a"}
    assert answer.standbys == {T0: ("b", "c")}


def test_an_owner_without_state_yields_to_a_ready_copy() -> None:
    state = running("a", standby("c", READY), state=Readiness.PROGRESSING)
    answer = step({T0: state}, {T0: "b"})
    assert answer.owners == {T0: "c"}
    assert answer.learners == {T0: "b"}


def test_an_owner_that_restores_keeps_its_task_after_its_first_progress() -> None:
    begun = running("a", state=Readiness.PROGRESSING)
    assert step({T0: begun}, {T0: "b"}).owners == {T0: "a"}
    waiting = running("a", state=NOTHING)
    assert step({T0: waiting}, {T0: "b"}).owners == {T0: "b"}


def test_stateless_tasks_move_immediately() -> None:
    answer = step({T0: running("a")}, {T0: "b"}, stateless=(T0,))
    assert answer.owners == {T0: "b"}
    assert answer.learners == {}


def test_without_refining_every_move_is_cold() -> None:
    states = {T0: running("a"), T1: running("a", standby("b", READY)), T2: unowned()}
    targets: dict[TaskId, str] = {T0: "b", T1: "c", T2: "c"}
    answer = step(states, targets, standbys={T1: ("b",)}, enabled=False)
    assert answer.owners == targets
    assert answer.learners == {}
    assert answer.standbys == {T1: ("b",)}
    assert not answer.parked


def test_tasks_of_leaving_members_move_first() -> None:
    present = (*members("a c d"), CurrentMember(name="b", leaving=True))
    states = {T0: running("a"), T1: running("a"), T2: running("b"), T3: running("b")}
    answer = step(states, {T0: "c", T1: "c", T2: "c", T3: "d"}, present=present)
    assert answer.learners == {T2: "c", T3: "d"}
