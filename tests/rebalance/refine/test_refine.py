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


def test_L3_a_task_goes_on_running_where_it_is_while_its_new_owner_learns() -> None:
    answer = step({T0: running("a")}, {T0: "b"})
    assert answer.owners == {T0: "a"}
    assert answer.learners == {T0: "b"}
    assert answer.reasons == {T0: "stays until b has caught up"}


def test_L2_a_ready_learner_takes_over_and_is_promoted_in_place() -> None:
    answer = step({T0: running("a", learner("b", READY))}, {T0: "b"})
    assert answer.owners == {T0: "b"}
    assert answer.learners == {T0: "b"}


def test_a_promoted_copy_leaves_the_lists_when_the_task_is_its_members() -> None:
    answer = step({T0: running("b")}, {T0: "b"})
    assert answer.owners == {T0: "b"}
    assert (answer.learners, answer.standbys, answer.reasons) == ({}, {}, {})


@pytest.mark.parametrize("readiness", [UNKNOWN, NOTHING, Readiness.PROGRESSING])
def test_L2_nothing_but_ready_passes(readiness: Readiness) -> None:
    answer = step({T0: running("a", learner("b", readiness))}, {T0: "b"})
    assert answer.owners == {T0: "a"}
    assert answer.learners == {T0: "b"}


def test_the_budget_is_the_groups_and_the_rest_is_parked() -> None:
    states = {task: running("a") for task in (T0, T1, T2)}
    answer = step(states, {T0: "b", T1: "b", T2: "c"})
    assert answer.owners == dict.fromkeys(states, "a")
    assert answer.learners == {T0: "b", T2: "c"}
    assert answer.parked == {T1}


def test_of_two_moves_the_one_that_relieves_the_fuller_member_is_first() -> None:
    states = {T0: running("a"), T1: running("c"), T2: running("c")}
    answer = step(states, {T0: "b", T1: "b", T2: "c"}, warmups=1)
    assert answer.learners == {T1: "b"}


def test_a_learner_in_flight_keeps_its_place() -> None:
    answer = step({T0: running("a"), T1: running("a", learner("b"))}, {T0: "b", T1: "b"}, warmups=1)
    assert answer.learners == {T1: "b"}
    assert answer.parked == {T0}


def test_a_learner_without_progress_gives_way_where_the_member_restores_a_task_that_stands_still() -> (
    None
):
    states = {
        T0: running("a", learner("b", NOTHING)),
        T1: running("a"),
        T2: running("b", state=Readiness.PROGRESSING),
    }
    answer = step(states, {T0: "b", T1: "c", T2: "b"}, warmups=1)
    assert answer.learners == {T1: "c"}
    states[T0] = running("a", learner("b"))
    assert step(states, {T0: "b", T1: "c", T2: "b"}, warmups=1).learners == {T0: "b"}


def test_a_standby_of_the_target_owner_is_borrowed_for_nothing() -> None:
    states = {T0: running("a", standby("b")), T1: running("a")}
    answer = step(states, {T0: "b", T1: "c"}, standbys={T0: ("c",)}, warmups=1)
    assert answer.learners == {T1: "c"}
    assert answer.standbys == {T0: ("b",)}
    assert not answer.parked


def test_a_place_of_a_standby_that_has_to_wait_is_the_learners_for_nothing() -> None:
    answer = step({T0: running("a")}, {T0: "b"}, standbys={T0: ("a",)}, warmups=0)
    assert answer.owners == {T0: "a"}
    assert answer.standbys == {T0: ("b",)}
    assert not answer.parked


def test_the_old_owner_keeps_its_state_where_the_target_wants_a_standby() -> None:
    answer = step({T0: running("a", standby("b", READY))}, {T0: "b"}, standbys={T0: ("a",)})
    assert answer.owners == {T0: "b"}
    assert answer.kept == {T0}
    assert answer.standbys == {T0: ("b",)}


def test_L5_a_learner_is_dropped_when_its_reason_is_gone() -> None:
    answer = step({T0: running("a", learner("b", READY))}, {T0: "a"})
    assert answer.owners == {T0: "a"}
    assert answer.learners == {}


def test_L5_what_a_dropped_learner_restored_serves_as_a_standby_until_the_wanted_one_is_ready() -> (
    None
):
    wanted = {T0: ("c",)}
    answer = step({T0: running("a", learner("b", READY))}, {T0: "a"}, standbys=wanted)
    assert answer.standbys == {T0: ("b", "c")}
    both = running("a", standby("b", READY), standby("c", READY))
    assert step({T0: both}, {T0: "a"}, standbys=wanted).standbys == wanted


def test_a_new_leader_throws_away_no_copy_before_it_has_heard_of_it() -> None:
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


def test_no_standby_is_planted_where_the_task_is_about_to_run() -> None:
    state = unowned(on_disk={"c": 0})
    answer = step({T0: state}, {T0: "b"}, standbys={T0: ("c",)})
    assert answer.owners == {T0: "c"}
    assert answer.standbys == {T0: ("b",)}


