"""Refuses a worker while others live that have their tasks placed in the other way: by a group, or fixed by their user.

Together they would run the same tasks, and end each other by fencing whenever one of them commits. So a worker looks for
the others before it makes anything of its own: a member for workers with a fixed assignment, which the brokers know
(`streams/kafka/fixed_claim.py`), and a worker with a fixed assignment for members that speak in the group's inbox. Two that
start together may miss each other, also while one of them restores its global stores; then fencing sees to it that one ends.
"""

import logging
from collections.abc import Mapping
from contextlib import closing
from typing import Final, Protocol

from rebalance.describe import LogFold
from streams.client.application import Application
from streams.config import StreamsConfig
from streams.errors import IncompatibleMemberError, StreamsError
from streams.group.inbox import InboxFold, at_hosts, inbox_back_ms
from streams.group.topics import GroupTopics, TopicsAdmin
from streams.kafka.group_log import inbox_topic, state_topic
from streams.kafka.group_reader import KafkaGroupReader
from streams.kafka.portable_settings import settings_of
from streams.kafka.settings import FIXED_SESSION_MS

_log: Final = logging.getLogger("tidewheel")


class PlacingAdmin(TopicsAdmin, Protocol):
    """What is asked of the cluster."""

    def fixed_workers(self, application_id: str) -> Mapping[str, str]:
        """Return the workers with a fixed assignment that live: the transactional id of each, and its host."""
        ...


def check_one_placing(application: Application, admin: PlacingAdmin) -> None:
    """Raise `IncompatibleMemberError` if workers of the application live that place tasks in the other way."""
    config = application.config
    if application.is_fixed:
        refuse_fixed_worker(
            config.application_id, _speaking(config, admin, application.clock.now_ms())
        )
    else:
        refuse_member(config.application_id, _fixed_workers(config.application_id, admin))


def _fixed_workers(application_id: str, admin: PlacingAdmin) -> Mapping[str, str]:
    """Return the workers with a fixed assignment that live; none where the brokers don't tell: fencing still decides then."""
    try:
        return admin.fixed_workers(application_id)
    except StreamsError as error:
        _log.warning(
            "can't tell whether workers of %s with a fixed assignment are alive, and go on: %s",
            application_id,
            error,
        )
        return {}


def refuse_member(application_id: str, fixed: Mapping[str, str]) -> None:
    """Raise if workers with a fixed assignment live, given the transactional id of each, and its host."""
    if fixed:
        raise IncompatibleMemberError(
            f"workers of {application_id} with a fixed assignment are alive: {at_hosts(fixed)}; this one would join a "
            "group that takes their tasks over and ends them with FencedError. To change to a group stop them first (one "
            f"that was killed is forgotten after {FIXED_SESSION_MS // 1000} s), else start this one with a fixed "
            "assignment too"
        )


def refuse_fixed_worker(application_id: str, speaking: Mapping[str, str]) -> None:
    """Raise if members of the application's group were heard lately, given the name of each, and its host."""
    if speaking:
        raise IncompatibleMemberError(
            f"members of {application_id} are alive: {at_hosts(speaking)}; this worker has a fixed assignment and would "
            "end those whose tasks it takes with FencedError. To change to fixed assignment stop the application "
            "everywhere first (a member that was killed counts as alive for two session timeouts), else start this one "
            "without --tasks, --fixed-assignment and task_assignor='fixed'"
        )


def _speaking(config: StreamsConfig, admin: PlacingAdmin, now_ms: int) -> dict[str, str]:
    """Return the members of the application's group that were heard lately, on any machine, and their hosts."""
    app = config.application_id
    if not admin.describe_topics([state_topic(app), inbox_topic(app)]):
        return {}  # nobody has ever begun a group
    settings = settings_of(config, client_id=f"{app}-placing")
    readers = [KafkaGroupReader(settings, committed_only=each) for each in (True, False)]
    with closing(GroupTopics(app, admin, *readers)) as topics:
        there = topics.topic_ids()
        log, inbox = LogFold(), InboxFold()
        if state_topic(app) in there:
            for entry in topics.log():
                log.take(entry)
        if inbox_topic(app) in there:
            for heard in topics.inbox(now_ms - inbox_back_ms(log.group)):
                inbox.take(heard)
        return inbox.speaking_at(log.group, now_ms)
