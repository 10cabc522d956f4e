"""Load plan: store, changelog, inputs and their offsets. Pure.

Loading fills the changelog, so the store needs one. Its key must determine the partition as
Kafka's default partitioner does, so that each row reaches its task.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from tidewheel.rebalance.model import Shard, ShardInput, TopicPartition, position_key
from tidewheel.state_stores.spec import StoreKind, StoreSpec
from tidewheel.streams.config.suggestions import did_you_mean
from tidewheel.streams.errors import ConfigError, StreamsError
from tidewheel.tasks.kafka.internal_topics import (
    ApplicationPlan,
    SubtopologyPlan,
    changelog_topic,
    internal_prefix,
)

_FORMS: Final = "write earliest, latest, timestamp:MS (ms since the epoch) or file:PATH (JSON: {topic: {partition: offset}})"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTarget:
    """Store that can be loaded.

    Attributes:
        inputs: External input partitions, whose offsets the user gives.
        between: Partitions of repartition topics before the store. Members skip their records, so
            the loaded rows must include them.
        shards: Number of shards by topic of both, where it is not 1.
    """

    application_id: str
    spec: StoreSpec
    changelog: str
    partitions: int
    inputs: tuple[TopicPartition, ...]
    between: tuple[TopicPartition, ...] = ()
    shards: Mapping[str, int] = field(default_factory=dict[str, int])

    def inputs_of_tasks(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return the inputs of the tasks of partitions: each, or one for each of its shards."""
        return [
            ShardInput.of(partition, shard)
            for partition in partitions
            for shard in Shard.all_of(self.shards.get(partition.topic, 1))
        ]

    @property
    def changelog_partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.changelog, number) for number in range(self.partitions)]

    def writer_id(self, partition: int) -> str:
        """Return the transactional id that fences earlier writers of a partition."""
        return f"{self.driver_id}-{partition}"

    @property
    def driver_id(self) -> str:
        """Return the transactional id that fences earlier runs of the command."""
        return f"{internal_prefix(self.application_id)}bootstrap-{self.spec.name}"


def target_of(plan: ApplicationPlan, application_id: str, store: str) -> StoreTarget:
    match = _subtopology_of(plan, store)
    if match is None:
        raise StreamsError(_unknown(plan, store))
    subtopology, spec = match
    if spec.source_topic is not None:
        raise StreamsError(
            f"store {store} is restored from its input topic {spec.source_topic}; produce the rows to that topic instead"
        )
    if not spec.logging:
        raise StreamsError(
            f"store {store} has no changelog (logging=False), so the loaded rows could not be restored; turn logging on"
        )
    if spec.retain_duplicates or spec.changelog_headers:
        raise StreamsError(
            f"store {store} buffers records of a join or rows of suppress, and has no rows of a table; it fills by itself"
        )
    if spec.keeps_headers:
        raise StreamsError(
            f"store {store} keeps headers, and rows of a data frame have none; set dsl_store_format to DEFAULT (or leave "
            "headers= out) until it is loaded: rows without headers are the same in both"
        )
    upstream = upstream_of(plan, subtopology)
    _check_partitioners(upstream, application_id, store)
    inside = {topic.name for topic in plan.repartition_topics}
    partitions = sorted(
        {
            TopicPartition(topic, number)
            for part in upstream
            for topic, count in part.topic_partitions.items()
            for number in range(count)
        }
    )
    return StoreTarget(
        application_id=application_id,
        spec=spec,
        changelog=changelog_topic(application_id, store),
        partitions=subtopology.partitions,
        inputs=tuple(partition for partition in partitions if partition.topic not in inside),
        between=tuple(partition for partition in partitions if partition.topic in inside),
        shards={
            topic: part.shards
            for part in upstream
            for topic in part.topic_partitions
            if part.shards > 1
        },
    )


def _subtopology_of(plan: ApplicationPlan, store: str) -> tuple[SubtopologyPlan, StoreSpec] | None:
    for _, subtopology in sorted(plan.subtopologies.items()):
        for spec in subtopology.spec.stores:
            if spec.name == store:
                return subtopology, spec
    return None


def _unknown(plan: ApplicationPlan, store: str) -> str:
    for global_store in plan.global_stores:
        if global_store.store.name == store:
            return f"store {store} is a global one, restored from topic {global_store.topic}; produce the rows to that topic instead"
    names = sorted(
        spec.name for subtopology in plan.subtopologies.values() for spec in subtopology.spec.stores
    )
    near = did_you_mean(store, names)
    return f"the topology has no store {store}; {near or 'it has ' + (', '.join(names) or 'none')}"


