"""Stream times of operators and stores, as one list in the commit metadata.

Kafka Streams loses these times in a restart; here late records stay late.
"""

import logging
from collections.abc import Mapping
from typing import Protocol

from tidewheel.tasks.processing.engine.position_clock import NO_TIME, ObservesPositions

_log = logging.getLogger(__name__)

#: Maximum times in a commit's metadata, whose size brokers limit; later ones are not stored.
OPERATOR_TIMES_MAX = 32


class TimeKeeper(Protocol):
    def times(self) -> tuple[int, ...]: ...

    def restore_times(self, times: tuple[int, ...]) -> None: ...


class OperatorTimes:
    """Stream times in the order of `keepers` (operators, stores): fixed per topology."""

    def __init__(self, keepers: Mapping[str, TimeKeeper]) -> None:
        self._observers = [
            keeper for keeper in keepers.values() if isinstance(keeper, ObservesPositions)
        ]
        #: Operators and stores with times. Their number of times never changes.
        self._keepers = {name: keeper for name, keeper in keepers.items() if keeper.times()}

    @property
    def is_empty(self) -> bool:
        return not self._keepers

    def collect(self) -> tuple[int, ...]:
        times: list[int] = []
        for keeper in self._keepers.values():
            times += keeper.times()
        return tuple(times[:OPERATOR_TIMES_MAX])

    def collect_at(self, position_ms: int) -> tuple[int, ...]:
        """Return the times to commit with an offset where the task's stream time is `position_ms`.

        Operators derive theirs from it. Stores cannot: -1 makes them restart without one.
        """
        times: list[int] = []
        for keeper in self._keepers.values():
            times += (
                keeper.times_at(position_ms)
                if isinstance(keeper, ObservesPositions)
                else (NO_TIME,) * len(keeper.times())
            )
        return tuple(times[:OPERATOR_TIMES_MAX])

    def position_time_ms(self, otherwise_ms: int) -> int:
        """Return the stream time at which a new position clock starts: that of the operators.

        Those that use the clock have the same; if none does, `otherwise_ms` is returned.
        """
        return max(
            (observer.observed_time_ms for observer in self._observers), default=otherwise_ms
        )

    def restore(self, times: tuple[int, ...], task_id: str) -> None:
        counts = {name: len(keeper.times()) for name, keeper in self._keepers.items()}
        total = sum(counts.values())
        if len(times) != min(total, OPERATOR_TIMES_MAX):
            _log.warning(
                "task %s has %d stream times of operators, but %d were committed; none is used, so late records may "
                "count as on time",
                task_id,
                total,
                len(times),
            )
            return
        begin = 0
        for name, keeper in self._keepers.items():
            end = begin + counts[name]
            if end > len(times):
                _log.warning(
                    "task %s has more than %d stream times of operators; those from %s on restart",
                    task_id,
                    OPERATOR_TIMES_MAX,
                    name,
                )
                return
            if end > begin:
                keeper.restore_times(times[begin:end])
            begin = end
