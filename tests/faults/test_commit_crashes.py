"""Workers of a group die between two steps of a commit."""

from collections.abc import Callable

import pytest

from tests.faults.conftest import MakeRun
from tests.integration.cluster import until

pytestmark = [pytest.mark.timeout(600), pytest.mark.broker, pytest.mark.slow]

#: Commits of the doomed worker before the one in which it dies.
_NTH = 5


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("before_flush", marks=pytest.mark.fault("1")),
        pytest.param("before_offsets", marks=pytest.mark.fault("2")),
        pytest.param("before_commit", marks=pytest.mark.fault("3")),
        pytest.param("after_commit", marks=pytest.mark.fault("5")),
        pytest.param("before_apply", marks=pytest.mark.fault("5")),
    ],
)
def test_worker_dies_in_a_commit(
    make_run: MakeRun, point: str, record_property: Callable[..., None]
) -> None:
    run = make_run()
    run.begin()
    run.kill("c")
    run.start("c", failpoints=f"{point}:{_NTH}:kill9")
    doomed = run.workers["c"]
    until(lambda: doomed.has_ended, f"c dies {point}")
    run.kill("c")
    record_property("recovery_s", run.until_owned())
    run.until_progress()
    run.start("c")
    run.until_shared()
    run.verify()
