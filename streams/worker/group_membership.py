"""How a worker becomes a member of its application's group, and how it goes.

The member itself, its beats and its lease live in the watchdog, which goes on while this process is busy; here are the
worker's words to it.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from tidewheel.rebalance.model import TaskId, TaskShape
from tidewheel.rebalance.protocol.orders import (
    AnyOrder,
    AnyReport,
    EndApplication,
    EndIncarnation,
    TasksSeen,
    WantShutdown,
    Welcome,
    WorkerLeaves,
)
from tidewheel.streams.errors import FencedError, IncompatibleMemberError, StreamsError
from tidewheel.tasks.internal_topics import ApplicationPlan, changelog_topic
from tidewheel.tasks.loop.group_producers import ended
from tidewheel.tasks.loop.worker_ports import Membership

#: A worker without a loop yet shows this often that it is alive.
_PROGRESS_S: Final = 0.05

_INCOMPATIBLE: Final = "INCOMPATIBLE"


class Departure(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker goes.

    Attributes:
        rejoin: It comes back soon; its tasks wait for it.
        drain_ms: How long it goes on working while its tasks move to other members; 0: not at all.
    """

    rejoin: bool = False
    drain_ms: int = 0


class GroupMembership:
    """The worker's line to its member: first waits for the welcome, then is the loop's.

    `take` is called by one thread, the loop's (before there is one, by `wait_for_welcome`).

    Args:
        link: The line.
        woken: Set whenever an order has come.
        on_shutdown: Called by `take` with the reason when a member has ended the whole application.
    """

    def __init__(
        self,
        link: Membership,
        woken: threading.Event,
        on_shutdown: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        self._link = link
        self._woken = woken
        self._on_shutdown = on_shutdown
        #: Whether the group has ended the application, as far as we know, and whether that was our wish.
        self._is_shut_down = False
        self._asked = False
        self._early: list[AnyOrder] = []
        self._end: EndIncarnation | None = None

    def wait_for_welcome(self, stopped: threading.Event) -> str | None:
        """Return the transactional id that the group has on record for us; None if we are to stop first.

        Raises `FencedError` with what the group says instead of a welcome.
        """
        while not stopped.is_set():
            self.progress()
            orders = self._link.take()
            for index, order in enumerate(orders):
                if isinstance(order, EndIncarnation):
                    raise ended(order)
                if isinstance(order, Welcome):
                    self._early = orders[index:]
                    return order.transactional_id
            self._woken.wait(_PROGRESS_S)
            self._woken.clear()
        return None

    def take(self) -> list[AnyOrder]:
        """Return the orders that came since the last call."""
        early, self._early = self._early, []
        orders = [*early, *self._link.take()]
        for order in orders:
            if isinstance(order, EndIncarnation):
                self._end = order
            elif isinstance(order, EndApplication):
                self._is_shut_down = True
                if not self._asked:
                    self._on_shutdown(order.reason)
        return [order for order in orders if not isinstance(order, EndApplication)]

    def last_word(self, error: FencedError, timeout_s: float) -> FencedError:
        """Return what the group says about the end of this incarnation, or `error` if it says nothing in time.

        The brokers may tell that we are fenced before the group has told why, and only the group knows whether we may
        come back. Called by the loop's thread when the loop has ended.
        """
        self._wait(lambda: self._end is not None, timeout_s)
        return error if self._end is None else ended(self._end)

    def shut_down(self, reason: str, timeout_s: float) -> bool:
        """Ask the group to end the whole application; return whether it has said within the time that it does.

        Called by the loop's thread when the loop has ended by an error, before the line is closed.
        """
        self._asked = True
        self.say(WantShutdown(reason=reason))
        return self._wait(lambda: self._is_shut_down, timeout_s)

    def _wait(self, is_there: Callable[[], bool], timeout_s: float) -> bool:
        deadline_s = time.monotonic() + timeout_s
        while not is_there() and self._end is None and time.monotonic() < deadline_s:
            self.progress()
            self.take()
            if not is_there():
                self._woken.wait(_PROGRESS_S)
                self._woken.clear()
        return is_there()

    def say(self, report: AnyReport) -> None:
        """Send a report."""
        self._link.say(report)

    def progress(self) -> None:
        """Show that the loop turns."""
        self._link.progress()

    def show_call(self, since_ns: int) -> None:
        """Show since when the loop has been in its present call of user code."""
        self._link.show_call(since_ns)

    def lease_left_s(self) -> float:
        """Return for how long input may still be taken."""
        return self._link.lease_left_s()

    def leave(self, departure: Departure) -> None:
        """Tell the group that this worker goes."""
        self.say(WorkerLeaves(rejoin=departure.rejoin, drain_ms=departure.drain_ms))


def said_to_users(error: FencedError) -> StreamsError:
    """Return the error as users know it: a program that does not fit its group is not one that somebody has fenced."""
    return IncompatibleMemberError(str(error)) if error.code.startswith(_INCOMPATIBLE) else error


def member_name(instance_id: str | None, kept: str, slot: int, *, alone: bool) -> str:
    """Return the lasting name of a member.

    Args:
        instance_id: `group_instance_id`.
        kept: The id that the slot's directory keeps, the same after every restart.
        slot: The slot.
        alone: Whether the program has one worker only; several append their slot.

    >>> member_name("shop", "5f0c", 0, alone=True), member_name("shop", "5f0c", 1, alone=False)
    ('shop', 'shop-1')
    >>> member_name(None, "5f0c", 1, alone=False)
    '5f0c'
    """
    if instance_id is None:
        return kept
    return instance_id if alone else f"{instance_id}-{slot}"


def task_shapes(plan: ApplicationPlan, application_id: str) -> dict[TaskId, TaskShape]:
    """Return every task of an application with what placing it needs to know."""
    shapes: dict[TaskId, TaskShape] = {}
    for _, subtopology in sorted(plan.subtopologies.items()):
        topics: list[str] = []
        for store in subtopology.spec.stores:
            if store.logging:
                topics.append(changelog_topic(application_id, store.name))
            elif store.source_topic is not None:
                topics.append(store.source_topic)
        shape = TaskShape(stateful=bool(topics), changelogs=tuple(sorted(topics)))
        shapes.update(dict.fromkeys(subtopology.tasks, shape))
    return shapes


def partition_counts(plan: ApplicationPlan) -> dict[str, int]:
    """Return the partition count of each topic that tasks read."""
    return {
        topic: count
        for _, each in sorted(plan.subtopologies.items())
        for topic, count in sorted(each.topic_partitions.items())
    }


def tasks_seen(plan: ApplicationPlan, application_id: str) -> TasksSeen:
    """Return what the group is told when the cluster's topics have changed."""
    shapes = task_shapes(plan, application_id)
    return TasksSeen(
        tasks=tuple(
            (str(task), shape.stateful, shape.changelogs) for task, shape in shapes.items()
        ),
        partitions=partition_counts(plan),
    )
