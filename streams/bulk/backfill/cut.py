"""Cut between an old application and a new one: the offsets that the old one has committed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.bulk.backfill.driver import BackfillRefused
from tidewheel.streams.bulk.backfill.objections import CUT_AT_END, Difference
from tidewheel.streams.bulk.batch.source_segments import OffsetRange
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.group.group_log_writer import group_log_writer
from tidewheel.streams.group.inbox import with_hosts
from tidewheel.streams.group.rest import (
    RestCluster,
    gather_facts_without_group,
    gather_rest_facts,
)
from tidewheel.streams.group.rest_plan import (
    RestFacts,
    cut_of,
    inputs_of,
    reasons_against_rest,
)
from tidewheel.streams.kafka.admin.group_log import inbox_topic, state_topic
from tidewheel.streams.kafka.admin.reset_admin import KafkaResetAdmin
from tidewheel.streams.kafka.portable_settings import settings_of
from tidewheel.tasks.kafka.internal_topics import HIDDEN_TOPICS, absence
from tidewheel.tasks.kafka.ports import CommittedOffset, TopicDescription
from tidewheel.tasks.key_ranges.progress_vector import Progress

_WITHOUT_GROUP: Final = (
    "; workers with a fixed assignment take no orders to rest: let them run without new input until these are processed, then stop "
    "them, or give the offsets yourself with until='file:PATH' (--until file:PATH), where outputs may be missing or doubled"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Committed offsets of an application, at which another one continues if it is at rest.

    Attributes:
        obstacle: Reason why it is not at rest, so that its offsets still move; None if it is.
    """

    facts: RestFacts
    admin: KafkaResetAdmin
    obstacle: str | None = None

    def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end of each partition that the new application reads.

        Topics that the old one does not read end at their last stable record.

        Raises:
            BackfillRefused: The old application has not read all partitions of a topic, or an
                earlier topic of the same name.
        """
        old, cut = self.facts.application_id, cut_of(self.facts)
        topics = self.admin.describe_topics(sorted({at.topic for at in partitions}))
        renewed = sorted(
            {at.topic for at in partitions if _is_another(self.facts, topics[at.topic], at)}
        )
        if renewed:
            raise BackfillRefused(
                f"until_of: {', '.join(renewed)} was deleted and created again since {old} has read it, so its committed "
                "offsets are those of other records"
            )
        others = sorted(at for at in partitions if at not in cut)
        grown = [at for at in others if at.topic in self._read_topics]
        if grown and self.obstacle is None:
            raise BackfillRefused(
                f"until_of: {old} has not committed offsets of {', '.join(map(str, grown))}, although it has of other partitions "
                f"of {_topics(grown)}: it does not know that the topic has grown; let it continue (`tidewheel "
                f"group resume {old}`, or start it) until it reads them, then bring it to rest again; one whose state does not permit "
                "that needs an offset of each partition in a file: until='file:PATH' (--until file:PATH)"
            )
        stable = self.admin.stable_offsets(others)
        return {at: cut[at] if at in cut else stable[at] for at in partitions}

    def differences(self, topics: Iterable[str]) -> Iterator[Difference]:
        """Yield the topics that the old application does not read."""
        old = self.facts.application_id
        for topic in sorted(set(topics) - self._read_topics):
            yield Difference(
                reason=CUT_AT_END,
                node=topic,
                text=f"{old} has committed no offsets of this topic, so the backfill reads the topic to its last record; if {old} "
                "reads the topic, by name or by pattern, let it continue until it has committed, then bring it to rest again",
            )

    @property
    def _read_topics(self) -> set[str]:
        """Return the topics that the application reads."""
        return {at.topic for at in inputs_of(self.facts.group, self.facts.committed)}

    def moved(self, ranges: Mapping[TopicPartition, OffsetRange]) -> list[str]:
        """Return a text for each partition where the application has gone beyond its range."""
        return [
            f"{self.facts.application_id} has continued in {at} from {ranges[at].end} to {offset}"
            for at, offset in sorted(cut_of(self.facts).items())
            if at in ranges and ranges[at].end != offset
        ]

    def check(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        """Raise `BackfillRefused` if the application has continued since these ranges were fixed."""
        if moved := self.moved(ranges):
            raise BackfillRefused(
                f"until_of: the cut has moved since this backfill began ({', '.join(moved)}); bring the application to rest, and "
                "run this again: it starts over"
            )


def cut_of_application(
    config: StreamsConfig, old: str, admin: KafkaResetAdmin, *, must_rest: bool = True
) -> Cut:
    """Return the cut at the committed offsets of an application.

    Raises:
        BackfillRefused: The application is not at rest, and `must_rest`; or it has committed nothing,
            or its control topics are missing.
    """
    fixed = admin.fixed_workers(old)
    workers = ([with_hosts(fixed)] if fixed else []) + list(admin.group_members(old))
    obstacle = None
    if workers:
        obstacle = f"workers of {old} outside a group are alive: {', '.join(workers)}; they take no orders to rest, so stop them"
    if obstacle is not None and must_rest:
        raise BackfillRefused(f"until_of: {obstacle}")
    facts, advice = _facts(config, old, admin, stable=must_rest)
    if obstacle is None and (reasons := reasons_against_rest(facts)):
        obstacle = f"{old} is not at rest: {'; '.join(reasons)}{advice}"
    if obstacle is not None and must_rest:
        raise BackfillRefused(f"until_of: {obstacle}")
    return Cut(facts=facts, admin=admin, obstacle=obstacle)


def _facts(
    config: StreamsConfig, old: str, admin: KafkaResetAdmin, *, stable: bool
) -> tuple[RestFacts, str]:
    """Return the facts about an application, and advice if it is not at rest."""
    control_topics = sorted((state_topic(old), inbox_topic(old)))
    missing = [topic for topic in control_topics if topic not in admin.list_topics()]
    if not missing:
        settings = settings_of(config.replace(application_id=old))
        with closing(group_log_writer(settings, admin)) as group_log:
            cluster = RestCluster(application_id=old, group_log=group_log, admin=admin)
            return gather_rest_facts(cluster, group_log.group(decided=True), stable=stable), ""
    facts = gather_facts_without_group(old, admin, stable=stable)
    if len(missing) < len(control_topics) or any(map(_is_of_group, facts.committed.values())):
        raise BackfillRefused(
            f"until_of: {old} has a group, but {absence('topic', missing)}; if they were deleted, run `tidewheel group recover` for "
            f"{old} first; {HIDDEN_TOPICS}"
        )
    if not facts.committed:
        raise BackfillRefused(
            f"until_of: {old} has committed no offsets yet, or there is no such application; give the application_id of the one "
            "whose work this one takes over"
        )
    return facts, _WITHOUT_GROUP


def _is_of_group(committed: CommittedOffset) -> bool:
    """Return True if a member of a group has committed this; a fixed assignment has no epochs."""
    progress = Progress.decode(committed.metadata, committed_offset=committed.offset)
    return progress is not None and progress.task_epoch > 0


def _is_another(facts: RestFacts, topic: TopicDescription, at: TopicPartition) -> bool:
    committed = facts.committed.get(at)
    if committed is None:
        return False
    progress = Progress.decode(committed.metadata, committed_offset=committed.offset)
    return progress is not None and progress.topic_id != topic.topic_id


def _topics(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(sorted({at.topic for at in partitions}))
