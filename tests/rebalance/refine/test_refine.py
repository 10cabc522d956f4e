"""The learner gate, case by case: who runs a task now, who learns it, what waits."""

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
from tidewheel.rebalance.refine.refine_input import MemberNow, Readiness

READY, NOTHING, UNKNOWN = Readiness.READY, Readiness.NOTHING, Readiness.UNKNOWN


def test_L3_a_task_goes_on_running_where_it_is_while_its_new_owner_learns() -> None:
    """A target alone moves nothing: it plants a learner."""
    answer = step({T0: running("a")}, {T0: "b"})
    assert answer.owners == {T0: "a"}
    assert answer.learners == {T0: "b"}
    assert answer.reasons == {T0: "stays until b has caught up"}


def test_L2_a_ready_learner_takes_over_and_is_promoted_in_place() -> None:
    """The task is the learner's now; its copy is not dropped before it is."""
    answer = step({T0: running("a", learner("b", READY))}, {T0: "b"})
    assert answer.owners == {T0: "b"}
    assert answer.learners == {T0: "b"}


def test_a_promoted_copy_leaves_the_lists_when_the_task_is_its_members() -> None:
    """Once b owns it there is nothing to learn."""
    answer = step({T0: running("b")}, {T0: "b"})
    assert answer.owners == {T0: "b"}
    assert (answer.learners, answer.standbys, answer.reasons) == ({}, {}, {})


@pytest.mark.parametrize("readiness", [UNKNOWN, NOTHING, Readiness.PROGRESSING])
def test_L2_nothing_but_ready_passes(readiness: Readiness) -> None:
    """Above all not an unknown lag, as all are when a leader is new."""
    answer = step({T0: running("a", learner("b", readiness))}, {T0: "b"})
    assert answer.owners == {T0: "a"}
    assert answer.learners == {T0: "b"}


def test_the_budget_is_the_groups_and_the_rest_is_parked() -> None:
    """Three moves, two places: the new learners are spread over members."""
    states = {task: running("a") for task in (T0, T1, T2)}
    answer = step(states, {T0: "b", T1: "b", T2: "c"})
    assert answer.owners == dict.fromkeys(states, "a")
    assert answer.learners == {T0: "b", T2: "c"}
    assert answer.parked == {T1}


def test_of_two_moves_the_one_that_relieves_the_fuller_member_is_first() -> None:
    """Their target owners are equally full."""
    states = {T0: running("a"), T1: running("c"), T2: running("c")}
    answer = step(states, {T0: "b", T1: "b", T2: "c"}, warmups=1)
    assert answer.learners == {T1: "b"}


def test_a_learner_in_flight_keeps_its_place() -> None:
    """Also from a task that would come first."""
    answer = step({T0: running("a"), T1: running("a", learner("b"))}, {T0: "b", T1: "b"}, warmups=1)
    assert answer.learners == {T1: "b"}
    assert answer.parked == {T0}


def test_a_learner_without_progress_gives_way_where_the_member_restores_a_task_that_stands_still() -> (
    None
):
    """It would make none: a new one elsewhere does."""
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
    """It spends no place, and the standby that is to replace it waits."""
    states = {T0: running("a", standby("b")), T1: running("a")}
    answer = step(states, {T0: "b", T1: "c"}, standbys={T0: ("c",)}, warmups=1)
    assert answer.learners == {T1: "c"}
    assert answer.standbys == {T0: ("b",)}
    assert not answer.parked


def test_a_place_of_a_standby_that_has_to_wait_is_the_learners_for_nothing() -> None:
    """The target swaps a and b: a still runs the task, so b's copy is the one standby there should be."""
    answer = step({T0: running("a")}, {T0: "b"}, standbys={T0: ("a",)}, warmups=0)
    assert answer.owners == {T0: "a"}
    assert answer.standbys == {T0: ("b",)}
    assert not answer.parked


