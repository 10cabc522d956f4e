"""Election: suspicion and claim by the local clock (H1, H2, H22)."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.rebalance.protocol.group import Group, replay
from tidewheel.rebalance.protocol.messages import AnyMessage, LeaderBeat, Suspect
from tidewheel.rebalance.protocol.records import LeaderClaim, MemberRecord
from tidewheel.rebalance.runtime.election import CLAIM_HEARTBEATS, Election

HEARTBEAT_MS = 500


def group_of(leader: str, epoch: int, *processes: str) -> Group:
    members = [
        MemberRecord(
            leader_epoch=epoch, member=each, incarnation=each, phase="ACTIVE", process_id=each
        )
        for each in processes
    ]
    return replay([LeaderClaim(leader_epoch=epoch, leader=leader), *members])


def candidate(name: str = "p1", seed: int = 0, group: Group | None = None) -> Election:
    election = Election(
        name, app="shop", jitter_seed=seed, heartbeat_interval_ms=HEARTBEAT_MS, now_ms=0
    )
    if group is not None:
        election.follow(group, 0)
    return election


def beat(epoch: int, leader: str = "p0", *, resigns: bool = False) -> LeaderBeat:
    return LeaderBeat(
        app="shop", member=leader, incarnation=leader, leader_epoch=epoch, seq=1, resigns=resigns
    )


def claims_at(election: Election, *, from_ms: int = 0) -> tuple[int | None, list[AnyMessage]]:
    """Pass time in silence; return the claim time and earlier messages."""
    said: list[AnyMessage] = []
    now_ms = from_ms
    while now_ms <= from_ms + 20_000:
        decision = election.decide(now_ms)
        said += decision.messages
        for message in decision.messages:
            election.receive(message, now_ms)  # from the inbox
        if decision.claim:
            return now_ms, said
        assert decision.wake_ms > now_ms
        now_ms = decision.wake_ms
    return None, said


def test_a_silent_leader_is_suspected_then_replaced_before_leases_run_out() -> None:
    at_ms, said = claims_at(candidate(group=group_of("p0", 4, "p0", "p1", "p2")))
    assert at_ms is not None
    assert 3 * HEARTBEAT_MS <= at_ms <= 2_500
    assert said == [Suspect(app="shop", member="p1", incarnation="p1", leader_epoch=4)]


def test_H2_a_leader_that_answers_a_suspicion_stays() -> None:
    election = candidate(group=group_of("p0", 1, "p0", "p1"))
    now_ms = election.decide(0).wake_ms
    assert election.decide(now_ms).messages
    election.receive(beat(1), now_ms + 10)
    after = election.decide(now_ms + 600)
    assert not after.claim
    assert not after.messages


def test_a_candidate_that_does_not_read_its_suspicion_repeats_it_and_claims_nothing() -> None:
    election = candidate(group=group_of("p0", 1, "p0", "p1"))
    said: list[AnyMessage] = []
    for now_ms in range(0, 30_000, 50):
        decision = election.decide(now_ms)
        said += decision.messages
        assert not decision.claim
    assert 20 <= len(said) <= 30
    election.receive(msgspec.structs.replace(said[-1], incarnation="p2"), now_ms)
    election.receive(msgspec.structs.replace(said[-1], leader_epoch=0), now_ms)
    assert not election.decide(now_ms + HEARTBEAT_MS).claim
    election.receive(said[-1], now_ms)
    assert election.decide(now_ms + HEARTBEAT_MS).claim


def test_heartbeats_of_a_deposed_leader_do_not_count() -> None:
    election = candidate(group=group_of("p0", 4, "p0", "p1"))
    for now_ms in range(0, 1_600, 100):
        election.receive(beat(3), now_ms)
        election.receive(msgspec.structs.replace(beat(4), app="other"), now_ms)
    assert election.decide(1_600).messages, "it is suspected: nothing was heard of it"


def test_a_new_claim_counts_as_a_heartbeat() -> None:
    election = candidate(group=group_of("p0", 1, "p0", "p1", "p2"))
    election.follow(group_of("p2", 2, "p0", "p1", "p2"), 900)
    assert not election.decide(1_800).messages


def test_a_resigning_leader_is_replaced_immediately() -> None:
    election = candidate(group=group_of("p0", 1, "p0", "p1"))
    election.receive(beat(1, resigns=True), 0)
    at_ms, said = claims_at(election)
    assert at_ms is not None
    assert at_ms <= HEARTBEAT_MS
    assert not said


@given(st.integers(min_value=0, max_value=2**31))
def test_a_group_without_a_leader_gets_a_claim_within_a_heartbeat(seed: int) -> None:
    at_ms, said = claims_at(candidate(seed=seed))
    assert at_ms is not None
    assert at_ms <= HEARTBEAT_MS
    assert not said


def test_candidates_of_one_group_claim_at_different_times() -> None:
    names = ["p1", "p2", "p3"]
    firsts: set[str] = set()
    for epoch in range(1, 7):
        group = group_of("p0", epoch, "p0", *names)
        times = {name: claims_at(candidate(name, group=group))[0] for name in names}
        ordered = sorted(names, key=lambda name: times[name] or 0)
        firsts.add(ordered[0])
        assert (times[ordered[1]] or 0) - (times[ordered[0]] or 0) >= 60
    assert firsts == set(names)


def test_a_claim_without_effect_is_tried_again() -> None:
    election = candidate(group=group_of("p0", 1, "p0", "p1"))
    at_ms, _ = claims_at(election)
    assert at_ms is not None
    assert not election.decide(at_ms + 10).claim
    again_ms = at_ms + CLAIM_HEARTBEATS * HEARTBEAT_MS
    (suspicion,) = election.decide(again_ms).messages
    election.receive(suspicion, again_ms)
    assert election.decide(again_ms + HEARTBEAT_MS).claim


@pytest.mark.parametrize("heartbeats", [1, 4, 8, 16, 24])
def test_claims_that_take_long_end_with_one_lasting_leader(heartbeats: int) -> None:
    elections = {name: candidate(name) for name in ("p1", "p2", "p3")}
    claiming, ends_ms, leader, epoch, led_ms = "", 0, "", 0, 0
    for now_ms in range(0, 120_000, 50):
        if claiming and now_ms >= ends_ms:
            epoch, leader, claiming, led_ms = epoch + 1, claiming, "", now_ms
            for election in elections.values():
                election.follow(group_of(leader, epoch, *elections), now_ms)
        for name, election in elections.items():
            if leader and now_ms % HEARTBEAT_MS == 0:
                election.receive(beat(epoch, leader), now_ms)
            decision = election.decide(now_ms)
            for message in decision.messages:
                election.receive(message, now_ms)
            if decision.claim:  # fences the leader, or another claim
                claiming, ends_ms, leader = name, now_ms + heartbeats * HEARTBEAT_MS, ""
    assert leader
    assert led_ms < 60_000


def test_a_settled_leader_ends_the_wait_after_claims() -> None:
    election = candidate(group=group_of("p0", 1, "p0", "p1"))
    first_ms, _ = claims_at(election)
    assert first_ms is not None
    election.follow(group_of("p2", 2, "p0", "p1", "p2"), first_ms)
    for now_ms in range(first_ms, first_ms + 6_000, 500):
        election.receive(beat(2, "p2"), now_ms)
        assert not election.decide(now_ms).claim
    quiet_ms, _ = claims_at(election, from_ms=now_ms)
    assert quiet_ms is not None
    assert quiet_ms - now_ms <= 2_500


def test_a_process_missing_in_the_log_waits_longest() -> None:
    group = group_of("p0", 1, "p0", "p1", "p2")
    known = [claims_at(candidate(name, group=group))[0] or 0 for name in ("p1", "p2")]
    stranger = claims_at(candidate("stranger", group=group))[0] or 0
    assert stranger > max(known)
