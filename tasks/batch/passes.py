"""Passes of a batch run: which topics each run of a sub-topology reads and writes. Pure.

The level of an external topic is 0. The level of a topic that the topology itself writes is one
above the topics from which its records are made. A pass runs a sub-topology on all inputs up to a
level. A sub-topology has one pass, unless its records return to it over other sub-topologies, as
in a foreign-key join: then an earlier pass sends the subscriptions, and the last pass reads their
responses.
"""

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

import msgspec

from tidewheel.rebalance.model import TaskId
from tidewheel.state_stores.errors import StreamsError
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan, SubtopologyPlan, internal_prefix
from tidewheel.tasks.processing.api.topology_spec import (
    ProcessorSpec,
    SinkSpec,
    SourceSpec,
    SubtopologySpec,
)


class Pass(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a sub-topology's tasks.

    Attributes:
        level: Highest level of the topics that it reads.
        reads: Its input topics; others of the sub-topology stay empty.
        keeps: Topics read by later passes whose records it keeps.
        is_last: True for the pass that keeps the state and the records for all other topics.
    """

    subtopology: int
    level: int
    reads: frozenset[str]
    keeps: frozenset[str]
    is_last: bool


class BatchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Passes of a topology, in the order in which they run.

    Attributes:
        levels: Level of each topic that the topology reads. Of records with equal times, those of
            lower levels are first: a record is before those that it causes.
        circular: Topics between sub-topologies that send to each other. Their records have the
            order time of the record that caused them.
        partitions: Partition count of each topic that the topology reads.
    """

    passes: tuple[Pass, ...]
    levels: Mapping[str, int]
    circular: frozenset[str]
    partitions: Mapping[str, int]

    @property
    def written(self) -> frozenset[str]:
        """Return the topics that the topology both writes and reads."""
        return frozenset(topic for topic, level in self.levels.items() if level)

    def tasks(self, run: Pass) -> tuple[TaskId, ...]:
        count = max((self.partitions[topic] for topic in run.reads), default=0)
        return tuple(TaskId(run.subtopology, partition) for partition in range(count))


def plan_passes(plan: ApplicationPlan, application_id: str) -> BatchPlan:
    """Return the passes of a planned topology.

    Raises:
        StreamsError: Records of a topic cause records of the same topic.
    """
    partitions: dict[str, int] = {}
    for subtopology in plan.subtopologies.values():
        partitions |= subtopology.topic_partitions
    writes = {
        number: _sinks(planned.spec, application_id, frozenset(partitions))
        for number, planned in plan.subtopologies.items()
    }
    reads = {
        number: frozenset(planned.topic_partitions)
        for number, planned in plan.subtopologies.items()
    }
    circles = _circles(reads, writes)
    causes: dict[str, set[str]] = {}
    for number, planned in plan.subtopologies.items():
        for topic, sinks in writes[number].items():
            causes.setdefault(topic, set()).update(
                _causes(planned, sinks) if number in circles else reads[number]
            )
    levels = dict.fromkeys(partitions, 0) | _levels(causes)
    passes = [
        each
        for number in plan.subtopologies
        for each in _passes(number, reads[number], frozenset(writes[number]), levels)
    ]
    return BatchPlan(
        passes=tuple(sorted(passes, key=lambda each: (each.level, each.subtopology))),
        levels=levels,
        circular=frozenset(
            topic
            for number, topics in writes.items()
            for topic in topics
            if any(topic in reads[other] for other in circles.get(number, ()))
        ),
        partitions=partitions,
    )


def _sinks(
    spec: SubtopologySpec, application_id: str, read: frozenset[str]
) -> dict[str, frozenset[str]]:
    """Return the sink nodes of each topic that the topology reads again."""
    sinks: dict[str, frozenset[str]] = {}
    for sink in spec.sinks:
        if isinstance(sink.topic, str):
            topic = _full_name(sink, application_id)
            if topic in read:
                sinks[topic] = sinks.get(topic, frozenset()) | {sink.name}
    return sinks


def _full_name(sink: SinkSpec, application_id: str) -> str:
    assert isinstance(sink.topic, str), "a named topic"
    return (internal_prefix(application_id) if sink.internal else "") + sink.topic


def _circles(
    reads: Mapping[int, frozenset[str]], writes: Mapping[int, Mapping[str, object]]
) -> dict[int, frozenset[int]]:
    """Return the members of each sub-topology's circle, for sub-topologies in one."""
    below = {
        number: {other for other, topics in reads.items() if not topics.isdisjoint(writes[number])}
        for number in reads
    }
    for middle, beyond in below.items():  # Warshall's transitive closure
        for reached in below.values():
            if middle in reached:
                reached.update(beyond)
    return {
        number: frozenset(other for other in reached if number in below[other])
        for number, reached in below.items()
        if number in reached
    }


def _causes(planned: SubtopologyPlan, sinks: frozenset[str]) -> set[str]:
    """Return the topics from which sinks get records, directly or by a store."""
    spec = planned.spec
    causes: dict[str, set[str]] = {node.name: set() for node in spec.nodes}
    stores: dict[str, set[str]] = {store.name: set() for store in spec.stores}
    size = -1
    while size != (size := sum(map(len, (*causes.values(), *stores.values())))):
        for node in spec.nodes:
            if isinstance(node, SourceSpec):
                causes[node.name] |= set(planned.source_topics[node.name])
                continue
            for parent in node.parents:
                causes[node.name] |= causes[parent]
            if isinstance(node, ProcessorSpec):
                for store in stores.keys() & set(node.stores):
                    if store not in node.reads:
                        stores[store] |= causes[node.name]
                    causes[node.name] |= stores[store]
    return set[str]().union(*(causes[sink] for sink in sinks))


def _levels(causes: Mapping[str, set[str]]) -> dict[str, int]:
    levels: dict[str, int] = {}
    try:
        for topic in TopologicalSorter(causes).static_order():
            if topic in causes:
                levels[topic] = 1 + max(
                    (levels.get(cause, 0) for cause in causes[topic]), default=0
                )
    except CycleError as error:
        path = " -> ".join(reversed(error.args[1]))
        raise StreamsError(
            f"a batch run can't order the records of {path}: they cause each other in a circle; "
            "write the last of these topics under another name, which the topology doesn't read"
        ) from None
    return levels


def _passes(
    number: int, reads: frozenset[str], writes: frozenset[str], levels: Mapping[str, int]
) -> Iterator[Pass]:
    at_levels = sorted({levels[topic] for topic in reads}) or [0]
    made_at = {
        topic: max((level for level in at_levels if level < levels[topic]), default=at_levels[0])
        for topic in writes
    }
    for level in sorted({*made_at.values(), at_levels[-1]}):
        yield Pass(
            subtopology=number,
            level=level,
            reads=frozenset(topic for topic in reads if levels[topic] <= level),
            keeps=frozenset(topic for topic in writes if made_at[topic] == level),
            is_last=level == at_levels[-1],
        )
