"""Record limit of a run: ends it once so many input records are processed, with all that follows."""

from collections.abc import Mapping
from typing import Any, Final

from tidewheel.tasks.processing.api.topology_spec import TopologySpec

#: Seconds in which internal topics must bring nothing more.
_QUIET_S: Final = 1.0


class RecordLimit:
    """Progress of a run towards its limit, from the application's metrics.

    Sub-topologies that read input topics count. When they have processed enough, they pause, and
    the others finish what is in internal topics.

    Attributes:
        pausable: Sub-topologies that read input topics only.
    """

    def __init__(self, spec: TopologySpec, count: int, commit_interval_ms: int) -> None:
        self._count = count
        self._quiet_s = max(_QUIET_S, 3 * commit_interval_ms / 1000)
        sources = {
            sub.id: {source.internal for source in sub.sources} for sub in spec.subtopologies
        }
        self._counted = frozenset(number for number, kinds in sources.items() if False in kinds)
        self.pausable = frozenset(number for number, kinds in sources.items() if kinds == {False})
        self._has_internal = any(True in kinds for kinds in sources.values())
        self._internal_topics = {
            topic
            for sub in spec.subtopologies
            for source in sub.sources
            if source.internal
            for topic in source.topics
        }
        self._processed = -1.0
        self._since_s = 0.0

    def is_reached(self, metrics: Mapping[str, Any]) -> bool:
        """Return True once so many input records are processed."""
        return self._total(metrics, counted=True) >= self._count

    def is_finished(self, metrics: Mapping[str, Any], now_s: float) -> bool:
        """Return True once internal topics have brought nothing more for a while."""
        if not self._has_internal:
            return True
        processed = self._total(metrics, counted=False)
        lag = sum(
            lag
            for partition, lag in metrics.get("lag", {}).items()
            if any(partition.rpartition("-")[0].endswith(topic) for topic in self._internal_topics)
        )
        if processed != self._processed or lag:
            self._processed, self._since_s = processed, now_s
        return now_s - self._since_s >= self._quiet_s

    def _total(self, metrics: Mapping[str, Any], *, counted: bool) -> float:
        return sum(
            float(figures["process-total"])
            for task, figures in metrics.get("tasks", {}).items()
            if not counted or int(task.partition("_")[0]) in self._counted
        )
