"""Status rows of beats: changes, periodic full sets, size limit."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.rebalance.member.status_rows import FULL_EVERY_BEATS, ROWS_BYTES_MAX, StatusRows
from tidewheel.rebalance.protocol.task_status import TaskStatus


def row(number: int, lag: int = 0) -> TaskStatus:
    return TaskStatus(task=f"0_{number}", role="active", epoch=1, state="RUNNING", lag=lag)


def test_only_changed_rows_are_sent() -> None:
    rows = StatusRows()
    rows.replace((row(1), row(2)))
    assert rows.next_rows()[1], "the first beat has all"
    rows.replace((row(1), row(2, lag=5)))
    taken, full = rows.next_rows()
    assert [each.task for each in taken] == ["0_2"]
    assert not full
    for _ in range(FULL_EVERY_BEATS - 2):
        assert rows.next_rows() == ((), False)
    taken, full = rows.next_rows()
    assert [each.task for each in taken] == ["0_1", "0_2"]
    assert full


def test_a_removed_task_is_not_sent() -> None:
    rows = StatusRows()
    rows.replace((row(1), row(2)))
    rows.replace((row(2),))
    taken, full = rows.next_rows()
    assert [each.task for each in taken] == ["0_2"]
    assert full


@given(st.integers(min_value=0, max_value=120))
def test_every_row_is_sent_within_a_bounded_number_of_heartbeats(count: int) -> None:
    rows = StatusRows()
    rows.replace(tuple(row(number) for number in range(count)))
    told: set[str] = set()
    for _ in range(FULL_EVERY_BEATS):
        taken, _ = rows.next_rows()
        assert (
            len(taken) <= 1
            or sum(len(msgspec.json.encode(each)) for each in taken) <= ROWS_BYTES_MAX
        )
        told |= {each.task for each in taken}
    assert len(told) == count
