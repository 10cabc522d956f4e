"""Priority of a helper: low from its start, but enough for progress."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tidewheel.streams.processes.restore_helper.helper_process import HELPER_COMMAND
from tidewheel.streams.processes.restore_helper.priority import (
    LOWEST,
    NICENESS,
    SessionNiceness,
    processor_seconds,
)

_PATIENCE_S = 20.0
_AUTOGROUPS = pytest.mark.skipif(
    not Path("/proc/self/autogroup").exists(), reason="Linux with autogroups only"
)


def test_a_helper_and_its_session_have_a_lower_priority() -> None:
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
            while group.exists() and f" nice {LOWEST}\n" not in group.read_text():
                assert time.monotonic() < deadline_s, group.read_text()
                time.sleep(0.01)
        finally:
            helper.kill()
            helper.wait()


@_AUTOGROUPS
def test_the_session_of_another_process_keeps_its_priority() -> None:
    code = "from tidewheel.streams.processes.restore_helper.priority import lower_priority as s; s(); print(open('/proc/self/autogroup').read())"
    mine = Path("/proc/self/autogroup").read_text()
    said = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    assert said.split() == mine.split()


def niceness_after(looks: list[tuple[float, float]]) -> list[int]:
    """Return the niceness after each check with these running and waiting times."""
    session = SessionNiceness()
    return [
        session.after(used_s=used_s, waited_s=waited_s, elapsed_s=1.0) for used_s, waited_s in looks
    ]


def test_a_helper_with_a_quarter_of_its_demand_keeps_the_lowest_priority() -> None:
    looks = [(1.9, 0.0), (0.5, 1.5), (0.1, 0.05), (0.001, 0.2), (0.0, 0.0)]
    assert niceness_after(looks) == [LOWEST] * 5


def test_a_starved_helper_raises_its_priority_for_a_while_and_measures_again() -> None:
    starved, raised, fed = (0.02, 0.98), (0.3, 0.7), (0.9, 0.0)
    assert niceness_after([fed, starved, *[raised] * 4, raised, fed]) == [
        LOWEST,
        *[NICENESS] * 5,
        LOWEST,
        LOWEST,
    ]
    assert niceness_after([starved] * 20) == [NICENESS] * 20


@_AUTOGROUPS
def test_used_and_waited_cpu_time_of_threads_are_measured() -> None:
    used_s, waited_s = processor_seconds()
    before_s = time.thread_time()
    while time.thread_time() < before_s + 0.1:
        pass
    now_used_s, now_waited_s = processor_seconds()
    assert now_used_s >= used_s + 0.09
    assert now_waited_s >= waited_s


@_AUTOGROUPS
def test_a_helper_on_a_busy_cpu_makes_progress() -> None:
    cpu = min(os.sched_getaffinity(0))
    busy = f"import os; os.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
    code = (
        f"import os; os.sched_setaffinity(0, {{{cpu}}})\n"
        "from tidewheel.streams.processes.restore_helper.priority import lower_priority; lower_priority()\n"
        "while True: pass"
    )
    programs = [
        subprocess.Popen([sys.executable, "-c", each], start_new_session=True)
        for each in (busy, code)
    ]
    try:
        group = Path(f"/proc/{programs[1].pid}/autogroup")
        seen: list[str] = []
        deadline_s = time.monotonic() + 60.0
        while seen[-2:] != [f"{LOWEST}", f"{NICENESS}"]:
            assert time.monotonic() < deadline_s, seen
            niceness = group.read_text().split()[-1]
            if seen[-1:] != [niceness]:
                seen.append(niceness)
            time.sleep(0.005)
    finally:
        for each in programs:
            each.kill()
            each.wait()
