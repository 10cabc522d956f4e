"""Control topics that are deleted: the group holds, and commits nothing until it is recovered."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.faults.conftest import MakeRun
from tests.faults.fault_run import RECORDS_PER_S, FaultRun
from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.cli.app import main
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.kafka.admin.group_log import inbox_topic, state_topic

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.nightly("TIDEWHEEL_FAULTS"),
]

#: Commits have stopped if none came for this long (the interval is 100 ms).
_QUIET_S: Final = 5.0
_PROGRAM: Final = """
from tests.integration.programs.jobs import JOBS

topology = JOBS[{job!r}]({source!r}, {sink!r}).build()
"""


def _until_commits_stop(run: FaultRun) -> dict[TopicPartition, int]:
    """Return the last committed offsets."""
    last = run.cluster.committed(run.application_id)
    since_s = time.monotonic()

    def is_quiet() -> bool:
        nonlocal last, since_s
        committed = run.cluster.committed(run.application_id)
        if committed != last:
            last, since_s = committed, time.monotonic()
        return time.monotonic() - since_s > _QUIET_S

    run.until(is_quiet, "the commits stop")
    return last


def _recover(run: FaultRun, folder: Path) -> None:
    file = folder / f"program_{run.application_id.replace('-', '_')}.py"
    file.write_text(_PROGRAM.format(job=run.job, source=run.source, sink=run.sink), "utf-8")
    target = (f"{file}:topology", "--application-id", run.application_id)
    servers = ("--bootstrap-servers", run.cluster.bootstrap_servers)
    command = ["group", "recover", *target, "--execute", *servers]
    # It is refused while members were heard a moment ago.
    run.until(lambda: main(command) == ExitCode.OK, "the group is recovered")


@pytest.mark.fault("36")
@pytest.mark.parametrize("lost", ["state", "inbox", "both", "created again"])
def test_a_group_without_its_control_topics_commits_nothing_until_it_is_recovered(
    make_run: MakeRun, tmp_path: Path, record_property: Callable[..., None], lost: str
) -> None:
    run = make_run()
    run.begin()
    owners, workers = run.owners(), dict(run.workers)
    run.lost_messages = run.trace().messages
    state, inbox = state_topic(run.application_id), inbox_topic(run.application_id)
    run.cluster.admin.delete_topics({"state": [state], "inbox": [inbox]}.get(lost, [state, inbox]))
    if lost == "created again":
        run.cluster.create({state: 1, inbox: 1})

    run.until(
        lambda: all("SAFE_HOLD" in worker.log for worker in workers.values()), "all workers hold"
    )
    committed, fed = _until_commits_stop(run), len(run.feed.records)
    run.until(lambda: len(run.feed.records) > fed + 10 * RECORDS_PER_S, "the feed goes on")
    assert run.cluster.committed(run.application_id) == committed
    ends = run.cluster.log_ends(run.source)
    assert all(end > committed[each] for each, end in ends.items()), "there is work to do"
    assert run.owners() == owners, "each task stays with its owner"
    assert "group recover" in workers["a"].log

    _recover(run, tmp_path)
    record_property("recovery_s", run.until_progress())
    run.until_shared()
    assert not any(worker.has_ended for worker in workers.values())
    run.verify()
