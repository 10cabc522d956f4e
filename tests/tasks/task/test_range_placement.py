"""Key ranges are divided by load (K5)."""

import time
import zlib
from collections.abc import Sequence
from typing import Any, Final

import pytest

from tests.tasks.key_ranges.programs import TEXT
from tests.tasks.loop.group_bench import GroupBench
from tidewheel import Processor, Record, StreamsBuilder
from tidewheel.tasks.key_ranges.range_assignment import TaskLoad, assign_ranges

THREADS: Final = 4


class _Uneven(Processor[str, str, str, str]):
    """Takes 2 ms for keys of the first quarter."""

    keyed = True

    def process(self, record: Record[str, str]) -> None:
        if zlib.crc32(record.key.encode()) < 1 << 30:
            time.sleep(0.002)
        self.context.forward(record)


@pytest.mark.slow
def test_K5_uneven_load_is_cut_unevenly_and_no_range_counts_as_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    placements: list[tuple[list[int], list[int]]] = []

    def recorded(tasks: Sequence[TaskLoad], *arguments: Any, **options: Any) -> Any:
        for task in tasks:
            if len(task.ranges) == THREADS:
                ranges = [key_range.first_hash for key_range in task.ranges]
                placements.append((ranges, [key_range.load for key_range in task.ranges]))
        return assign_ranges(tasks, *arguments, **options)

    monkeypatch.setattr("tidewheel.tasks.task.range_placement.assign_ranges", recorded)
    monkeypatch.setattr("tidewheel.tasks.task.range_placement._PLACE_INTERVAL_S", 0.3)
    builder = StreamsBuilder()
    builder.stream("in", **TEXT).process(_Uneven).to("out", **TEXT)
    with GroupBench(builder.build(), {"in": 1, "out": 1}) as group:
        host = group.host("one", threads=THREADS)
        host.run_task("0_0", 1)

        def feed() -> None:
            if group.end() - group.committed() < 20:
                for number in range(40):
                    group.send(f"k{number}")

        def busy() -> bool:
            """Return True some placements after the first uneven one."""
            feed()
            uneven = [index for index, (ranges, _) in enumerate(placements) if ranges[1] < 1 << 30]
            return bool(uneven) and len(placements) > uneven[0] + 3

        host.until(busy, "ranges are uneven, and placed some more times")
        uneven = [loads for ranges, loads in placements if ranges[1] < 1 << 30]
        assert all(loads[0] > 0 for loads in uneven), placements

        def is_reported() -> bool:
            """Return True if the busiest range is in the first quarter."""
            feed()
            busiest = host.status("0_0").busiest
            return bool(busiest) and busiest[0][0] < 1 << 30 and busiest[0][1] >= 50

        host.until(is_reported, "the status has the busiest range")
