"""Positions at which workers continue: offsets, times, and floors of shards."""

from dataclasses import dataclass

import pytest

from tidewheel import StreamsBuilder, TimeWindows
from tidewheel.rebalance.model import Shard, ShardInput, TaskId, TopicPartition
from tidewheel.streams.bulk.backfill.positions import positions_of
from tidewheel.tasks.batch.batch_task import TaskEnd
from tidewheel.tasks.commit_facts import CommitFacts
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan, plan_application
from tidewheel.tasks.kafka.ports import CommittedOffset, TopicDescription
from tidewheel.tasks.key_ranges.keyed_analysis import with_shards
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import Vector

HASH = b"topology"
LINES = [TopicPartition("lines", number) for number in range(2)]
WORDS = [TopicPartition("app-words-repartition", number) for number in range(2)]
OFFSETS = {LINES[0]: 12, LINES[1]: 5, WORDS[0]: 0, WORDS[1]: 0}


def plan(shards: int = 1) -> ApplicationPlan:
    """Return lines, repartitioned by word, with a window; two partitions each."""
    builder = StreamsBuilder()
    lines = builder.stream("lines", key_serde=str, value_serde=str)
    grouped = lines.select_key(lambda _, word: word).group_by_key(
        name="words", key_serde=str, value_serde=str
    )
    grouped.windowed_by(TimeWindows(1_000, grace=0)).count(store="windows")
    planned = plan_application(builder.build().spec(None), "app", {"lines": 2})
    return with_shards(planned, shards)


#: By task; nothing has come to 0_1 and 1_1.
ENDS = {
    TaskId(0, 0): TaskEnd(
        next_offsets={LINES[0]: 12}, partition_times_ms={LINES[0]: 900}, operator_times_ms=()
    ),
    TaskId(0, 1): TaskEnd(next_offsets={}, partition_times_ms={}, operator_times_ms=()),
    TaskId(1, 0): TaskEnd(
        next_offsets={WORDS[0]: 8}, partition_times_ms={WORDS[0]: 700}, operator_times_ms=(650,)
    ),
    TaskId(1, 1): TaskEnd(
        next_offsets={WORDS[1]: 0}, partition_times_ms={WORDS[1]: -1}, operator_times_ms=(-1,)
    ),
}


@dataclass(frozen=True)
class Commits:
    commits: dict[TopicPartition, CommittedOffset]

    def __getitem__(self, at: TopicPartition) -> Progress:
        committed = self.commits[at]
        progress = Progress.decode(committed.metadata, committed_offset=committed.offset)
        assert progress is not None
        return progress


def commits_of(live: ApplicationPlan) -> Commits:
    topics = {
        name: TopicDescription(name=name, topic_id=name[:1].encode() * 16, partitions=2)
        for name in ("lines", WORDS[0].topic)
    }
    return Commits(
        positions_of(
            live, ENDS, OFFSETS, topics, topology_hash=HASH, transactional_id="app-backfill"
        )
    )


def test_each_input_has_the_offset_and_times_of_its_task() -> None:
    commits = commits_of(plan())
    assert {at: committed.offset for at, committed in commits.commits.items()} == OFFSETS
    assert {at: commits[at].stream_time_ms for at in OFFSETS} == {
        LINES[0]: 900,
        LINES[1]: -1,
        WORDS[0]: 700,
        WORDS[1]: -1,
    }
    assert commits[WORDS[0]].operator_times_ms == (650,)
    assert commits[WORDS[1]].operator_times_ms == (-1,)
    assert commits[LINES[0]].operator_times_ms == ()


@pytest.mark.parametrize("at", OFFSETS)
def test_the_commit_is_of_this_topology_and_topic(at: TopicPartition) -> None:
    progress = commits_of(plan())[at]
    assert progress.topology_hash == HASH
    assert progress.transactional_id == "app-backfill"
    assert progress.topic_id == at.topic[:1].encode() * 16
    assert progress.vector == Vector.at(OFFSETS[at])
    assert (progress.shards, progress.task_epoch) == (1, 0)
    assert CommitFacts.decode(progress.facts).first_partitions == 2


def test_each_shard_starts_where_its_partition_does_with_a_floor_below() -> None:
    live = plan(shards=4)
    sharded = {number for number, planned in live.subtopologies.items() if planned.shards == 4}
    assert 1 in sharded
    commits = commits_of(live)
    shards = Shard.all_of(4)
    for at, first in ((WORDS[0], 700), (WORDS[1], -1)):
        for shard in (Shard(), *shards):
            progress = commits[ShardInput.of(at, shard)]
            assert progress.committed_offset == 0
            assert progress.stream_time_ms == first
            assert progress.vector == Vector.at(0, shard.first_hash, shard.end_hash)
            assert progress.shards == 4
            assert progress.operator_times_ms == ENDS[TaskId(1, at.partition)].operator_times_ms
    expected = {
        ShardInput.of(at, shard)
        for number, planned in live.subtopologies.items()
        for partition in range(2)
        for at in planned.inputs(partition)
        for shard in (Shard(), *(shards if number in sharded else ()))
    }
    assert commits.commits.keys() == expected
