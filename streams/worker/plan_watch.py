"""Looks every few seconds whether the cluster's topics have changed: new ones for a pattern, more partitions (N8, N12)."""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from tidewheel.streams.errors import MissingSourceTopicError, StreamsError
from tidewheel.tasks.internal_topics import ApplicationPlan
from tidewheel.tasks.ports import UnansweredError

_log = logging.getLogger("tidewheel")

#: What each sub-topology reads: the topics of each source, the partitions of each topic.
Inputs = dict[int, tuple[Mapping[str, tuple[str, ...]], Mapping[str, int]]]

#: How often the cluster is asked, unless `consumer` says it as Kafka's clients do.
_EVERY_MS: Final = 5_000

#: A topic of a pattern is gone if it still is after this long.
_AGAIN_S: Final = 1.0
_PROPERTY: Final = "topic.metadata.refresh.interval.ms"


def refresh_interval_ms(consumer: Mapping[str, Any]) -> int:
    """Return how often to look, by the consumer's properties.

    >>> refresh_interval_ms({}), refresh_interval_ms({"topic.metadata.refresh.interval.ms": "300"})
    (5000, 300)
    """
    given = int(consumer.get(_PROPERTY, _EVERY_MS))
    return given if given > 0 else _EVERY_MS


class PlanWatch:
    """A light thread that compares the cluster with the plan that is in use, until it is closed.

    Args:
        first: The plan in use.
        list_topics: Asks the cluster for its topics and their partition counts.
        make_plan: Makes a plan from these, and the internal topics it needs; raises `StreamsError` where the topics no
            longer fit the topology.
        changed: Told of each new plan, in this thread.
        every_ms: How often to look.
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
        self._asked = threading.Event()
        #: What was read by a plan that had less than the one in use, if the last look made such a one.
        self._less: Inputs | None = None
        self._misfit: StreamsError | None = None
        self._thread = threading.Thread(target=self._run, name="tidewheel-topics", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Stop looking. A question that is out is not waited for: its answer changes nothing any more."""
        self._closed.set()
        self._asked.set()

    def look_soon(self) -> None:
        """Look now: somebody has heard that a topic is gone."""
        self._asked.set()

    def check(self) -> None:
        """Raise what no longer fits between the cluster's topics and the topology, if anything does."""
        if self._misfit is not None:
            raise self._misfit

    def look(self) -> None:
        """Ask the cluster once, and tell of a plan that is another one."""
        try:
            topics = self._list_topics()
        except StreamsError as error:
            # Whoever needs the cluster says more; the plan stays as it is.
            _log.warning("could not look at the cluster's topics: %s", error)
            return
        try:
            plan = self._make_plan(topics)
        except (MissingSourceTopicError, UnansweredError) as error:
            # Whoever reads a topic ends by its absence, if it is true: a broker that just starts may say so of any.
            _log.warning("could not look at the cluster's topics: %s", error)
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
        """Return whether a plan lacks topics of a pattern for the first time: the broker may just be starting."""
        before, self._less = self._less, None
        if _topics(plan) >= _topics(self.plan):
            return False
        self._less = inputs(plan)
        return before != self._less

    def _run(self) -> None:
        while True:
            self._asked.wait(self._every_s if self._less is None else min(_AGAIN_S, self._every_s))
            self._asked.clear()
            if self._closed.is_set():
                return
            self.look()


def _topics(plan: ApplicationPlan) -> set[str]:
    return {topic for each in plan.subtopologies.values() for topic in each.topic_partitions}


def inputs(plan: ApplicationPlan) -> Inputs:
    """Return what each sub-topology reads: the topics of each source, the partitions of each topic."""
    return {
        number: (each.source_topics, each.topic_partitions)
        for number, each in sorted(plan.subtopologies.items())
    }