def test_the_old_owner_keeps_its_state_where_the_target_wants_a_standby() -> None:
    """Told on the way, so that it need not restore what it had."""
    answer = step({T0: running("a", standby("b", READY))}, {T0: "b"}, standbys={T0: ("a",)})
    assert answer.owners == {T0: "b"}
    assert answer.kept == {T0}
    assert answer.standbys == {T0: ("b",)}


def test_L5_a_learner_is_dropped_when_its_reason_is_gone() -> None:
    """The target wants the task where it is again."""
    answer = step({T0: running("a", learner("b", READY))}, {T0: "a"})
    assert answer.owners == {T0: "a"}
    assert answer.learners == {}


def test_L5_what_a_dropped_learner_restored_serves_as_a_standby_until_the_wanted_one_is_ready() -> (
    None
):
    """A ready copy is not thrown away while there are fewer than there should be."""
    wanted = {T0: ("c",)}
    answer = step({T0: running("a", learner("b", READY))}, {T0: "a"}, standbys=wanted)
    assert answer.standbys == {T0: ("b", "c")}
    both = running("a", standby("b", READY), standby("c", READY))
    assert step({T0: both}, {T0: "a"}, standbys=wanted).standbys == wanted


def test_a_new_leader_throws_away_no_copy_before_it_has_heard_of_it() -> None:
    """It may be the only one that is ready; what is known not to be is dropped."""
    known = running("a", standby("b", UNKNOWN), standby("d"), standby("c"))
    present = members("a b c d")
    answer = step({T0: known}, {T0: "a"}, present=present, standbys={T0: ("c",)})
    assert answer.standbys == {T0: ("b", "c")}
    known = running("a", standby("b", UNKNOWN), standby("d", READY), standby("c"))
    answer = step({T0: known}, {T0: "a"}, present=present, standbys={T0: ("c",)})
    assert answer.standbys == {T0: ("c", "d")}


def test_a_ready_learner_is_not_counted_as_a_spare_standby() -> None:
    """Neither while it waits to be settled, nor while it is promoted: one copy on a member."""
    states, wanted = {T0: running("a", learner("b", READY))}, {T0: ("c",)}
    for settled in (False, True):
        present = (*members("a c"), MemberNow(name="b", settled=settled))
        answer = step(states, {T0: "b"}, present=present, standbys=wanted)
        assert answer.learners == {T0: "b"}
        assert answer.standbys == {T0: ("c",)}


def test_no_standby_is_planted_where_the_task_is_about_to_run() -> None:
    """Its state on disk is opened as the task's."""
    state = unowned(on_disk={"c": 0})
    answer = step({T0: state}, {T0: "b"}, standbys={T0: ("c",)})
    assert answer.owners == {T0: "c"}
    assert answer.standbys == {T0: ("b",)}


def test_a_member_whose_time_is_up_keeps_no_copy_for_others() -> None:
    """It is to be gone."""
    present = (*members("a c"), MemberNow(name="b", leaving=True, expelled=True))
    state = running("a", standby("b", READY))
    assert step({T0: state}, {T0: "a"}, present=present, standbys={T0: ("c",)}).standbys == {
        T0: ("c",)
    }


def test_N11_a_member_that_has_just_come_learns_but_takes_nothing_from_others() -> None:
    """Neither state nor stateless tasks."""
    newcomer = (*members("a"), MemberNow(name="b", settled=False))
    states = {T0: running("a", learner("b", READY)), T1: running("a"), T2: running("a")}
    answer = step(states, dict.fromkeys(states, "b"), present=newcomer, stateless=(T2,))
    assert answer.owners == dict.fromkeys(states, "a")
    assert answer.learners == {T0: "b", T1: "b"}


def test_N11_a_member_that_has_just_come_is_given_what_nobody_runs() -> None:
    """There is nobody to take it from."""
    newcomer = (MemberNow(name="b", settled=False),)
    assert step({T0: unowned()}, {T0: "b"}, present=newcomer).owners == {T0: "b"}


