"""Simulated lifetimes with faults; each failure names its replay command."""

from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

from tests.simulation.__main__ import live
from tests.simulation.metrics import Metrics
from tests.simulation.model.world import Violation
from tests.simulation.mutants import MUTANTS, Mutant, caught, removed
from tests.simulation.scenario import draw
from tests.simulation.simulator import Simulation
from tidewheel.rebalance.model import MEMBER_MOVES, TASK_MOVES, MemberPhase, TaskPhase
from tidewheel.rebalance.protocol.field_types import ShardCount

_Phase = TypeVar("_Phase", MemberPhase, TaskPhase)

#: Seeds with past failures, one per line.
REGRESSIONS = Path(__file__).with_name("regressions.txt")

#: `make simulate` has 4,000.
LIFETIMES = 25
GENTLE_LIFETIMES = 8
BASELINE_LIFETIMES = 6
SHARDED_LIFETIMES = 8
RESTS = 12


@cache
def _lifetimes(first: int, count: int, *, faults: bool, refine: bool) -> Metrics:
    total = Metrics()
    for seed in range(first, first + count):
        total.add(live(seed, faults=faults, refine=refine))
    return total


@pytest.mark.slow
def test_lifetimes_with_faults_keep_every_invariant() -> None:
    total = _lifetimes(1, LIFETIMES, faults=True, refine=True)
    assert total.lifetimes == LIFETIMES


@pytest.mark.slow
def test_lifetimes_have_the_intended_number_of_events() -> None:
    total = _lifetimes(1, LIFETIMES, faults=True, refine=True)
    assert total.fewest_events >= 200
    assert total.fewest_faults >= 5
    assert total.fewest_kinds >= 3
    assert total.fewest_leaders >= 2
    assert total.commits > 20 * LIFETIMES
    assert len(total.faults) >= 25


@pytest.mark.slow
def test_phases_make_only_the_moves_of_the_tables() -> None:
    """The pictures of docs/internals/protocol.md are drawn from these tables."""
    total = _lifetimes(1, LIFETIMES, faults=True, refine=True)
    assert total.task_moves == _moves(TASK_MOVES)
    assert {(old, new) for old, new in total.member_moves if old != new} <= _moves(MEMBER_MOVES)
    assert len(total.member_moves) > 5


def _moves(table: Mapping[_Phase, Mapping[_Phase, str]]) -> set[tuple[str, str]]:
    return {(old.value, new.value) for old, moves in table.items() for new in moves}


def test_a_lifetime_has_three_to_eight_members_and_twelve_to_sixty_tasks() -> None:
    scenarios = [draw(seed) for seed in range(1, 1_001)]
    assert {len(each.members) for each in scenarios} == set(range(3, 9))
    assert {each.stateful + each.stateless for each in scenarios} == set(range(12, 61))


def test_a_lifetime_that_is_too_quiet_is_a_failure() -> None:
    faults = Counter(kill_host=3, cut_off=1, lose_reply=1, join=4)
    assert not Metrics(events=200, leaders=2, faults=faults).lacks()
    assert Metrics(events=199, leaders=2, faults=faults).lacks()
    assert Metrics(events=200, leaders=1, faults=faults).lacks()
    assert Metrics(events=200, leaders=2, faults=faults - Counter(kill_host=1)).lacks()
    orderly = Counter(kill_host=5, join=3, compact=3, grow=3)
    assert Metrics(events=200, leaders=2, faults=orderly).lacks()


@pytest.mark.slow
def test_L3_no_planned_move_is_cold_with_learners() -> None:
    total = _lifetimes(1, GENTLE_LIFETIMES, faults=False, refine=True)
    assert total.cold == 0
    assert total.warm >= 5 * GENTLE_LIFETIMES


@pytest.mark.slow
def test_L3_without_the_refiner_moves_are_cold() -> None:
    baseline = _lifetimes(1, BASELINE_LIFETIMES, faults=False, refine=False)
    learners = _lifetimes(1, BASELINE_LIFETIMES, faults=False, refine=True)
    assert baseline.cold > 0
    assert baseline.restored > 5 * max(learners.restored, 1)


