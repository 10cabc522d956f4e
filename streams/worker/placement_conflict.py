"""Refuses a worker while others live that have their tasks placed in the other way: by a group, or fixed by their user.

Together they would run the same tasks, and end each other by fencing whenever one of them commits. So a worker looks for
the others twice. First before it makes anything of its own, so that one that is refused leaves no trace. And again when all
can see it, before it takes a task: a member is in the group's log by then, a worker with a fixed assignment is known to the
brokers (`streams/kafka/consumers/fixed_claim.py`). Of two that start together the one that was seen later therefore sees the other;
perhaps both do, and both are refused.

Whether a member lives is heard and not reckoned: one that the log has, and that says nothing for two session timeouts
while this worker listens, does not. Clocks of two machines are never compared (hole H22).
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Final, Protocol

from tidewheel.rebalance.group import Group
from tidewheel.rebalance.inspect.describe import LogFold
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.errors import IncompatibleMemberError, StreamsError
from tidewheel.streams.group.inbox import at_hosts
from tidewheel.streams.group.listening import speaking_now
from tidewheel.streams.group.topics import GroupTopics, TopicsAdmin
from tidewheel.streams.kafka.admin.group_log import inbox_topic, state_topic
from tidewheel.streams.kafka.client.settings import FIXED_SESSION_MS
from tidewheel.streams.kafka.consumers.group_reader import KafkaGroupReader
from tidewheel.streams.kafka.portable_settings import settings_of
from tidewheel.streams.worker.application.application import Application

_log: Final = logging.getLogger("tidewheel")

#: How long brokers may take to know a worker with a fixed assignment, and how often they are asked.
_SHOWN_S: Final = 10.0
_ASK_S: Final = 0.05


class PlacingAdmin(TopicsAdmin, Protocol):
    """What is asked of the cluster."""

    def fixed_workers(self, application_id: str) -> Mapping[str, str]:
        """Return the workers with a fixed assignment that live: the transactional id of each, and its host."""
        ...


class Waiting(Protocol):
    """Says when the worker is to end; a `threading.Event`."""

    def wait(self, timeout: float) -> bool:
        """Wait for some seconds; return whether the worker is to end."""
        ...


class OnePlacing:
    """Looks for workers of the application that place tasks in the other way. One thread calls it.

    Args:
        application: Whose worker looks.
        admin: Asked for workers with a fixed assignment, and for the group's topics.
        ending: Set when the worker is to end: then it looks no longer.
        open_topics: Makes a reader of the group's topics.
    """

    def __init__(
        self,
        application: Application,
        admin: PlacingAdmin,
        ending: Waiting,
        open_topics: Callable[[StreamsConfig, TopicsAdmin], GroupTopics] | None = None,
    ) -> None:
        self._application = application
        self._app = application.config.application_id
        self._admin = admin
        self._ending = ending
        self._open_topics = open_topics or _open_topics
        #: Incarnations that the log has and that were listened for in vain.
        self._silent: frozenset[str] = frozenset()

    def look(self) -> None:
        """Raise `IncompatibleMemberError` if such workers live; nothing was begun yet."""
        if self._application.is_fixed:
            refuse_fixed_worker(self._app, self._speaking())
        else:
            refuse_member(self._app, self._fixed_workers(logging.WARNING))

    def look_again_as_member(self) -> None:
        """Do as `look` does, now that the group's log has this worker."""
        refuse_member(self._app, self._fixed_workers(logging.DEBUG))

    def look_again_as_fixed(self, transactional_id: str | None) -> None:
        """Do as `look` does, as soon as brokers know this worker by its transactional id (None: it has no task to show for)."""
        if transactional_id is not None:
            self._wait_until_shown(transactional_id)
        refuse_fixed_worker(self._app, self._speaking())

    def _fixed_workers(self, level: int) -> Mapping[str, str]:
        """Return the workers with a fixed assignment that live; none where the brokers don't tell: fencing still decides then."""
        try:
            return self._admin.fixed_workers(self._app)
        except StreamsError as error:
            _log.log(
                level,
                "can't tell whether workers of %s with a fixed assignment are alive, and go on: %s",
                self._app,
                error,
            )
            return {}

    def _wait_until_shown(self, transactional_id: str) -> None:
        """Wait until a member that asks sees this worker: whoever asked before is in the log by now."""
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
            "can't tell whether brokers show members of %s that this worker is alive, and go on: %s",
            self._app,
            why,
        )

    def _speaking(self) -> dict[str, str]:
        """Return the members of the application's group that live, on any machine, and their hosts."""
        names = [state_topic(self._app), inbox_topic(self._app)]
        if len(self._admin.describe_topics(names)) < len(names):
            return {}  # nobody has ever begun a group, or it can't be heard
        with closing(self._open_topics(self._application.config, self._admin)) as topics:
            group = _read(topics)
            members = {
                incarnation: record
                for incarnation, record in group.live().items()
                if incarnation not in self._silent
            }
            if members:
                _log.info("listening whether members of %s are alive", self._app)
            heard = speaking_now(topics, members, self._application.clock, self._ending.wait)
        self._silent |= members.keys() - heard
        return {members[each].member: members[each].host for each in heard}


def _read(topics: GroupTopics) -> Group:
    fold = LogFold()
    for entry in topics.log():
        fold.add(entry)
    return fold.group


def _open_topics(config: StreamsConfig, admin: TopicsAdmin) -> GroupTopics:
    settings = settings_of(config, client_id=f"{config.application_id}-placing")
    readers = [KafkaGroupReader(settings, committed_only=each) for each in (True, False)]
    return GroupTopics(config.application_id, admin, *readers)


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
    """Raise if members of the application's group were heard, given the name of each, and its host."""
    if speaking:
        raise IncompatibleMemberError(
            f"members of {application_id} are alive: {at_hosts(speaking)}; this worker has a fixed assignment and would "
            "end those whose tasks it takes with FencedError. To change to fixed assignment stop the application "
            "everywhere first, else start this one without --tasks, --fixed-assignment and task_assignor='fixed'"
        )
