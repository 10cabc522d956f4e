"""Topics of patterns that are deleted while a worker reads them: the others go on, as in Kafka Streams."""

import logging
from collections.abc import Callable, Iterable
from typing import Final

from tidewheel.tasks.errors import MissingSourceTopicError
from tidewheel.tasks.internal_topics import ApplicationPlan, is_matched
from tidewheel.tasks.ports import Clock
from tidewheel.tasks.task.active_task import ActiveTask
from tidewheel.tasks.task.worker_input import WorkerInput

_log = logging.getLogger(__name__)

#: So long after the client said that a topic is gone, a plan without it has to be there, and how often it is asked for.
_GIVE_UP_S: Final = 60.0
_ASK_S: Final = 1.0


class GoneTopics:
    """The input of a worker, whose topics may vanish. Its loop calls it; with a plan without them it begins anew.

    Args:
        work: The input.
        plan: By which the tasks run.
        clock: The worker's.
        look: Has the cluster's topics looked at soon.
    """

    def __init__(
        self, work: WorkerInput, plan: ApplicationPlan, clock: Clock, look: Callable[[], None]
    ) -> None:
        self._work = work
        self._plan = plan
        self._clock = clock
        self._look = look
        self._error: MissingSourceTopicError | None = None
        self._give_up_s = 0.0
        self._next_ask_s = 0.0

    def fetch(self, ready: Iterable[ActiveTask], idle_s: Callable[[], float]) -> int:
        """Do as `WorkerInput.fetch`; a topic of a pattern that is gone is read no more.

        Raises `MissingSourceTopicError` for one that the topology names.
        """
        try:
            return self._work.fetch(ready, idle_s)
        except MissingSourceTopicError as error:
            if error.topic is None or not is_matched(self._plan, error.topic):
                raise
            _log.warning("topic %s is gone, its pattern's other topics are read on", error.topic)
            self._work.forget(error.topic)
            self._error = error
            self._next_ask_s = self._clock.monotonic_s()
            self._give_up_s = self._next_ask_s + _GIVE_UP_S
            return 0

    def check(self) -> None:
        """Ask for a plan without what is gone; raise if none comes, such as where the topic was made anew at once."""
        if self._error is None:
            return
        now_s = self._clock.monotonic_s()
        if now_s >= self._give_up_s:
            raise self._error
        if now_s >= self._next_ask_s:
            self._next_ask_s = now_s + _ASK_S
            self._look()
