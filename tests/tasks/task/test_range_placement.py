"""How busy ranges are decides where they are cut (K5)."""

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
    """The keys of the first quarter take time, the others none."""

    keyed = True

    def process(self, record: Record[str, str]) -> None:
        if zlib.crc32(record.key.encode()) < 1 << 30:
            time.sleep(0.002)
        self.context.forward(record)


@pytest.mark.slow
def test_K5_uneven_load_is_cut_unevenly_and_a_range_is_never_taken_for_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[tuple[list[int], list[int]]] = []

    def noted(tasks: Sequence[TaskLoad], *arguments: Any, **options: Any) -> Any:
        for each in tasks:
            if len(each.ranges) == THREADS:
                ranges = [item.first_hash for item in each.ranges]
                looks.append((ranges, [item.load for item in each.ranges]))
        return assign_ranges(tasks, *arguments, **options)

    monkeypatch.setattr("tidewheel.tasks.task.range_placement.assign_ranges", noted)
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
            """Keep the first quarter busy for some looks behind the first uneven cut."""
            feed()
            uneven = [index for index, (ranges, _) in enumerate(looks) if ranges[1] < 1 << 30]
            return bool(uneven) and len(looks) > uneven[0] + 3

        host.until(busy, "it is cut unevenly, and looked at some more times")
        uneven = [loads for ranges, loads in looks if ranges[1] < 1 << 30]
        assert all(loads[0] > 0 for loads in uneven), looks

        def told() -> bool:
            """Whether the status names a range of the first quarter as the busiest."""
            feed()
            busiest = host.status("0_0").busiest
            return bool(busiest) and busiest[0][0] < 1 << 30 and busiest[0][1] >= 50

        host.until(told, "who looks on is told")
