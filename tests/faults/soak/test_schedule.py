"""Schedules of random faults, and the measure of the longest stall."""

from random import Random

import pytest

from tests.faults.broker_cluster import NODES
from tests.faults.soak.nemesis import Stalls
from tests.faults.soak.schedule import BROKERS, POINTS, VISITOR, WORKERS, draw_burst, draw_round
from tidewheel.state_stores import failpoints

_HOUR_S = 3_600.0


def test_a_seed_draws_the_same_faults_again() -> None:
    first = draw_round(7, 1, _HOUR_S, brokers=NODES)
    assert first == draw_round(7, 1, _HOUR_S, brokers=NODES)
    assert first != draw_round(8, 1, _HOUR_S, brokers=NODES)
    assert first != draw_round(7, 2, _HOUR_S, brokers=NODES)


def test_a_long_round_has_every_fault_and_ends_in_time() -> None:
    lanes = draw_round(1, 1, _HOUR_S, brokers=NODES, hosts=True)
    assert set(lanes) == {*WORKERS, VISITOR, BROKERS}
    for faults in lanes.values():
        assert 0.8 * _HOUR_S < sum(each.wait_s + each.for_s for each in faults) <= _HOUR_S
    faults = [fault for lane in lanes.values() for fault in lane]
    assert {fault.kind for fault in faults} == {
        *("kill worker", "kill worker and helpers", "kill watchdog", "kill at failpoint"),
        *("pause worker", "pause worker and helpers", "pause watchdog", "pause at failpoint"),
        *("kill restore helper", "pause restore helper", "restart worker", "lose worker and disk"),
        *("restart broker", "kill broker", "pause broker", "kill two brokers"),
        *("scale up and down", "cut network", "fill disk"),
    }
    pauses = [fault.for_s for fault in faults if fault.kind.startswith("pause")]
    assert 0.1 <= min(pauses) < 0.2
    assert 10.0 < max(pauses) <= 15.0


def test_one_broker_fails_at_a_time_and_now_and_then_two() -> None:
    faults = draw_round(1, 1, _HOUR_S, brokers=NODES)[BROKERS]
    assert all(len(each.nodes) == 1 + (each.kind == "kill two brokers") for each in faults)
    two = sum(len(each.nodes) == 2 for each in faults)
    assert 0 < two < len(faults) / 5
    assert {node for each in faults for node in each.nodes} == set(NODES)


def test_a_round_without_brokers_spares_them() -> None:
    assert BROKERS not in draw_round(1, 1, 60.0, brokers=())


def test_a_round_without_hosts_spares_networks_and_disks() -> None:
    lanes = draw_round(1, 1, _HOUR_S, brokers=()).values()
    assert not {fault.kind for lane in lanes for fault in lane} & {"cut network", "fill disk"}


def test_bursts_are_short_and_hit_workers_and_watchdogs_only() -> None:
    chance = Random(1)
    bursts = [draw_burst(chance) for _ in range(200)]
    for burst in bursts:
        faults = [fault for lane in burst.values() for fault in lane]
        assert 2 <= len(faults) <= 5
        assert burst.keys() <= set(WORKERS)
        assert all(each.wait_s <= 1.5 and each.for_s <= 3.0 for each in faults)
    kinds = {fault.kind for burst in bursts for lane in burst.values() for fault in lane}
    assert all("broker" not in kind and "disk" not in kind for kind in kinds)
    assert len(kinds) == 8


@pytest.mark.parametrize("point", POINTS)
def test_all_points_of_schedules_are_failpoints(point: str) -> None:
    assert failpoints._NAMES.fullmatch(point)


def test_the_longest_stall_is_measured_over_all_lives_of_workers() -> None:
    stalls = Stalls(10.0)
    stalls.sample([{0: 5}, {1: 7}], 11.0)
    assert stalls.worst_s == 1.0  # before the first record
    stalls.sample([{0: 6}, {1: 7}], 12.5)
    assert stalls.worst_s == 1.5  # partition 1
    stalls.sample([{0: 3, 1: 9}], 13.0)  # another worker repeats records of partition 0
    stalls.sample([{0: 6, 1: 10}], 15.0)
    assert stalls.worst_s == 2.5
    stalls.sample([{0: 7, 1: 11}], 16.0)
    assert stalls.worst_s == 3.5
