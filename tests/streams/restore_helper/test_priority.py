"""A helper steps back before it does anything else, also from the programs of other sessions."""

import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from streams.restore_helper.priority import NICENESS
from streams.restore_helper.process import HELPER_COMMAND

_PATIENCE_S = 20.0


def test_a_helper_has_a_lower_priority_and_so_has_its_session() -> None:
    """Linux shares processors between sessions first, so that niceness alone would not give the tasks way."""
    before = psutil.Process().nice()
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            helper = subprocess.Popen(HELPER_COMMAND, stdin=theirs.fileno(), start_new_session=True)
        try:
            seen = psutil.Process(helper.pid)
            deadline_s = time.monotonic() + _PATIENCE_S
            while seen.nice() != min(before + NICENESS, 19):
                assert time.monotonic() < deadline_s, f"niceness {seen.nice()}"
                time.sleep(0.01)
            group = Path(f"/proc/{helper.pid}/autogroup")
            while group.exists() and f" nice {NICENESS}\n" not in group.read_text():
                assert time.monotonic() < deadline_s, group.read_text()
                time.sleep(0.01)
        finally:
            helper.kill()
            helper.wait()


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="Linux with autogroups only")
def test_a_session_of_somebody_else_keeps_its_priority() -> None:
    """A helper that was started by hand, in the session of a shell."""
    code = "from streams.restore_helper.priority import step_back as s; s(); print(open('/proc/self/autogroup').read())"
    mine = Path("/proc/self/autogroup").read_text()
    said = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    assert said.split() == mine.split()