def test_N11_who_has_settled_comes_first_for_a_place_among_the_learners() -> None:
    """Members that vanish again hold up nobody's moves."""
    states = {T0: running("a", learner("b")), T1: running("a")}
    present = (*members("a c"), MemberNow(name="b", settled=False))
    answer = step(states, {T0: "b", T1: "c"}, present=present, warmups=1)
    assert answer.learners == {T1: "c"}


def test_L4_tasks_of_a_leaving_member_move_behind_learners() -> None:
    """It goes on running them; two may learn at once even if the budget is one, and nobody has to settle."""
    present = (MemberNow(name="a", leaving=True), MemberNow(name="b", settled=False))
    states = {T0: running("a"), T1: running("a", learner("b", READY)), T2: running("a")}
    answer = step(states, dict.fromkeys(states, "b"), present=present, warmups=1)
    assert answer.owners == {T0: "a", T1: "b", T2: "a"}
    assert answer.learners == {T0: "b", T1: "b"}
    assert answer.parked == {T2}


def test_L4_when_its_time_is_up_everything_is_taken_from_a_leaving_member() -> None:
    """Ready copies first; the rest goes to its target owner cold."""
    present = (MemberNow(name="a", leaving=True, expelled=True), *members("b c"))
    states = {T0: running("a", standby("c", READY)), T1: running("a")}
    answer = step(states, {T0: "b", T1: "b"}, present=present)
    assert answer.owners == {T0: "c", T1: "b"}
    assert answer.learners == {T0: "b"}
    assert not step({T0: running("a")}, {T0: "b"}, present=present, standbys={T0: ("a",)}).kept


def test_L4_the_last_member_lets_go_without_a_successor() -> None:
    """Nobody is to own its tasks then."""
    present = (MemberNow(name="a", leaving=True, expelled=True),)
    assert step({T0: running("a")}, {T0: "a"}, present=present).owners == {}


def test_a_task_without_owner_goes_to_the_best_ready_copy() -> None:
    """One that the target does not count on as a standby, on the least loaded member; the target owner learns."""
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
    """Then there is nothing left to do."""
    answer = step({T0: unowned(learner("a", READY), standby("b", READY))}, {T0: "a"})
    assert answer.owners == {T0: "a"}
    assert answer.learners == {T0: "a"}


def test_a_task_without_owner_or_copies_starts_cold_where_it_belongs() -> None:
    """Waiting would be longer."""
    assert step({T0: unowned()}, {T0: "b"}).owners == {T0: "b"}


def test_state_that_is_not_ready_is_better_than_none() -> None:
    """A new leader knows of no copy how far it is: the task is restored where most of it may be, not from nothing."""
    answer = step({T0: unowned(standby("a", UNKNOWN))}, {T0: "b"})
    assert answer.owners == {T0: "a"}
    assert step({T0: unowned(standby("a", NOTHING))}, {T0: "b"}).owners == {T0: "b"}
    with_disk = unowned(standby("a", UNKNOWN), on_disk={"c": 20_000})
    assert step({T0: with_disk}, {T0: "c"}).owners == {T0: "c"}
    assert step({T0: unowned(on_disk={"a": -1, "c": 20_000})}, {T0: "b"}).owners == {T0: "c"}


def test_fresh_state_on_the_target_owners_disk_is_opened_there() -> None:
    """A member that comes back finds its own; but a ready copy elsewhere wins over stale state."""
    fresh = unowned(standby("a", READY), on_disk={"b": 20})
    assert step({T0: fresh}, {T0: "b"}).owners == {T0: "b"}
    stale = unowned(standby("a", READY), on_disk={"b": 20_000_000})
    assert step({T0: stale}, {T0: "b"}).owners == {T0: "a"}
    elsewhere = unowned(learner("b"), on_disk={"c": 20})
    assert step({T0: elsewhere}, {T0: "b"}).owners == {T0: "c"}


