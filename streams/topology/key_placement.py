"""Key placement: checks that joined topics place equal keys in equal partitions."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.serdes.partitioning import KEY_PARTITIONERS, KeyPartitioner
from tidewheel.streams.serdes.windowed import WindowedSerde
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan
from tidewheel.tasks.processing.api.topology_spec import SinkSpec, SubtopologySpec, TopologySpec
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

_log: Final = logging.getLogger("tidewheel")

DEFAULT: Final = "murmur2"
#: Name for a custom partitioner, whose placement of keys can't be checked.
UNKNOWN: Final = "unknown"
NAMES: Final = (*KEY_PARTITIONERS, UNKNOWN)
#: Number of records with a key to sample per partition.
SAMPLED: Final = 20
_SOURCES: Final = {
    "murmur2": "Kafka's own clients' default",
    "crc32": "the default of librdkafka and its clients",
    "fnv1a": "the default of Sarama",
}


def with_input_partitioners(spec: TopologySpec, partitioners: Mapping[str, str]) -> TopologySpec:
    """Return the topology with repartition topics partitioned like the inputs they are joined with.

    Raises `TopologyError` if two inputs of a join have different partitioners. Pure.
    """
    if not partitioners:
        return spec
    followed: dict[str, str] = {}
    for subtopology in spec.subtopologies:
        internal = {
            topic for source in subtopology.sources if source.internal for topic in source.topics
        }
        for group in _meeting(subtopology):
            names = {topic: partitioners.get(topic, DEFAULT) for topic in sorted(group - internal)}
            for topic in group & internal:
                names |= {topic: followed[topic]} if topic in followed else {}
            if len(set(names.values())) > 1:
                partitioners_text = ", ".join(f"{topic} by {name}" for topic, name in names.items())
                raise TopologyError(
                    f"topics that meet place their keys by different partitioners ({partitioners_text}), so equal keys are in different tasks; "
                    "repartition() one of the streams before, or write its topic with the other partitioner"
                )
            followed |= {topic: name for name in names.values() for topic in group & internal}
    return replace(
        spec,
        subtopologies=tuple(
            _following(subtopology, followed) for subtopology in spec.subtopologies
        ),
    )


def _meeting(subtopology: SubtopologySpec) -> list[frozenset[str]]:
    """Return groups of topics that must be co-partitioned.

    Besides each join's inputs, all topics of a sub-topology with stores are a group. After a merge,
    or in a shared store, equal keys of different topics use the same row.
    """
    topics = frozenset(topic for source in subtopology.sources for topic in source.topics)
    return [*subtopology.copartition_groups, *([topics] if subtopology.stores else [])]


def _following(subtopology: SubtopologySpec, followed: Mapping[str, str]) -> SubtopologySpec:
    def follow(node: object) -> object:
        if not isinstance(node, SinkSpec) or not node.internal or node.partitioner is not None:
            return node
        name = followed.get(node.topic, DEFAULT) if isinstance(node.topic, str) else DEFAULT
        return (
            node if name in (DEFAULT, UNKNOWN) else replace(node, partitioner=KeyPartitioner(name))
        )

    # `Any`: type checkers can't see that `follow` returns the type it receives.
    nodes: tuple[Any, ...] = tuple(map(follow, subtopology.nodes))
    return replace(subtopology, nodes=nodes)


def _log_warning(text: str) -> None:
    _log.warning("%s", text)


def checked_topics(plan: ApplicationPlan) -> dict[str, int]:
    counts: dict[str, int] = {}
    for subtopology in plan.subtopologies.values():
        spec = subtopology.spec
        meeting = {topic for group in spec.copartition_groups for topic in group}
        # Equal keys of all topics may meet in a store (see `_meeting`).
        if spec.stores and len(subtopology.topic_partitions) > 1:
            meeting |= subtopology.topic_partitions.keys()
        for source in spec.sources:
            if source.internal or isinstance(source.key_serde, WindowedSerde):
                continue
            for topic in subtopology.source_topics.get(source.name, ()):
                partitions = subtopology.topic_partitions[topic]
                if topic in meeting and partitions > 1:
                    counts[topic] = partitions
    return counts


class KeyCheck:
    """Samples the first records of each partition, and warns of topics with misplaced keys.

    Args:
        warn: Called once per topic, at the first misplaced key.

    Attributes:
        waiting: Number of records still to sample, per partition.
    """

    def __init__(
        self,
        counts: Mapping[str, int],
        partitioners: Mapping[str, str],
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self._counts = {
            topic: count for topic, count in counts.items() if partitioners.get(topic) != UNKNOWN
        }
        self._names = {topic: partitioners.get(topic, DEFAULT) for topic in self._counts}
        self._warn: Callable[[str], None] = warn or _log_warning
        self.waiting = {
            TopicPartition(topic, partition): SAMPLED
            for topic, count in self._counts.items()
            for partition in range(count)
        }
        self._sampled = dict.fromkeys(self._counts, 0)
        #: Number of sampled keys in the partition that a partitioner chooses, by topic and name.
        self._matches = {topic: dict.fromkeys(KEY_PARTITIONERS, 0) for topic in self._counts}
        self._warned: set[str] = set()

    def sample(self, records: SourceRecords) -> None:
        partition = TopicPartition(records.topic, records.partition)
        missing = self.waiting.get(partition)
        if missing is None:
            return
        keys = [key for key in records.raw_keys[: 10 * SAMPLED] if key][:missing]
        if missing > len(keys):
            self.waiting[partition] = missing - len(keys)
        else:
            del self.waiting[partition]
        topic, count = records.topic, self._counts[records.topic]
        self._sampled[topic] += len(keys)
        for name, place in KEY_PARTITIONERS.items():
            self._matches[topic][name] += sum(
                place(key, count) == records.partition for key in keys
            )
        text = self.finding(topic)
        if text and topic not in self._warned:
            self._warned.add(topic)
            self._warn(text)

    def sampled(self, topic: str) -> int:
        return self._sampled.get(topic, 0)

    def finding(self, topic: str) -> str:
        name = self._names.get(topic)
        if name is None:
            return ""
        sampled, matches = self._sampled[topic], self._matches[topic]
        elsewhere = sampled - matches[name]
        if not elsewhere:
            return ""
        alternatives = [partitioner for partitioner, count in matches.items() if count == sampled]
        hint = (
            f"all are where {alternatives[0]} ({_SOURCES[alternatives[0]]}) puts them; "
            if alternatives
            else ""
        )
        named = (
            f'input_partitioners = {{"{topic}": "{alternatives[0]}"}}, or ' if alternatives else ""
        )
        return (
            f"topic {topic}: {elsewhere} of {sampled} sampled keys are not in the partition that {name} ({_SOURCES[name]}) gives "
            f"them, so equal keys of it and of other topics do not meet; {hint}set {named}repartition() the stream before, or "
            'write the topic with a producer whose "partitioner" is "murmur2_random"'
        )

    def findings(self, topics: Iterable[str]) -> str:
        return " ".join(filter(None, map(self.finding, sorted(set(topics)))))