def test_a_seed_reproduces_a_lifetime() -> None:
    traces: list[str] = []
    for seed in (7, 7, 8):
        simulation = Simulation(draw(seed))
        simulation.run()
        traces.append(simulation.world.trace.text())
    assert traces[0] == traces[1]
    assert traces[0] != traces[2]


def _regressions() -> list[int]:
    lines = REGRESSIONS.read_text(encoding="utf-8").splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("seed", _regressions())
def test_earlier_failures_do_not_return(seed: int) -> None:
    live(seed)


@cache
def _lives(seed: int, more: tuple[str, ...], shards: ShardCount) -> bool:
    Simulation(draw(seed, more=more, shards=shards)).run()
    return True


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.rule)
def test_every_rule_is_needed(mutant: Mutant) -> None:
    assert caught(mutant, mutant.seed), (
        f"without this rule nothing goes wrong in seed {mutant.seed}: {mutant.what}. "
        "If lifetimes have changed, `python -m tests.simulation --mutants` finds another seed"
    )
    assert _lives(mutant.seed, mutant.more, mutant.shards)


def test_a_failure_names_the_command_that_repeats_it() -> None:
    fence_twice = next(mutant for mutant in MUTANTS if mutant.rule == "invariant 4")
    with removed(fence_twice), pytest.raises(Violation) as failure:
        live(fence_twice.seed)
    text = str(failure.value)
    assert f"python -m tests.simulation --seed {fence_twice.seed} --verbose" in text
    assert "VIOLATION invariant" in text
    assert len(text.splitlines()) > 20


@pytest.mark.slow
def test_H24_a_group_with_lost_topics_stops_until_it_is_recovered() -> None:
    """Control topics are deleted: without a log no input is taken, no data lost or repeated.

    In 76 a watchdog was replaced shortly before; its worker continues on the old lease. In 15 and
    77 a stranger (by version, by assignor) comes before the held members (invariant 17).
    """
    for seed in (*range(1, 8), 15, 76, 77):
        simulation = Simulation(draw(seed, more=("lose_topics",)))
        simulation.run()
        assert simulation.topics_life() == 2


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 2])
def test_a_group_comes_to_rest_and_continues_whoever_joins_leaves_or_dies(
    shards: ShardCount,
) -> None:
    """Outputs, state and offsets agree always; at rest nothing is committed, and shards are level."""
    levelled = 0
    for seed in range(1, RESTS + 1):
        simulation = Simulation(draw(seed, more=("rest",), shards=shards))
        simulation.run()
        assert len(simulation.resting.cuts) == 1, f"seed {seed}"
        levelled += simulation.resting.levelled
    assert (levelled > 0) is (shards > 1)


@pytest.mark.slow
def test_H24_a_worker_whose_watchdog_dies_after_a_recovery_ends() -> None:
    simulation = Simulation(draw(8, more=("lose_topics",)))
    simulation.run()
    text = simulation.world.trace.text()
    killed = text.index("the watchdog of p1 is killed")
    assert text.index("the group was set up again") < killed
    assert "m1.1 ends: FENCED the group log does not have this incarnation" in text[killed:]


@pytest.mark.slow
def test_N14_members_of_two_versions_work_in_one_group() -> None:
    mixed = [seed for seed in range(1, 200) if draw(seed).newer][:6]
    assert len(mixed) == 6
    assert {draw(seed).rolls_back for seed in mixed} == {True, False}
    total = Metrics()
    for seed in mixed:
        total.add(live(seed))
    assert 6 <= total.newer_leaders <= total.leaders - 6, "members of both versions have led"


@pytest.mark.slow
@pytest.mark.parametrize("shards", [2, 4])
def test_K8_lifetimes_with_shards_keep_every_invariant(shards: ShardCount) -> None:
    """`make simulate` has 500 of each."""
    for seed in range(1, SHARDED_LIFETIMES + 1):
        live(seed, shards=shards)


@pytest.mark.slow
def test_K8_a_lost_group_with_shards_is_recovered() -> None:
    for seed in range(1, 4):
        simulation = Simulation(draw(seed, more=("lose_topics",), shards=2))
        simulation.run()
        assert simulation.topics_life() == 2
