"""Task ids and partitions: text, parsing, order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.rebalance.model import TaskId, TopicPartition

NUMBERS = st.integers(0, 10_000)


@given(NUMBERS, NUMBERS)
def test_task_ids_can_be_parsed_from_their_text(subtopology: int, partition: int) -> None:
    task = TaskId(subtopology, partition)
    assert TaskId.parse(str(task)) == task


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "0_",
        "_0",
        "0_1_2",
        "00_1",
        "0_01",
        "-1_0",
        "0_-1",
        " 0_1",
        "0_1\n",
        "0-1",
        "\u0660_1",
        "a_b",
    ],
)
def test_invalid_task_ids_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="0_1"):
        TaskId.parse(text)


def test_task_ids_sort_by_number_not_by_text() -> None:
    tasks = [TaskId(1, 0), TaskId(0, 10), TaskId(0, 9), TaskId(10, 0)]
    assert [str(task) for task in sorted(tasks)] == ["0_9", "0_10", "1_0", "10_0"]


def test_partitions_print_as_in_kafka_tools() -> None:
    assert str(TopicPartition("app-counts-changelog", 3)) == "app-counts-changelog-3"
