"""Cut between an old application and a new one: what the old one has committed at rest."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial

from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.bulk.backfill.driver import BackfillRefused
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.group.group_log_writer import group_log_writer
from tidewheel.streams.group.rest import RestCluster, gather_rest_facts
from tidewheel.streams.group.rest_plan import RestFacts, cut_of, reasons_against_rest
from tidewheel.streams.kafka.admin.group_log import inbox_topic, state_topic
from tidewheel.streams.kafka.admin.reset_admin import KafkaResetAdmin
from tidewheel.streams.kafka.portable_settings import settings_of
from tidewheel.tasks.kafka.ports import TopicDescription
from tidewheel.tasks.key_ranges.progress_vector import Progress

#: Returns the end of each of the partitions that a new application reads.
Cut = Callable[[Sequence[TopicPartition]], Mapping[TopicPartition, int]]


def cut_of_application(
    config: StreamsConfig, old: str, admin: KafkaResetAdmin, *, cuts_at_end: bool
) -> Cut:
    """Return the cut at the committed offsets of an application.

    `cuts_at_end`: topics that it does not read end at their last stable record.

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
    return partial(_ends, facts, admin, cuts_at_end)


def _ends(
    facts: RestFacts,
    admin: KafkaResetAdmin,
    cuts_at_end: bool,
    partitions: Sequence[TopicPartition],
) -> Mapping[TopicPartition, int]:
    cut = cut_of(facts)
    topics = admin.describe_topics(sorted({at.topic for at in partitions}))
    renewed = sorted({at.topic for at in partitions if _is_another(facts, topics[at.topic], at)})
    if renewed:
        raise BackfillRefused(
            f"until_of: {', '.join(renewed)} was deleted and created again since {facts.application_id} has read it, so its "
            "committed offsets are those of other records"
        )
    others = sorted({at.topic for at in partitions if at not in cut})
    if others and not cuts_at_end:
        raise BackfillRefused(
            f"until_of: {facts.application_id} has not committed offsets of all partitions of {', '.join(others)}; if these topics "
            "are new to the topology, accept that they end at their last record with accept=['cut-at-end'] (--accept cut-at-end)"
        )
    stable = admin.stable_offsets([at for at in partitions if at not in cut])
    return {at: cut[at] if at in cut else stable[at] for at in partitions}


def _is_another(facts: RestFacts, topic: TopicDescription, at: TopicPartition) -> bool:
    committed = facts.committed.get(at)
    if committed is None:
        return False
    progress = Progress.decode(committed.metadata, committed_offset=committed.offset)
    return progress is not None and progress.topic_id != topic.topic_id
