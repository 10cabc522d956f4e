"""Members that do not belong to their group."""

import pytest

from tests.faults.conftest import MakeRun
from tests.faults.fault_run import PATIENT
from tidewheel.rebalance.protocol.messages import JoinRefused
from tidewheel.streams.exit_codes import ExitCode

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.nightly("TIDEWHEEL_FAULTS"),
]


@pytest.mark.fault("40")
def test_worker_of_another_program_is_refused_with_the_reason(make_run: MakeRun) -> None:
    run = make_run(config=PATIENT)
    run.begin()
    owners = run.owners()
    for job, assignor, code in (
        ("hold_and_count_by_key", "sticky", "INCOMPATIBLE_TOPOLOGY"),
        (run.job, "round_robin", "INCOMPATIBLE_ASSIGNOR"),
    ):
        stranger = run.start("d", job=job, task_assignor=assignor)
        assert stranger.wait() == ExitCode.INCOMPATIBLE_MEMBER, stranger.log[-3_000:]
        refusals = [each for each in run.trace().messages if isinstance(each, JoinRefused)]
        assert refusals[-1].code == code
        assert refusals[-1].reason in stranger.log
        run.workers.pop("d").close()
    run.until_progress()
    assert run.owners() == owners
    run.verify()
