"""The stream times that a task's operators and stores must not forget, as one list for the commit's metadata.

As Kafka Streams, every windowed, joining or suppressing operator keeps a stream time of its own, and so does every
segmented store. There they are lost in a restart; here they are committed with the offsets, so that a record that was
late stays late (DESIGN §4).
"""

import logging
from collections.abc import Mapping
from typing import Protocol

from tidewheel.tasks.processing.engine.position_clock import NO_TIME, ObservesPositions

_log = logging.getLogger(__name__)

#: As many are committed at most, so that the metadata of an offset stays below a broker's limit.
OPERATOR_TIMES_MAX = 32


class KeepsTimes(Protocol):
    """An operator or a store that has stream times of its own."""

    def times(self) -> tuple[int, ...]:
        """Return the times, always as many; -1 for none yet."""
        ...

    def restore_times(self, times: tuple[int, ...]) -> None:
        """Go on with what `times` gave."""
        ...


class OperatorTimes:
    """The times of one task, in the order of `keepers`, which is the same in every life of a topology."""

    def __init__(self, keepers: Mapping[str, KeepsTimes]) -> None:
        self._keepers = keepers

    def collect(self) -> tuple[int, ...]:
        """Return all times, `OPERATOR_TIMES_MAX` at most."""
        times: list[int] = []
        for keeper in self._keepers.values():
            times += keeper.times()
        return tuple(times[:OPERATOR_TIMES_MAX])

    def collect_at(self, position_ms: int) -> tuple[int, ...]:
        """Return what `collect` would give for the whole task at a position, where this is one key range of it.

        What has no time of its own at a position, as a store, begins anew: -1 does nothing to it.

        Args:
            position_ms: The position clock's time at the lowest offset of all ranges.
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
        """Return the time that a task's position clock begins with: what the operators have, else `otherwise_ms`.

        All operators of a task that is cut into key ranges count the same records, so they have the same time; one whose
        time was beyond the maximum has none.
        """
        observed = [
            keeper.observed_time_ms
            for keeper in self._keepers.values()
            if isinstance(keeper, ObservesPositions)
        ]
        return max(observed, default=otherwise_ms)

    def restore(self, times: tuple[int, ...], task_id: str) -> None:
        """Give each keeper its own back; all or nothing, except for those that were beyond the maximum."""
        counts = {name: len(keeper.times()) for name, keeper in self._keepers.items()}
        total = sum(counts.values())
        if len(times) != min(total, OPERATOR_TIMES_MAX):
            _log.warning(
                "task %s has %d stream times of operators, but %d were committed; none is used, so records may count "
                "as on time that were late before",
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
                    "task %s has more than %d stream times of operators; those from %s on begin anew",
                    task_id,
                    OPERATOR_TIMES_MAX,
                    name,
                )
                return
            if end > begin:
                keeper.restore_times(times[begin:end])
            begin = end
