"""Group membership of a worker.

The watchdog owns the member, its heartbeats and its lease: they continue while this process is
busy.
"""

import threading
import time
from collections.abc import Callable
from typing import Final, cast

import msgspec

from tidewheel.rebalance.model import TaskId, TaskShape
from tidewheel.rebalance.protocol.field_types import ShardCount
from tidewheel.rebalance.protocol.messages import SeenTask
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
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan, changelog_topic
from tidewheel.tasks.loop.group_producers import ended
from tidewheel.tasks.loop.worker_ports import Membership

#: Interval of progress reports while no loop runs: before its start and after its end.
_PROGRESS_S: Final = 0.05

_INCOMPATIBLE: Final = "INCOMPATIBLE"


class Departure(msgspec.Struct, frozen=True, kw_only=True):
    """Mode in which a worker leaves its group.

    Attributes:
        rejoin: The worker comes back soon, so the group keeps its tasks for it.
        drain_ms: Longest time to keep processing while tasks move to other members.
    """

    rejoin: bool = False
    drain_ms: int = 0


class GroupMembership:
    """Connection of a worker to the watchdog process, its member of the group; used by one thread.

    Args:
        woken: Set whenever an order of the group has arrived.
        on_shutdown: Called with the reason when another member ends the application.
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
        self._is_shut_down = False
        self._requested_shutdown = False
        self._early: list[AnyOrder] = []
        self._end: EndIncarnation | None = None

    def wait_for_welcome(self, stopped: threading.Event) -> str | None:
        """Return the transactional id from the group; None if stopped before.

        Raises `FencedError` with the group's reason if the group refuses this worker.
        """
        while not stopped.is_set():
            self.progress()
            orders = self._link.receive_orders()
            for index, order in enumerate(orders):
                if isinstance(order, EndIncarnation):
                    raise ended(order)
                if isinstance(order, Welcome):
                    self._early = orders[index:]
                    return order.transactional_id
            self._woken.wait(_PROGRESS_S)
            self._woken.clear()
        return None

    def receive_orders(self) -> list[AnyOrder]:
        early, self._early = self._early, []
        orders = [*early, *self._link.receive_orders()]
        for order in orders:
            if isinstance(order, EndIncarnation):
                self._end = order
            elif isinstance(order, EndApplication):
                self._is_shut_down = True
                if not self._requested_shutdown:
                    self._on_shutdown(order.reason)
        return [order for order in orders if not isinstance(order, EndApplication)]

    def fencing_reason(self, error: FencedError, timeout_s: float) -> FencedError:
        """Return the group's reason for the end of this incarnation; `error` if none comes in time.

        The brokers may report the fencing first, but only the group knows if the member may rejoin.
        """
        self._wait(lambda: self._end is not None, timeout_s)
        return error if self._end is None else ended(self._end)

    def shut_down(self, reason: str, timeout_s: float) -> bool:
        """Ask the group to end the application; return True if it confirmed in time."""
        self._requested_shutdown = True
        self.send(WantShutdown(reason=reason))
        return self._wait(lambda: self._is_shut_down, timeout_s)

    def _wait(self, is_there: Callable[[], bool], timeout_s: float) -> bool:
        deadline_s = time.monotonic() + timeout_s
        while not is_there() and self._end is None and time.monotonic() < deadline_s:
            self.progress()
            self.receive_orders()
            if not is_there():
                self._woken.wait(_PROGRESS_S)
                self._woken.clear()
        return is_there()

    def send(self, report: AnyReport) -> None:
        self._link.send(report)

    def progress(self) -> None:
        self._link.progress()

    def show_call(self, since_ns: int) -> None:
        self._link.show_call(since_ns)

    def lease_left_s(self) -> float:
        return self._link.lease_left_s()

    def leave(self, departure: Departure) -> None:
        self.send(WorkerLeaves(rejoin=departure.rejoin, drain_ms=departure.drain_ms))


def user_error(error: FencedError) -> StreamsError:
    """Return `IncompatibleMemberError` for a program that does not fit its group, else `error`."""
    return IncompatibleMemberError(str(error)) if error.code.startswith(_INCOMPATIBLE) else error


def member_name(instance_id: str | None, stored_id: str, slot: int, *, alone: bool) -> str:
    """Return the lasting name of a member: `instance_id`, else the id stored on its disk.

    Several workers in one program have the same `instance_id`, so they append their slot.

    >>> member_name("shop", "5f0c", 0, alone=True), member_name("shop", "5f0c", 1, alone=False)
    ('shop', 'shop-1')
    >>> member_name(None, "5f0c", 1, alone=False)
    '5f0c'
    """
    if instance_id is None:
        return stored_id
    return instance_id if alone else f"{instance_id}-{slot}"


def task_shapes(plan: ApplicationPlan, application_id: str) -> dict[TaskId, TaskShape]:
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
    return {
        topic: count
        for _, subtopology in sorted(plan.subtopologies.items())
        for topic, count in sorted(subtopology.topic_partitions.items())
    }


def tasks_seen(plan: ApplicationPlan, application_id: str) -> TasksSeen:
    return TasksSeen(tasks=seen_tasks(plan, application_id), partitions=partition_counts(plan))


def seen_tasks(plan: ApplicationPlan, application_id: str) -> tuple[SeenTask, ...]:
    """Return one row per partition, with its number of shards."""
    shapes = {task.whole: shape for task, shape in task_shapes(plan, application_id).items()}
    return tuple(
        SeenTask(
            task=str(task),
            stateful=shape.stateful,
            changelogs=shape.changelogs,
            shards=cast("ShardCount", plan.subtopologies[task.subtopology].shards),
        )
        for task, shape in shapes.items()
    )
