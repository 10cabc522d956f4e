"""Positions at which live workers continue after a backfill. Pure."""

from collections.abc import Iterable, Mapping

from tidewheel.rebalance.model import Shard, ShardInput, TaskId, TopicPartition
from tidewheel.tasks.batch.batch_task import TaskEnd
from tidewheel.tasks.commit_facts import CommitFacts
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan, SubtopologyPlan
from tidewheel.tasks.kafka.ports import CommittedOffset, TopicDescription
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import Vector


def positions_of(
    live: ApplicationPlan,
    ends: Mapping[TaskId, TaskEnd],
    offsets: Mapping[TopicPartition, int],
    topics: Mapping[str, TopicDescription],
    *,
    topology_hash: bytes,
    transactional_id: str,
) -> dict[TopicPartition, CommittedOffset]:
    """Return the offset and times to commit for each input, and for each shard of it.

    Args:
        ends: Positions and times of the batch tasks.
        offsets: Next offset of each input partition.
        topics: Descriptions of the input topics.
    """
    commits: dict[TopicPartition, CommittedOffset] = {}
    for number, planned in live.subtopologies.items():
        for partition in range(planned.partitions):
            end = ends[TaskId(number, partition)]
            for at in _inputs(planned, partition):
                offset = offsets[at.whole]
                topic = topics[at.topic]
                progress = Progress(
                    task_epoch=0,
                    transactional_id=transactional_id,
                    topic_id=topic.topic_id,
                    topology_hash=topology_hash,
                    vector=Vector.at(offset, at.shard.first_hash, at.shard.end_hash),
                    shards=planned.shards,
                    stream_time_ms=end.partition_times_ms.get(at.whole, -1),
                    operator_times_ms=end.operator_times_ms,
                    facts=CommitFacts(first_partitions=topic.partitions).encode(),
                )
                commits[at] = CommittedOffset(offset, progress.encode())
    return commits


def _inputs(planned: SubtopologyPlan, partition: int) -> Iterable[TopicPartition]:
    """Yield the inputs of a partition's tasks; with shards also the partitions, for the floors."""
    for at in sorted(planned.inputs(partition)):
        yield at
        if planned.shards > 1:
            yield from (ShardInput.of(at, shard) for shard in Shard.all_of(planned.shards))
