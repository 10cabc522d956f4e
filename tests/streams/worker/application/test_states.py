"""Legal states of an application."""

import pytest

from tidewheel.streams.worker.application.application_state import _MOVES, KafkaStreamsState, legal

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
def test_the_moves_of_a_life_are_legal(state: S, to: S) -> None:
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
def test_other_moves_are_not(state: S, to: S) -> None:
    assert not legal(state, to)


@pytest.mark.parametrize("state", S)
def test_every_state_leads_to_an_end(state: S) -> None:
    reached = {state}
    for _ in S:
        reached |= {to for each in reached for to in _MOVES[each]}
    assert reached & {S.NOT_RUNNING, S.ERROR}
    assert not _MOVES[S.NOT_RUNNING]
    assert not _MOVES[S.ERROR]
    assert not any(legal(state, state) for state in S)