def test_S1_tasks_wait_for_a_member_that_comes_back_soon() -> None:
    """Unless a ready copy exists, which takes over."""
    states = {T0: unowned(standby("a")), T1: unowned(standby("b", READY))}
    answer = step(states, {T0: "x", T1: "x"}, waiting="x")
    assert answer.owners == {T1: "b"}
    assert answer.reasons[T0] == "waits for x"


def test_S1_a_task_goes_back_behind_a_learner_when_its_member_is_there_again() -> None:
    """The copy that took over runs on meanwhile."""
    answer = step({T0: running("b")}, {T0: "a"}, standbys={T0: ("b",)})
    assert answer.owners == {T0: "b"}
    assert answer.standbys == {T0: ("a",)}


def test_a_target_owner_that_is_gone_takes_nothing() -> None:
    """The task stays, nothing is planted, the next target is to come."""
    answer = step({T0: running("a"), T1: unowned()}, {T0: "x", T1: "x"})
    assert answer.owners == {T0: "a"}
    assert answer.learners == {}
    assert answer.parked == {T0, T1}


def test_a_hand_over_under_way_is_finished() -> None:
    """The target says c by now: that comes after."""
    answer = step({T0: revoking("a", "b", learner("b", READY))}, {T0: "c"})
    assert answer.owners == {T0: "b"}
    assert answer.learners == {T0: "b"}


def test_a_hand_over_to_a_member_that_died_goes_back() -> None:
    """The old owner has all the state."""
    assert step({T0: revoking("a", "x")}, {T0: "x"}).owners == {T0: "a"}


def test_a_standby_waits_while_its_member_runs_the_task() -> None:
    """Never two copies of one task on a member; the other standby is placed."""
    answer = step(
        {T0: running("a", learner("b"))},
        {T0: "b"},
        standbys={T0: ("a", "c")},
    )
    assert answer.owners == {T0: "a"}
    assert answer.standbys == {T0: ("b", "c")}


def test_an_owner_without_state_gives_way_to_a_ready_copy() -> None:
    """It runs sooner there."""
    state = running("a", standby("c", READY), state=Readiness.PROGRESSING)
    answer = step({T0: state}, {T0: "b"})
    assert answer.owners == {T0: "c"}
    assert answer.learners == {T0: "b"}


def test_an_owner_that_restores_is_left_to_finish_unless_it_has_not_begun() -> None:
    """What is restored is not thrown away; what is not restored anywhere is restored where it belongs."""
    begun = running("a", state=Readiness.PROGRESSING)
    assert step({T0: begun}, {T0: "b"}).owners == {T0: "a"}
    waiting = running("a", state=NOTHING)
    assert step({T0: waiting}, {T0: "b"}).owners == {T0: "b"}


def test_stateless_tasks_move_at_once() -> None:
    """There is nothing to learn."""
    answer = step({T0: running("a")}, {T0: "b"}, stateless=(T0,))
    assert answer.owners == {T0: "b"}
    assert answer.learners == {}


def test_without_refining_every_move_is_cold() -> None:
    """The baseline that learners are measured against; standbys stay what they are."""
    states = {T0: running("a"), T1: running("a", standby("b", READY)), T2: unowned()}
    targets: dict[TaskId, str] = {T0: "b", T1: "c", T2: "c"}
    answer = step(states, targets, standbys={T1: ("b",)}, enabled=False)
    assert answer.owners == targets
    assert answer.learners == {}
    assert answer.standbys == {T1: ("b",)}
    assert not answer.parked


def test_who_leaves_is_relieved_first() -> None:
    """Its time is limited, others' is not."""
    present = (*members("a c d"), MemberNow(name="b", leaving=True))
    states = {T0: running("a"), T1: running("a"), T2: running("b"), T3: running("b")}
    answer = step(states, {T0: "c", T1: "c", T2: "c", T3: "d"}, present=present)
    assert answer.learners == {T2: "c", T3: "d"}
