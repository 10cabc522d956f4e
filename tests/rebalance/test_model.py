"""Task ids and partitions: text, parsing, order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.rebalance.model import HASH_END, SHARDS_MAX, Shard, TaskId, TopicPartition

NUMBERS = st.integers(0, 10_000)


@given(NUMBERS, NUMBERS)
def test_task_ids_can_be_parsed_from_their_text(subtopology: int, partition: int) -> None:
    task = TaskId(subtopology, partition)
    assert TaskId.parse(str(task)) == task


@given(NUMBERS, NUMBERS, st.integers(1, 6).map(lambda power: 1 << power), st.data())
def test_ids_of_shards_can_be_parsed_from_their_text(
    subtopology: int, partition: int, count: int, data: st.DataObject
) -> None:
    shard = data.draw(st.sampled_from(Shard.all_of(count)))
    task = TaskId(subtopology, partition, shard)
    assert TaskId.parse(str(task)) == task
    assert task.whole == TaskId(subtopology, partition)


@pytest.mark.parametrize("count", [1, 2, 4, 8, 16, 32, SHARDS_MAX])
def test_shards_tile_all_hashes(count: int) -> None:
    shards = Shard.all_of(count)
    assert [0, *(shard.end_hash for shard in shards)] == [
        *(shard.first_hash for shard in shards),
        HASH_END,
    ]


@pytest.mark.parametrize("count", [-1, 0, 3, 6, 2 * SHARDS_MAX])
def test_shards_of_other_counts_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match=str(count)):
        Shard.all_of(count)


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
        "0_1/0of1",
        "0_1/2of2",
        "0_1/0of3",
        "0_1/0of128",
        "0_1/00of2",
        "0_1/of2",
        "0_1/1",
    ],
)
def test_invalid_task_ids_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="0_1"):
        TaskId.parse(text)


def test_task_ids_sort_by_number_not_by_text() -> None:
    tasks = [TaskId(1, 0), TaskId(0, 10), TaskId(0, 9), TaskId(10, 0)]
    assert [str(task) for task in sorted(tasks)] == ["0_9", "0_10", "1_0", "10_0"]


def test_shards_sort_behind_their_partition() -> None:
    tasks = [TaskId.parse(text) for text in ("0_2", "0_1/10of16", "0_1/9of16", "0_0/1of2")]
    assert [str(task) for task in sorted(tasks)] == ["0_0/1of2", "0_1/9of16", "0_1/10of16", "0_2"]


def test_partitions_print_as_in_kafka_tools() -> None:
    assert str(TopicPartition("app-counts-changelog", 3)) == "app-counts-changelog-3"