def test_a_member_whose_time_is_up_keeps_no_copy_for_others() -> None:
    present = (*members("a c"), CurrentMember(name="b", leaving=True, expelled=True))
    state = running("a", standby("b", READY))
    assert step({T0: state}, {T0: "a"}, present=present, standbys={T0: ("c",)}).standbys == {
        T0: ("c",)
    }


def test_N11_a_member_that_has_just_come_learns_but_takes_nothing_from_others() -> None:
    newcomer = (*members("a"), CurrentMember(name="b", settled=False))
    states = {T0: running("a", learner("b", READY)), T1: running("a"), T2: running("a")}
    answer = step(states, dict.fromkeys(states, "b"), present=newcomer, stateless=(T2,))
    assert answer.owners == dict.fromkeys(states, "a")
    assert answer.learners == {T0: "b", T1: "b"}


def test_N11_a_member_that_has_just_come_is_given_what_nobody_runs() -> None:
    newcomer = (CurrentMember(name="b", settled=False),)
    assert step({T0: unowned()}, {T0: "b"}, present=newcomer).owners == {T0: "b"}


def test_N11_who_has_settled_comes_first_for_a_place_among_the_learners() -> None:
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


def test_L4_when_its_time_is_up_everything_is_taken_from_a_leaving_member() -> None:
    present = (CurrentMember(name="a", leaving=True, expelled=True), *members("b c"))
    states = {T0: running("a", standby("c", READY)), T1: running("a")}
    answer = step(states, {T0: "b", T1: "b"}, present=present)
    assert answer.owners == {T0: "c", T1: "b"}
    assert answer.learners == {T0: "b"}
    assert not step({T0: running("a")}, {T0: "b"}, present=present, standbys={T0: ("a",)}).kept


def test_L4_the_last_member_lets_go_without_a_successor() -> None:
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


def test_a_task_without_owner_goes_to_its_target_owner_if_that_one_is_ready() -> None:
    answer = step({T0: unowned(learner("a", READY), standby("b", READY))}, {T0: "a"})
    assert answer.owners == {T0: "a"}
    assert answer.learners == {T0: "a"}


def test_a_task_without_owner_or_copies_starts_cold_where_it_belongs() -> None:
    assert step({T0: unowned()}, {T0: "b"}).owners == {T0: "b"}


def test_state_that_is_not_ready_is_better_than_none() -> None:
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


def test_S1_tasks_wait_for_a_member_that_comes_back_soon() -> None:
    states = {T0: unowned(standby("a")), T1: unowned(standby("b", READY))}
    answer = step(states, {T0: "x", T1: "x"}, waiting="x")
    assert answer.owners == {T1: "b"}
    assert answer.reasons[T0] == "waits for x"


def test_S1_a_task_goes_back_behind_a_learner_when_its_member_is_there_again() -> None:
    answer = step({T0: running("b")}, {T0: "a"}, standbys={T0: ("b",)})
    assert answer.owners == {T0: "b"}
    assert answer.standbys == {T0: ("a",)}


def test_a_target_owner_that_is_gone_takes_nothing() -> None:
    answer = step({T0: running("a"), T1: unowned()}, {T0: "x", T1: "x"})
    assert answer.owners == {T0: "a"}
    assert answer.learners == {}
    assert answer.parked == {T0, T1}


def test_a_hand_over_under_way_is_finished() -> None:
    answer = step({T0: revoking("a", "b", learner("b", READY))}, {T0: "c"})
    assert answer.owners == {T0: "b"}
    assert answer.learners == {T0: "b"}


def test_a_hand_over_to_a_member_that_died_goes_back() -> None:
    assert step({T0: revoking("a", "x")}, {T0: "x"}).owners == {T0: "a"}


def test_a_standby_waits_while_its_member_runs_the_task() -> None:
    answer = step(
        {T0: running("a", learner("b"))},
        {T0: "b"},
        standbys={T0: ("a", "c")},
    )
    assert answer.owners == {T0: "a"}
    assert answer.standbys == {T0: ("b", "c")}


def test_an_owner_without_state_gives_way_to_a_ready_copy() -> None:
    state = running("a", standby("c", READY), state=Readiness.PROGRESSING)
    answer = step({T0: state}, {T0: "b"})
    assert answer.owners == {T0: "c"}
    assert answer.learners == {T0: "b"}


def test_an_owner_that_restores_is_left_to_finish_unless_it_has_not_begun() -> None:
    begun = running("a", state=Readiness.PROGRESSING)
    assert step({T0: begun}, {T0: "b"}).owners == {T0: "a"}
    waiting = running("a", state=NOTHING)
    assert step({T0: waiting}, {T0: "b"}).owners == {T0: "b"}


def test_stateless_tasks_move_at_once() -> None:
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


def test_who_leaves_is_relieved_first() -> None:
    present = (*members("a c d"), CurrentMember(name="b", leaving=True))
    states = {T0: running("a"), T1: running("a"), T2: running("b"), T3: running("b")}
    answer = step(states, {T0: "c", T1: "c", T2: "c", T3: "d"}, present=present)
    assert answer.learners == {T2: "c", T3: "d"}
