"""Announcements of copies: ready only within the lag, and not too often."""

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.rebalance.protocol.orders import CopyNotReady, CopyReady
from tidewheel.tasks.task.learner_task import CopyProgress, LearnerTask
from tidewheel.tasks.task.task import Task

LOGS = (TopicPartition("a", 0), TopicPartition("b", 0))
LAG = 10


class FakeTask:
    """The attributes of a task that announcements need."""

    task_id = TaskId(0, 0)


def copy() -> LearnerTask:
    learner = LearnerTask(
        cast("Task", FakeTask()), role="learner", learn_epoch=4, acceptable_recovery_lag=LAG
    )
    learner.store_uuid = "u"
    return learner


def at(position: int, end: int | None, other: int = 5) -> CopyProgress:
    return CopyProgress(
        positions={LOGS[0]: position, LOGS[1]: other}, ends={LOGS[0]: end, LOGS[1]: 5}
    )


STEPS = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.none() | st.integers(0, 40),
        st.integers(0, 5),
        st.floats(0, 0.2),
    ),
    max_size=30,
)


@given(STEPS)
def test_L2_ready_is_announced_only_within_the_lag_and_not_ready_only_after_it(
    steps: list[tuple[int, int | None, int, float]],
) -> None:
    learner = copy()
    now_s, ready = 0.0, False
    last: tuple[float, Any] | None = None
    for position, end, other, pause in steps:
        now_s += pause
        announcement = learner.advance(at(position, end, other), now_s)
        lag = None if end is None else max(end - position, 0) + 5 - other
        good = lag is not None and lag <= LAG
        if isinstance(announcement, CopyReady):
            assert good
            assert (announcement.learn_epoch, announcement.store_uuid) == (4, "u")
            assert announcement.positions == {"a-0": position, "b-0": other}
            assert not ready or last is None or now_s - last[0] >= 0.1
            last = (now_s, announcement.positions)
            ready = True
        elif isinstance(announcement, CopyNotReady):
            assert ready
            assert not good
            ready = False
        else:
            assert ready is good
        assert learner.is_ready is ready


def test_another_epoch_is_announced_again() -> None:
    learner = copy()
    assert learner.advance(at(3, 3), 0.0) is not None
    assert learner.advance(at(3, 3), 9.0) is None
    learner.appoint("standby", 5)
    announcement = learner.advance(at(3, 3), 9.0)
    assert isinstance(announcement, CopyReady)
    assert announcement.learn_epoch == 5


def test_a_repeated_order_is_announced_again() -> None:
    learner = copy()
    learner.advance(at(3, 3), 0.0)
    learner.appoint("learner", 4)
    assert learner.is_ready
    assert isinstance(learner.advance(at(3, 3), 0.0), CopyReady)
    learner.appoint("learner", 4)
    assert isinstance(learner.advance(at(3, 30), 0.0), CopyNotReady)


def test_a_reset_copy_is_no_longer_ready() -> None:
    learner = copy()
    assert learner.reset("damaged") is None
    learner.advance(at(3, 3), 0.0)
    announcement = learner.reset("damaged")
    assert isinstance(announcement, CopyNotReady)
    assert (learner.progress, learner.status().lag) == (None, -1)
