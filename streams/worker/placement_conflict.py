"""Placement check: rejects mixing fixed and group assignment within one application.

Workers of both kinds would run the same tasks and fence each other at every commit. So a worker
checks twice: before it creates anything, and before it gets a task, when other workers can see it
in the group log or at the brokers. Of two concurrent starts, at least the later one sees the other.

A member counts as dead if it sends nothing for two session timeouts while this worker listens:
clocks of two machines are never compared.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Final, Protocol

from tidewheel.rebalance.inspect.describe import LogFold
from tidewheel.rebalance.protocol.group import Group
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.errors import IncompatibleMemberError, StreamsError
from tidewheel.streams.group.inbox import with_hosts
from tidewheel.streams.group.listening import members_heard
from tidewheel.streams.group.topics import GroupTopics, TopicsAdmin
from tidewheel.streams.kafka.admin.group_log import inbox_topic, state_topic
from tidewheel.streams.kafka.client.settings import FIXED_SESSION_MS
from tidewheel.streams.kafka.consumers.group_reader import KafkaGroupReader
from tidewheel.streams.kafka.portable_settings import settings_of
from tidewheel.streams.worker.application.application import Application

_log: Final = logging.getLogger("tidewheel")

#: Maximum seconds to wait until brokers list this worker, so members of a group see it. After that
#: it starts anyway.
_SHOWN_S: Final = 10.0
_ASK_S: Final = 0.05


class PlacementAdmin(TopicsAdmin, Protocol):
    def fixed_workers(self, application_id: str) -> Mapping[str, str]: ...


class StopSignal(Protocol):
    """A `threading.Event`."""

    def wait(self, timeout: float) -> bool: ...


class PlacementCheck:
    """Check for workers with the other kind of assignment (fixed or by a group)."""

    def __init__(
        self,
        application: Application,
        admin: PlacementAdmin,
        ending: StopSignal,
        open_topics: Callable[[StreamsConfig, TopicsAdmin], GroupTopics] | None = None,
    ) -> None:
        self._application = application
        self._app = application.config.application_id
        self._admin = admin
        self._ending = ending
        self._open_topics = open_topics or _open_topics
        #: Members in the group log that sent nothing while this worker listened: dead ones.
        self._silent: frozenset[str] = frozenset()

    def check(self) -> None:
        """Raise `IncompatibleMemberError` if workers of the other kind are alive."""
        if self._application.is_fixed:
            refuse_fixed_worker(self._app, self._live_members())
        else:
            refuse_member(self._app, self._fixed_workers(logging.WARNING))

    def check_as_member(self) -> None:
        """Check a second time, now that the group log shows this worker to others."""
        refuse_member(self._app, self._fixed_workers(logging.DEBUG))

    def check_as_fixed(self, transactional_id: str | None) -> None:
        """Check a second time, once brokers list this worker; without an id they don't list it."""
        if transactional_id is not None:
            self._wait_until_shown(transactional_id)
        refuse_fixed_worker(self._app, self._live_members())

    def _fixed_workers(self, level: int) -> Mapping[str, str]:
        """Return live workers with fixed assignment; assume none if no broker answers."""
        try:
            return self._admin.fixed_workers(self._app)
        except StreamsError as error:
            _log.log(
                level,
                "can't check for live workers of %s with a fixed assignment, so the start continues: %s",
                self._app,
                error,
            )
            return {}

    def _wait_until_shown(self, transactional_id: str) -> None:
        clock = self._application.clock
        until_s = clock.monotonic_s() + _SHOWN_S
        why = f"they have not done so for {_SHOWN_S:g} s"
        while clock.monotonic_s() < until_s:
            try:
                if transactional_id in self._admin.fixed_workers(self._app):
                    return
            except StreamsError as error:
                why = str(error)
                break
            if self._ending.wait(_ASK_S):
                return
        _log.warning(
            "can't check that members of %s see this worker, so the start continues: %s",
            self._app,
            why,
        )

    def _live_members(self) -> dict[str, str]:
        names = [state_topic(self._app), inbox_topic(self._app)]
        if len(self._admin.describe_topics(names)) < len(names):
            return {}  # no group was ever started
        with closing(self._open_topics(self._application.config, self._admin)) as topics:
            group = _read(topics)
            members = {
                incarnation: record
                for incarnation, record in group.live().items()
                if incarnation not in self._silent
            }
            if members:
                _log.info("listening for live members of %s", self._app)
            live = members_heard(topics, members, self._application.clock, self._ending.wait)
        self._silent |= members.keys() - live
        return {members[incarnation].member: members[incarnation].host for incarnation in live}


def _read(topics: GroupTopics) -> Group:
    fold = LogFold()
    for entry in topics.log():
        fold.add(entry)
    return fold.group


def _open_topics(config: StreamsConfig, admin: TopicsAdmin) -> GroupTopics:
    settings = settings_of(config, client_id=f"{config.application_id}-placing")
    readers = [KafkaGroupReader(settings, committed_only=committed) for committed in (True, False)]
    return GroupTopics(config.application_id, admin, *readers)


def refuse_member(application_id: str, fixed: Mapping[str, str]) -> None:
    if fixed:
        raise IncompatibleMemberError(
            f"workers of {application_id} with a fixed assignment are alive: {with_hosts(fixed)}; this one would join a "
            "group that takes their tasks over and ends them with FencedError. To change to a group stop them first (a "
            f"killed one disappears after {FIXED_SESSION_MS // 1000} s), else start this one with a fixed "
            "assignment too"
        )


def refuse_fixed_worker(application_id: str, live_members: Mapping[str, str]) -> None:
    if live_members:
        raise IncompatibleMemberError(
            f"members of {application_id} are alive: {with_hosts(live_members)}; this worker has a fixed assignment and would "
            "end those whose tasks it takes with FencedError. To change to fixed assignment stop the application "
            "everywhere first, else start this one without --tasks, --fixed-assignment and task_assignor='fixed'"
        )
