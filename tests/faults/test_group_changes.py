"""Operations of a group under load."""

import time
from collections.abc import Callable
from typing import Final

import pytest

from tests.faults.conftest import MakeRun
from tests.faults.fault_run import WORKERS, FaultRun

pytestmark = [pytest.mark.timeout(600), pytest.mark.broker, pytest.mark.slow]

_ROUNDS: Final = 3


@pytest.mark.fault("42")
def test_rolling_restarts_move_no_other_task(
    make_run: MakeRun, record_property: Callable[..., None]
) -> None:
    run = make_run(is_static=True)
    run.begin()
    times = [_restart(run, name) for _ in range(_ROUNDS) for name in WORKERS]
    record_property("times", len(times))
    record_property("recovery_s", max(times))
    run.verify()


def _restart(run: FaultRun, name: str) -> float:
    """Restart a worker under load; return the seconds until it has its tasks again."""
    run.until_progress()
    owners, epochs = run.owners(), run.epochs()
    begun_s = time.monotonic()
    run.leave(name)
    run.start(name)
    run.until_shared()
    took_s = time.monotonic() - begun_s
    unaffected = {partition for partition, names in owners.items() if names != [name]}
    after = run.epochs()
    assert {each: after[each] for each in unaffected} == {each: epochs[each] for each in unaffected}
    assert run.owners() == owners
    return took_s
