"""Random schedules of crashes and pauses under exactly_once, verified twenty at a time.

A failure names its block: `TIDEWHEEL_FAULTS=1 TIDEWHEEL_FAULTS_SEED=… pytest -k "[block]"` repeats it.
"""

import os
import secrets
import time
from collections.abc import Callable
from random import Random
from typing import Final

import pytest

from tests.faults.conftest import MakeRun
from tests.faults.soak.nemesis import Nemesis
from tests.faults.soak.schedule import draw_burst

pytestmark = [
    pytest.mark.timeout(1_800),
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.nightly("TIDEWHEEL_FAULTS"),
]

_SCHEDULES: Final = int(os.environ.get("TIDEWHEEL_FAULTS_SCHEDULES", "200"))
_SEED: Final = int(os.environ.get("TIDEWHEEL_FAULTS_SEED") or secrets.randbelow(1_000_000))
_BLOCK: Final = 20
_BLOCKS: Final = range(-(-_SCHEDULES // _BLOCK))


@pytest.mark.fault("14")
@pytest.mark.fault("46")
@pytest.mark.parametrize("block", _BLOCKS)
def test_random_schedules_lose_and_repeat_nothing(
    make_run: MakeRun, block: int, record_property: Callable[..., None]
) -> None:
    schedules = min(_BLOCK, _SCHEDULES - block * _BLOCK)
    record_property("seed", _SEED)
    record_property("times", schedules)
    chance = Random(f"{_SEED} {block}")
    # A worker that stands still for 2 s is replaced; pauses are up to 3 s long.
    run = make_run(supervised=True, rate=500, config={"worker_hang_timeout_ms": 2_000})
    run.begin()
    nemesis = Nemesis(run)
    slowest_s = 0.0
    for _ in range(schedules):
        begun_s = time.monotonic()
        nemesis.inflict(draw_burst(chance))
        run.until_owned()
        slowest_s = max(slowest_s, time.monotonic() - begun_s)
    record_property("faults", dict(nemesis.counts | {"kill at failpoint": run.crashes["kill"]}))
    record_property("recovery_s", slowest_s)
    run.resumes = True
    try:
        run.verify()
    except AssertionError as error:
        error.add_note(f"TIDEWHEEL_FAULTS_SEED={_SEED}, block {block}")
        raise