def upstream_of(plan: ApplicationPlan, subtopology: SubtopologyPlan) -> list[SubtopologyPlan]:
    """Return a sub-topology and its upstream ones, through any repartition topics."""
    upstream = [subtopology]
    for reader in upstream:
        topics = {
            name for source in reader.spec.sources if source.internal for name in source.topics
        }
        upstream += [
            other
            for _, other in sorted(plan.subtopologies.items())
            if other not in upstream
            and any(sink.internal and sink.topic in topics for sink in other.spec.sinks)
        ]
    return upstream


def _check_partitioners(
    upstream: Sequence[SubtopologyPlan], application_id: str, store: str
) -> None:
    read = {
        topic for source in upstream[0].spec.sources if source.internal for topic in source.topics
    }
    for subtopology in upstream:
        for sink in subtopology.spec.sinks:
            if sink.internal and sink.topic in read and sink.partitioner is not None:
                raise StreamsError(
                    f"store {store}: its input {internal_prefix(application_id)}{sink.topic} is partitioned by a function of "
                    f"its own (node {sink.name}), so the partition of a key is not known here; it can't be loaded"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class InputOffsets:
    """Offsets, as the user requests them, at which inputs resume after a load."""

    text: str
    kind: Literal["earliest", "latest", "timestamp", "offsets"]
    timestamp_ms: int = 0
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])


def parse_input_offsets(argument: str | Mapping[str, Mapping[Any, int]]) -> InputOffsets:
    """Parse input offsets; raise `ConfigError` if malformed.

    >>> parse_input_offsets("timestamp:1700000000000").timestamp_ms
    1700000000000
    >>> parse_input_offsets({"orders": {0: 12}}).offsets
    {TopicPartition(topic='orders', partition=0): 12}
    """
    if not isinstance(argument, str):
        return _explicit(argument, "input_offsets")
    kind, _, rest = argument.partition(":")
    match kind:
        case "earliest" | "latest" if not rest:
            return InputOffsets(text=argument, kind=kind)
        case "timestamp" if rest.isdecimal() and int(rest) < 1 << 63:
            return InputOffsets(text=argument, kind="timestamp", timestamp_ms=int(rest))
        case "file" if rest:
            try:
                content = json.loads(Path(rest).read_text())
            except (OSError, ValueError, RecursionError) as error:
                raise ConfigError(f"input offsets {argument!r}: {error}; {_FORMS}") from error
            return _explicit(content, argument)
        case _:
            raise ConfigError(f"input offsets {argument!r}: {_FORMS}")


def _explicit(table: Any, source: str) -> InputOffsets:
    parsed: dict[TopicPartition, int] = {}
    try:
        for topic, offsets in table.items():
            for partition, offset in offsets.items():
                where = TopicPartition(str(topic), int(partition))
                parsed[where] = _offset(where, offset)
    except AttributeError as error:
        raise ConfigError(f"input offsets {source}: it is no map of maps; {_FORMS}") from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"input offsets {source}: {error}; {_FORMS}") from error
    text = json.dumps(
        {position_key(partition): offset for partition, offset in sorted(parsed.items())}
    )
    return InputOffsets(text=text, kind="offsets", offsets=dict(sorted(parsed.items())))


def _offset(where: TopicPartition, offset: Any) -> int:
    if type(offset) is not int or not 0 <= offset < 1 << 63:
        raise ValueError(f"{where}: {offset!r} is no offset")
    return offset


def check_offsets(
    target: StoreTarget,
    requested: InputOffsets,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    missing = [str(partition) for partition in target.inputs if partition not in requested.offsets]
    unknown = [str(partition) for partition in requested.offsets if partition not in target.inputs]
    if missing or unknown:
        problems = [f"none is given for {', '.join(missing)}"] if missing else []
        problems += (
            [f"{', '.join(unknown)} is no input of store {target.spec.name}"] if unknown else []
        )
        raise ConfigError(
            f"input offsets: {'; '.join(problems)}; give one for each partition it is computed from"
        )
    for partition in target.inputs:
        if not starts[partition] <= requested.offsets[partition] <= ends[partition]:
            raise ConfigError(
                f"input offsets: {requested.offsets[partition]} of {partition} is outside the log, which has {starts[partition]} to {ends[partition]}"
            )
    return {partition: requested.offsets[partition] for partition in target.inputs}


def refusal_of_changelog(
    target: StoreTarget, *, is_empty: bool, replace: bool, was_loaded: bool
) -> str | None:
    """Return the reason the changelog can't be written, or None.

    `is_empty` ignores records of earlier attempts of this load.
    """
    if is_empty:
        return None
    if replace and target.spec.kind is StoreKind.VERSIONED:
        return (
            f"store {target.spec.name} keeps versions, which stay readable at their times, so it can't be replaced; run "
            "`tidewheel reset` and load it again"
        )
    if replace:
        return None
    before = "was loaded before and is complete" if was_loaded else "has content"
    return (
        f"store {target.spec.name} {before}: its changelog {target.changelog} is not empty; replace it with --replace "
        "(replace=True), which also deletes the keys that are not among the new rows"
    )
