"""Cut between an old application and a new one: the offsets that the old one has committed."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.bulk.backfill.driver import BackfillRefused
from tidewheel.streams.bulk.batch.source_segments import OffsetRange
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.group.group_log_writer import group_log_writer
from tidewheel.streams.group.rest import RestCluster, gather_rest_facts
from tidewheel.streams.group.rest_plan import RestFacts, cut_of, reasons_against_rest
from tidewheel.streams.kafka.admin.group_log import inbox_topic, state_topic
from tidewheel.streams.kafka.admin.reset_admin import KafkaResetAdmin
from tidewheel.streams.kafka.portable_settings import settings_of
from tidewheel.tasks.kafka.ports import TopicDescription
from tidewheel.tasks.key_ranges.progress_vector import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Committed offsets of an application at rest.

    Attributes:
        takes_ends: Topics that it does not read end at their last stable record.
    """

    facts: RestFacts
    admin: KafkaResetAdmin
    takes_ends: bool

    def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end of each partition that the new application reads.

        Raises:
            BackfillRefused: The application reads other topics than these.
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
        others = sorted({at.topic for at in partitions if at not in cut})
        if others and not self.takes_ends:
            raise BackfillRefused(
                f"until_of: {old} has not committed offsets of all partitions of {', '.join(others)}; if these topics are new to "
                "the topology, accept that they end at their last record with accept=['cut-at-end'] (--accept cut-at-end)"
            )
        stable = self.admin.stable_offsets([at for at in partitions if at not in cut])
        return {at: cut[at] if at in cut else stable[at] for at in partitions}

    def check(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        """Raise `BackfillRefused` if the application has continued since these ranges were fixed."""
        moved = [
            f"{at} from {ranges[at].end} to {offset}"
            for at, offset in sorted(cut_of(self.facts).items())
            if at in ranges and ranges[at].end != offset
        ]
        if moved:
            raise BackfillRefused(
                f"until_of: {self.facts.application_id} has continued since this backfill began ({', '.join(moved)}); start over "
                "with restart (--restart)"
            )


def cut_of_application(
    config: StreamsConfig, old: str, admin: KafkaResetAdmin, *, takes_ends: bool
) -> Cut:
    """Return the cut at the committed offsets of an application.

    Raises:
        BackfillRefused: The application is not at rest.
    """
    missing = {state_topic(old), inbox_topic(old)} - admin.list_topics().keys()
    if missing:
        raise BackfillRefused(
            f"until_of: there is no group of an application {old} ({', '.join(sorted(missing))} does not exist); give the "
            "application_id of the one whose work this one takes over"
        )
    settings = settings_of(config.replace(application_id=old))
    with closing(group_log_writer(settings, admin)) as group_log:
        cluster = RestCluster(application_id=old, group_log=group_log, admin=admin)
        facts = gather_rest_facts(cluster, group_log.group(decided=True), stable=True)
    reasons = reasons_against_rest(facts)
    if reasons:
        raise BackfillRefused(f"until_of: {old} is not at rest: {'; '.join(reasons)}")
    return Cut(facts=facts, admin=admin, takes_ends=takes_ends)


def _is_another(facts: RestFacts, topic: TopicDescription, at: TopicPartition) -> bool:
    committed = facts.committed.get(at)
    if committed is None:
        return False
    progress = Progress.decode(committed.metadata, committed_offset=committed.offset)
    return progress is not None and progress.topic_id != topic.topic_id
