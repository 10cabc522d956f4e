"""Topic watch: finds new topics of patterns and added partitions while a worker runs."""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from tidewheel.streams.errors import MissingSourceTopicError, StreamsError
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan
from tidewheel.tasks.kafka.ports import UnansweredError

_log = logging.getLogger("tidewheel")

#: Of each sub-topology: topics by source, and partition counts by topic.
Inputs = dict[int, tuple[Mapping[str, tuple[str, ...]], Mapping[str, int]]]

#: Default interval of checks (ms); the consumer property `_PROPERTY` overrides it.
_EVERY_MS: Final = 5_000

#: Seconds until the second check of a missing topic.
_AGAIN_S: Final = 1.0
_PROPERTY: Final = "topic.metadata.refresh.interval.ms"


def refresh_interval_ms(consumer: Mapping[str, Any]) -> int:
    """Return the interval between two checks (ms).

    >>> refresh_interval_ms({}), refresh_interval_ms({"topic.metadata.refresh.interval.ms": "300"})
    (5000, 300)
    """
    interval_ms = int(consumer.get(_PROPERTY, _EVERY_MS))
    return interval_ms if interval_ms > 0 else _EVERY_MS


class PlanWatch:
    """Thread that compares the cluster's topics with the current plan.

    Args:
        make_plan: Creates missing internal topics. Raises `StreamsError` if the topics no longer fit
            the topology.
        changed: Called with each new plan, in this thread.
    """

    def __init__(
        self,
        first: ApplicationPlan,
        *,
        list_topics: Callable[[], Mapping[str, int]],
        make_plan: Callable[[Mapping[str, int]], ApplicationPlan],
        changed: Callable[[ApplicationPlan], None],
        every_ms: int,
    ) -> None:
        self.plan = first
        self._list_topics = list_topics
        self._make_plan = make_plan
        self._changed = changed
        self._every_s = every_ms / 1000
        self._closed = threading.Event()
        self._requested = threading.Event()
        #: Inputs of the last plan if it lacked topics of the current one, else None.
        self._less: Inputs | None = None
        self._misfit: StreamsError | None = None
        self._thread = threading.Thread(target=self._run, name="tidewheel-topics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop without waiting for a request in flight; its answer is ignored."""
        self._closed.set()
        self._requested.set()

    def refresh_soon(self) -> None:
        self._requested.set()

    def check(self) -> None:
        if self._misfit is not None:
            raise self._misfit

    def refresh(self) -> None:
        try:
            topics = self._list_topics()
        except StreamsError as error:
            _log.warning("could not list the cluster's topics: %s", error)
            return
        try:
            plan = self._make_plan(topics)
        except UnansweredError as error:
            _log.warning("could not list the cluster's topics: %s", error)
            return
        except MissingSourceTopicError as error:
            # A starting broker may report topics as missing. If one really is, the consumer raises.
            _log.warning("%s", error)
            return
        except StreamsError as error:
            self._misfit = error
            return
        if self._closed.is_set() or self._is_doubtful(plan):
            return
        if inputs(plan) != inputs(self.plan):
            self.plan = plan
            self._changed(plan)

    def _is_doubtful(self, plan: ApplicationPlan) -> bool:
        """Return True if a plan lacks topics for the first time: the broker may be starting."""
        before, self._less = self._less, None
        if _topics(plan) >= _topics(self.plan):
            return False
        self._less = inputs(plan)
        return before != self._less

    def _run(self) -> None:
        while True:
            self._requested.wait(
                self._every_s if self._less is None else min(_AGAIN_S, self._every_s)
            )
            self._requested.clear()
            if self._closed.is_set():
                return
            self.refresh()


def _topics(plan: ApplicationPlan) -> set[str]:
    return {
        topic
        for subtopology in plan.subtopologies.values()
        for topic in subtopology.topic_partitions
    }


def inputs(plan: ApplicationPlan) -> Inputs:
    return {
        number: (subtopology.source_topics, subtopology.topic_partitions)
        for number, subtopology in sorted(plan.subtopologies.items())
    }
