"""Origin of an input's committed offset: ours, foreign, lost, or never set. Pure.

A start at a foreign offset (set by another program) would skip or repeat records. A lost offset
would count all input again on top of existing state. Both are refused unless `accept_offsets` is
set. A partition that appeared after the first start has no offset; it is read from its beginning
(KIP-1327).
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.tasks.commit_facts import (
    CommitFacts,
    NamedOperator,
    decode_details,
    decode_operators,
    inputs_digest,
    name_digest,
)
from tidewheel.tasks.errors import StartRefusedError
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan, internal_prefix, is_matched
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.key_ranges.progress_vector import Progress, partition_time_of_kafka_streams
from tidewheel.tasks.task.worker_settings import WorkerSettings

_WAYS_OUT: Final = (
    "To start there all the same, run once with --accept-offsets (or accept_offsets=True); to process the input again, stop "
    "all workers and run `tidewheel reset`"
)


class StartRules(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that decide where inputs start.

    Attributes:
        accept_offsets: Accept foreign offsets, and treat lost ones as never set.
        operators: Operator behind each generated store or repartition topic name.
    """

    group_id: str
    auto_offset_reset: str = "earliest"
    accept_offsets: bool = False
    operators: Mapping[str, NamedOperator] = msgspec.field(default_factory=dict[str, NamedOperator])

    def own(self, committed: CommittedOffset | None) -> Progress | None:
        """Return the progress in an offset's metadata; None without a commit of ours."""
        if committed is None or committed.offset < 0:
            return None
        progress = Progress.decode(committed.metadata, committed_offset=committed.offset)
        prefix = internal_prefix(self.group_id)
        ours = progress is not None and progress.transactional_id.startswith(prefix)
        return progress if ours else None


