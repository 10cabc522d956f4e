"""Inputs of shards at Kafka's side: consumer groups and partitions.

Kafka knows no shards: each shard of an application commits to a consumer group of its own
(`offsets_group`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from tidewheel.rebalance.model import Shard, ShardInput, TopicPartition
from tidewheel.tasks.kafka.internal_topics import (
    offsets_group,
    offsets_groups_prefix,
    shard_of_group,
)
from tidewheel.tasks.kafka.ports import Admin, CommittedOffset

Answer = TypeVar("Answer")


def by_group(
    application_id: str, offsets: Mapping[TopicPartition, Answer]
) -> dict[str, dict[TopicPartition, Answer]]:
    """Return offsets of inputs as offsets of partitions, by consumer group.

    >>> by_group("shop", {TopicPartition("orders", 0): 7})
    {'shop': {TopicPartition(topic='orders', partition=0): 7}}
    """
    groups: dict[str, dict[TopicPartition, Answer]] = {}
    for at, offset in offsets.items():
        groups.setdefault(offsets_group(application_id, at.shard), {})[at.whole] = offset
    return groups


def committed_inputs(
    admin: Admin, application_id: str, inputs: Iterable[TopicPartition], *, stable: bool
) -> dict[TopicPartition, CommittedOffset]:
    """Return the committed offset of each input that has one; as `Admin.committed`."""
    by_shard: dict[Shard, list[TopicPartition]] = {}
    for at in inputs:
        by_shard.setdefault(at.shard, []).append(at)
    committed: dict[TopicPartition, CommittedOffset] = {}
    for shard, of_shard in sorted(by_shard.items()) or [(Shard(), [])]:
        group_id = offsets_group(application_id, shard)
        answers = admin.committed(group_id, [at.whole for at in of_shard], stable=stable)
        committed |= {at: answers[at.whole] for at in of_shard if at.whole in answers}
    return committed


def committed_by_shards(
    admin: Admin,
    application_id: str,
    partitions: Sequence[TopicPartition] | None = None,
    shards: Iterable[Shard] = (),
) -> dict[TopicPartition, CommittedOffset]:
    """Return the committed offset of each input of a shard, whatever the number of shards was.

    `partitions` as in `Admin.committed`. Consumer groups of `shards` are read even if rights hide
    them from lists.
    """
    listed = admin.groups(offsets_groups_prefix(application_id))
    known = {shard_of_group(application_id, group_id) for group_id in listed}
    committed: dict[TopicPartition, CommittedOffset] = {}
    for shard in sorted({shard for shard in (*known, *shards) if shard and not shard.is_whole}):
        offsets = admin.committed(offsets_group(application_id, shard), partitions, stable=False)
        committed |= {ShardInput.of(at, shard): offset for at, offset in offsets.items()}
    return committed


def all_committed(
    admin: Admin, application_id: str, partitions: Sequence[TopicPartition] | None = None
) -> dict[TopicPartition, CommittedOffset]:
    """Return the committed offsets of whole partitions, or floors, and those of all shards."""
    whole = admin.committed(application_id, partitions, stable=False)
    return {**whole, **committed_by_shards(admin, application_id, partitions)}


def of_inputs(
    ask: Callable[[Sequence[TopicPartition]], Mapping[TopicPartition, Answer]],
    inputs: Iterable[TopicPartition],
) -> dict[TopicPartition, Answer]:
    """Ask about the partitions of inputs, each once; return the answer of each input."""
    inputs = list(inputs)
    answers = ask(list(dict.fromkeys(at.whole for at in inputs)))
    return {at: answers[at.whole] for at in inputs if at.whole in answers}
