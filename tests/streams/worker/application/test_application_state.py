"""Order of state reports across threads."""

import threading

from tidewheel.streams.worker.application.application_state import (
    ApplicationState,
    KafkaStreamsState,
)

_PATIENCE_S = 30.0

S = KafkaStreamsState


def test_state_changes_of_all_threads_are_reported_in_order() -> None:
    state = ApplicationState()
    told: list[tuple[S, S]] = []
    is_told, go_on = threading.Event(), threading.Event()

    def listen(new: S, old: S) -> None:
        if new is S.RUNNING:
            is_told.set()
            assert go_on.wait(_PATIENCE_S)
        told.append((old, new))

    state.listener = listen
    state.move_to(S.REBALANCING)
    worker = threading.Thread(target=state.move_to, args=(S.RUNNING,))
    worker.start()
    assert is_told.wait(_PATIENCE_S)
    assert state.wait_for_running(_PATIENCE_S)
    state.move_to(S.PENDING_SHUTDOWN)  # by this thread, while the other reports
    assert state.current is S.PENDING_SHUTDOWN
    go_on.set()
    worker.join(_PATIENCE_S)
    assert told == [
        (S.CREATED, S.REBALANCING),
        (S.REBALANCING, S.RUNNING),
        (S.RUNNING, S.PENDING_SHUTDOWN),
    ]


def test_a_listener_may_make_a_change_itself() -> None:
    state = ApplicationState()
    told: list[S] = []

    def listen(new: S, _: S) -> None:
        if new is S.REBALANCING:
            state.move_to(S.PENDING_SHUTDOWN)
        told.append(new)

    state.listener = listen
    state.move_to(S.REBALANCING)
    assert told == [S.REBALANCING, S.PENDING_SHUTDOWN]


def test_a_failing_listener_receives_the_next_change() -> None:
    state = ApplicationState()
    told: list[S] = []

    def listen(new: S, _: S) -> None:
        told.append(new)
        raise ValueError("no")

    state.listener = listen
    for each in (S.REBALANCING, S.RUNNING):
        state.move_to(each)
    assert told == [S.REBALANCING, S.RUNNING]