def start_rules(settings: WorkerSettings) -> StartRules:
    return StartRules(
        group_id=settings.application_id,
        auto_offset_reset=settings.auto_offset_reset,
        accept_offsets=settings.accept_offsets,
        operators=settings.operators,
    )


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Origin of one input's offset.

    Attributes:
        facts: Facts to store with each later commit of this input.
        has_past: This application has committed for the task. Else existing state proves that
            offsets were lost.
        is_new: The partition appeared after the application's first start.
        is_accepted: The offset is foreign or missing, and `accept_offsets` is set.
    """

    facts: CommitFacts = CommitFacts()
    has_past: bool = False
    is_new: bool = False
    is_accepted: bool = False


class GroupOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """Commits of this application for all inputs.

    Attributes:
        appeared: Input partitions created while this process ran.
    """

    plan: ApplicationPlan
    facts: Mapping[TopicPartition, CommitFacts]
    appeared: AbstractSet[TopicPartition] = frozenset()

    def is_new(self, partition: TopicPartition) -> bool:
        if partition in self.appeared:
            return True
        first = self.first_partitions(partition.topic)
        if first >= 0:
            return partition.partition >= first
        return self._is_new_topic(partition.topic)

    def first_partitions(self, topic: str) -> int:
        counts = [
            facts.first_partitions
            for partition, facts in self.facts.items()
            if partition.topic == topic and facts.first_partitions >= 0
        ]
        return min(counts, default=-1)

    def partitions(self, topic: str) -> int:
        counts = (subtopology.topic_partitions for subtopology in self.plan.subtopologies.values())
        return max(topic_partitions.get(topic, 0) for topic_partitions in counts)

    def _is_new_topic(self, topic: str) -> bool:
        """Return True if a pattern matched the topic later than others.

        One task commits partition 0 of all its topics together. If it did so without this topic,
        the topic appeared later.
        """
        if not is_matched(self.plan, topic) or any(
            partition.topic == topic for partition in self.facts
        ):
            return False
        return any(
            TopicPartition(other, 0) in self.facts
            for subtopology in self.plan.subtopologies.values()
            for topics in subtopology.source_topics.values()
            if topic in topics
            for other in topics
        )


def origin_without_offset(
    partition: TopicPartition,
    inputs: AbstractSet[TopicPartition],
    offsets: GroupOffsets,
    rules: StartRules,
) -> Origin:
    """Return the origin of an input without an offset; raise `StartRefusedError` if it had one."""
    digest = inputs_digest(input_partition.topic for input_partition in inputs)
    others = {
        input_partition: offsets.facts[input_partition]
        for input_partition in sorted(inputs)
        if input_partition in offsets.facts
    }
    together = next(
        (input_partition for input_partition, facts in others.items() if facts.inputs == digest),
        None,
    )
    if together is not None and not rules.accept_offsets:
        raise StartRefusedError(
            f"nothing is committed for {partition}, but {together}, which the same task reads, was committed together with it: "
            f"the offset of {partition} was deleted, or has expired. {_WAYS_OUT}"
        )
    is_new = together is None and offsets.is_new(partition)
    first = offsets.first_partitions(partition.topic)
    if first < 0 and not is_new:
        first = offsets.partitions(partition.topic)
    elif first < 0:
        appeared_partitions = [
            input_partition.partition
            for input_partition in offsets.appeared
            if input_partition.topic == partition.topic
        ]
        first = min(appeared_partitions, default=0)
    return Origin(
        facts=CommitFacts(first_partitions=first, inputs=digest, accepted=rules.accept_offsets),
        has_past=bool(others),
        is_new=is_new,
        is_accepted=rules.accept_offsets,
    )


def origin_of_foreign(
    partition: TopicPartition,
    committed: CommittedOffset,
    inputs: AbstractSet[TopicPartition],
    offsets: GroupOffsets,
    rules: StartRules,
    floor: int | None,
    *,
    is_exact: bool,
) -> Origin:
    """Return the origin of a foreign offset; raise `StartRefusedError` unless acceptable.

    Acceptable: `accept_offsets` is set, it equals an exact `floor`, or Kafka Streams committed it
    and this application never ran.
    """
    is_left = is_exact and committed.offset == floor
    is_accepted = rules.accept_offsets and not is_left
    theirs = partition_time_of_kafka_streams(committed.metadata) is not None
    migrates = theirs and floor is None and not offsets.facts
    if not (is_accepted or is_left or migrates):
        last_offset_text = (
            ""
            if floor is None
            else f", and the last owner left it at {floor_text(floor, is_exact=is_exact)}"
        )
        committer = "Kafka Streams committed it" if theirs else "another program or tool set it"
        raise StartRefusedError(
            f"offset {committed.offset} of {partition} was not committed by application {rules.group_id} ({committer}){last_offset_text}: starting "
            f"there would skip or repeat records. {_WAYS_OUT}"
        )
    first = offsets.first_partitions(partition.topic)
    return Origin(
        facts=CommitFacts(
            first_partitions=offsets.partitions(partition.topic) if first < 0 else first,
            inputs=inputs_digest(input_partition.topic for input_partition in inputs),
            accepted=is_accepted,
        ),
        has_past=not migrates,
        is_accepted=is_accepted,
    )


def floor_text(floor: int, *, is_exact: bool) -> str:
    return f"offset {floor}" if is_exact else f"offset {floor} or later"


def origin_of_commit(
    partition: TopicPartition,
    progress: Progress,
    inputs: AbstractSet[TopicPartition],
    offsets: GroupOffsets,
) -> Origin:
    facts = CommitFacts.decode(progress.facts)
    first = facts.first_partitions
    if first < 0:  # committed by an earlier version or a bulk load
        first = offsets.partitions(partition.topic)
    digest = inputs_digest(input_partition.topic for input_partition in inputs)
    return Origin(
        facts=msgspec.structs.replace(facts, first_partitions=first, inputs=digest), has_past=True
    )


def check_names(committed: CommitFacts, operators: Mapping[str, NamedOperator]) -> None:
    """Raise `StartRefusedError` if an operator's generated name changed since the last commit.

    It would use another operator's store or topic. Operators of equal fingerprints may swap names
    unnoticed.
    """
    names = {name_digest(name): name for name in operators}
    for before, now in (
        (
            decode_operators(committed.operators),
            {name: operator.fingerprint for name, operator in operators.items()},
        ),
        (
            decode_details(committed),
            {name: operator.details for name, operator in operators.items()},
        ),
    ):
        moved = _moved(
            before, {name_digest(name): operator for name, operator in sorted(now.items())}
        )
        if moved is not None:
            to, left = moved
            old = names.get(left, "another generated name")
            name, place = names[to], operators[names[to]].location
            line = f" ({place})" if place else ""
            raise StartRefusedError(
                f"{name}: its operator{line} had {old} at the last commit. Generated names count the calls of a program, so this "
                "operator would get the rows or records of another one, or lose its own. Name it (store=... for a store, name=... "
                "for a repartition topic); the name that it had keeps what it has. Or put the calls back into their order, or "
                "stop all workers and run `tidewheel reset`"
            )


def _moved(before: Mapping[int, int], now: Mapping[int, int]) -> tuple[int, int] | None:
    """Return the first name whose fingerprint had another name before, and the other.

    >>> _moved({1: 10, 2: 20}, {1: 20, 2: 10}), _moved({1: 10, 2: 20}, {1: 30, 2: 20})
    ((1, 2), None)
    """
    for name, details in now.items():
        if before.get(name) != details:
            for other, other_details in before.items():
                if other_details == details and now.get(other) != details:
                    return name, other
    return None


def check_state(
    task: TaskId,
    origins: Mapping[TopicPartition, Origin],
    committed: AbstractSet[TopicPartition],
    *,
    on_disk: str,
    in_changelogs: Mapping[TopicPartition, int],
) -> None:
    """Raise `StartRefusedError` if a task with state lost its offsets.

    Args:
        committed: Inputs with a committed offset; if it is not ours, it is Kafka Streams'.
        on_disk: Evidence of state on disk; empty if none.
    """
    if any(origin.has_past or origin.is_accepted for origin in origins.values()):
        return
    if committed:
        if on_disk:
            raise StartRefusedError(
                f"the offset of {min(committed)} was committed by Kafka Streams, but this application has run here ({on_disk}): "
                f"starting there would skip or repeat records. {_WAYS_OUT}"
            )
        return
    written = [f"changelog {log}" for log, end in sorted(in_changelogs.items()) if end > 0]
    evidence = on_disk or (f"{written[0]} has records" if written else "")
    if evidence:
        raise StartRefusedError(lost_text(min(origins), f"task {task} has state ({evidence})"))


def lost_text(partition: TopicPartition, evidence: str) -> str:
    return (
        f"nothing is committed for {partition}, but {evidence}: its offsets were deleted or have expired "
        "(offsets.retention.minutes), so all input would count again. " + _WAYS_OUT
    )
