"""`tidewheel run` of a run's job: a supervisor and one worker."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.faults.fault_run import FaultRun
from tests.faults.verification.verdict import verify
from tests.integration.cluster import PATIENCE_S

_ROOT: Final = Path(__file__).resolve().parents[3]
#: Lines of the supervisor.
STARTED: Final = "worker started"
ENDED: Final = "worker 0 ended"


@contextmanager
def command(
    run: FaultRun, log: Path, bootstrap_servers: str, within: Sequence[str] = ()
) -> Iterator["subprocess.Popen[bytes]"]:
    program = log.with_name("counts.py")
    program.write_text(
        "from tests.integration.programs.jobs import count_by_key\n"
        f"topology = count_by_key({run.source!r}, {run.sink!r})\n"
    )
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *within, sys.executable, "-m", "tidewheel", "run", f"{program}:topology",
                "--application-id", run.application_id,
                "--bootstrap-servers", bootstrap_servers,
                "--state-dir", str(log.with_name("state")),
                "--set", "statestore_cache_max_bytes=0", "--log-level", "info",
            ],
            cwd=log.parent,
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            stdout=output,
            stderr=output,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def verify_command(run: FaultRun, log: Path, process: "subprocess.Popen[bytes]") -> None:
    """Stop the feed and the command, and verify the output."""
    run.feed.stop()
    run.cluster.wait_until_consumed(run.application_id, run.source)
    process.terminate()
    assert process.wait(PATIENCE_S) == 0, log.read_text()[-4000:]
    acknowledged = Counter(key for key, _ in run.feed.records)
    verdict = verify(run.cluster, run.application_id, run.source, run.sink, acknowledged)
    assert verdict.is_clean, verdict
