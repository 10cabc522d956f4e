"""What a copy announces: never more than it knows, and no more often than it should."""

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
    """As much of a task as a copy's announcements need."""

    task_id = TaskId(0, 0)


def copy() -> LearnerTask:
    """Return a copy."""
    made = LearnerTask(
        cast("Task", FakeTask()), role="learner", learn_epoch=4, acceptable_recovery_lag=LAG
    )
    made.store_uuid = "u"
    return made


def at(position: int, end: int | None, other: int = 5) -> CopyProgress:
    """Return how far a copy of two stores is."""
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
def test_L2_ready_is_said_only_within_the_lag_and_not_ready_only_after_it(
    steps: list[tuple[int, int | None, int, float]],
) -> None:
    learner = copy()
    now_s, ready = 0.0, False
    last: tuple[float, Any] | None = None
    for position, end, other, pause in steps:
        now_s += pause
        said = learner.advance(at(position, end, other), now_s)
        lag = None if end is None else max(end - position, 0) + 5 - other
        good = lag is not None and lag <= LAG
        if isinstance(said, CopyReady):
            assert good
            assert (said.learn_epoch, said.store_uuid) == (4, "u")
            assert said.positions == {"a-0": position, "b-0": other}
            assert not ready or last is None or now_s - last[0] >= 0.1
            last = (now_s, said.positions)
            ready = True
        elif isinstance(said, CopyNotReady):
            assert ready
            assert not good
            ready = False
        else:
            assert ready is good
        assert learner.is_ready is ready


def test_another_epoch_is_announced_anew() -> None:
    learner = copy()
    assert learner.advance(at(3, 3), 0.0) is not None
    assert learner.advance(at(3, 3), 9.0) is None
    learner.appoint("standby", 5)
    said = learner.advance(at(3, 3), 9.0)
    assert isinstance(said, CopyReady)
    assert said.learn_epoch == 5


def test_a_copy_that_is_ordered_again_announces_itself_again() -> None:
    learner = copy()
    learner.advance(at(3, 3), 0.0)
    learner.appoint("learner", 4)
    assert learner.is_ready
    assert isinstance(learner.advance(at(3, 3), 0.0), CopyReady)
    learner.appoint("learner", 4)
    assert isinstance(learner.advance(at(3, 30), 0.0), CopyNotReady)


def test_a_copy_that_begins_anew_is_not_ready_any_more() -> None:
    learner = copy()
    assert learner.reset("damaged") is None
    learner.advance(at(3, 3), 0.0)
    said = learner.reset("damaged")
    assert isinstance(said, CopyNotReady)
    assert (learner.progress, learner.status().lag) == (None, -1)
