from hypothesis import given
from hypothesis import strategies as st

from tidewheel.streams.operators.windows.due_rows import DueRows, Place

PLACES = st.tuples(st.integers(0, 30), st.sampled_from([b"a", b"b", b"c"]))
STEPS = st.lists(st.tuples(st.lists(PLACES, max_size=8), st.integers(0, 6)), max_size=12)


@given(st.sets(PLACES), STEPS, st.integers(1, 12))
def test_each_row_is_removed_once_when_it_is_due(
    stored: set[Place], steps: list[tuple[list[Place], int]], indexed_rows: int
) -> None:
    due = DueRows(
        lambda first: [place for place in stored if place[0] >= first], indexed_rows=indexed_rows
    )
    time, taken = 0, set[Place]()
    for rows, later in steps:
        for place in rows:
            if place[0] >= time:
                stored.add(place)
                due.add(*place)
        first, time = time, time + later
        expected = sorted(place for place in stored if first <= place[0] < time)
        assert due.pop(first, time - 1) == [row for _, row in expected]
        assert taken.isdisjoint(expected)
        taken.update(expected)


def test_the_store_is_scanned_only_when_the_index_is_empty() -> None:
    stored: list[Place] = [(time, b"row") for time in range(1_000)]
    scans: list[int] = []

    def scan(first: int) -> list[Place]:
        scans.append(first)
        return stored[first:]

    due = DueRows(scan, indexed_rows=100)
    for time in range(1_000):
        assert due.pop(time, time) == [b"row"]
    assert len(scans) <= 1_000 / 50 + 1


def test_all_rows_of_one_time_are_removed_together() -> None:
    stored: list[Place] = [(5, bytes([number])) for number in range(10)]
    due = DueRows(lambda first: [place for place in stored if place[0] >= first], indexed_rows=3)
    assert due.pop(0, 4) == []
    assert due.pop(5, 5) == [row for _, row in stored]
