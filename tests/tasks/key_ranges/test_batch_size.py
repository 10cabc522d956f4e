"""Batch size (K4): units fit the record's duration; batch functions get larger ones."""

import time
from collections.abc import Callable

import pytest

from tests.tasks.key_ranges.programs import TEXT
from tests.tasks.loop.group_bench import GroupBench
from tidewheel import StreamsBuilder
from tidewheel.tasks.key_ranges.batch_size import BatchUnitSize, UnitSize

THREADS = 4


def _run(
    unit_size: UnitSize, cost_s: Callable[[int], float], units: int = 60, most: int = 100_000
) -> list[int]:
    sizes: list[int] = []
    for _ in range(units):
        done = min(unit_size.records, most)
        sizes.append(done)
        unit_size.adapt(done, cost_s(done))
    return sizes


def test_K1_slow_records_run_singly_and_fast_ones_in_batches_again() -> None:
    unit_size = UnitSize()
    assert _run(unit_size, lambda n: n * 1e-5)[-1] > 100
    assert _run(unit_size, lambda n: n * 0.01)[-1] == 1
    assert unit_size.slow
    assert _run(unit_size, lambda n: n * 1e-5)[-1] > 100
    assert not unit_size.slow


@pytest.mark.parametrize("call_s", [0.002, 0.01, 0.1, 2.0])
def test_K4_batches_grow_for_calls_of_constant_cost(call_s: float) -> None:
    unit_size = BatchUnitSize()
    assert min(_run(unit_size, lambda n: call_s + n * 1e-6)[-20:]) >= 1_000


@pytest.mark.parametrize("call_s", [0.01, 0.1])
def test_K4_batches_grow_again_after_small_ones(call_s: float) -> None:
    unit_size = BatchUnitSize()
    _run(unit_size, lambda _: call_s, most=1)
    assert min(_run(unit_size, lambda _: call_s)[-20:]) >= 1_000


def test_K4_batches_stay_short_for_slow_records() -> None:
    assert max(_run(BatchUnitSize(), lambda n: n * 0.01)[-20:]) <= 4
    both = _run(BatchUnitSize(), lambda n: 0.05 + n * 0.01)[-20:]
    assert 2 <= min(both) <= max(both) <= 16


def test_K4_a_batch_mapper_gets_batches_at_a_factor_above_one() -> None:
    sizes: list[int] = []

    def model(values: list[str]) -> list[str]:
        sizes.append(len(values))
        time.sleep(0.01)  # fixed cost of a call
        return values

    builder = StreamsBuilder()
    builder.stream("in", **TEXT).map_values_batch(model).to("out", **TEXT)
    with GroupBench(builder.build(), {"in": 1, "out": 1}) as group:
        for number in range(3_000):
            group.send(f"k{number % 500}")
        host = group.host("one", threads=THREADS)
        host.run_task("0_0", 1)
        host.until(lambda: group.committed() == group.end(), "all is done")
    assert sum(sizes) == 3_000
    assert len(sizes) < 300, sizes
