"""Legal states of an application."""

import pytest

from tidewheel.streams.worker.application.application_state import MOVES, KafkaStreamsState, legal

S = KafkaStreamsState


@pytest.mark.parametrize(
    ("state", "to"),
    [
        (S.CREATED, S.REBALANCING),
        (S.REBALANCING, S.RUNNING),
        (S.RUNNING, S.REBALANCING),
        (S.RUNNING, S.PENDING_SHUTDOWN),
        (S.RUNNING, S.PENDING_ERROR),
        (S.PENDING_SHUTDOWN, S.NOT_RUNNING),
        (S.PENDING_ERROR, S.ERROR),
    ],
)
def test_documented_state_changes_are_allowed(state: S, to: S) -> None:
    assert legal(state, to)


@pytest.mark.parametrize(
    ("state", "to"),
    [
        (S.CREATED, S.RUNNING),
        (S.RUNNING, S.CREATED),
        (S.RUNNING, S.NOT_RUNNING),
        (S.NOT_RUNNING, S.REBALANCING),
        (S.ERROR, S.RUNNING),
        (S.ERROR, S.PENDING_SHUTDOWN),
        (S.PENDING_SHUTDOWN, S.RUNNING),
    ],
)
def test_other_state_changes_are_not_allowed(state: S, to: S) -> None:
    assert not legal(state, to)


@pytest.mark.parametrize("state", S)
def test_every_state_leads_to_a_final_state(state: S) -> None:
    reached = {state}
    for _ in S:
        reached |= {to for each in reached for to in MOVES[each]}
    assert reached & {S.NOT_RUNNING, S.ERROR}
    assert not MOVES[S.NOT_RUNNING]
    assert not MOVES[S.ERROR]
    assert not any(legal(state, state) for state in S)
