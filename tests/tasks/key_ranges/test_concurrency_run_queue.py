"""Run-queue time of a thread, read from Linux."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tidewheel.tasks.key_ranges.concurrency import waited_s

PATIENCE_S = 20.0

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="the system does not tell"
)


@contextmanager
def competing_with_a_busy_process() -> Generator[None]:
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(processors)})  # inherited by the process
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        busy.kill()
        busy.wait()
        os.sched_setaffinity(0, processors)


def seen(native_id: int) -> float:
    waited = waited_s(native_id)
    assert waited is not None
    return waited


def test_a_thread_that_competes_with_a_busy_process_waits_for_a_cpu() -> None:
    me = threading.get_native_id()
    before_s, until_s = seen(me), time.monotonic() + PATIENCE_S
    with competing_with_a_busy_process():
        while seen(me) < before_s + 0.1:
            assert time.monotonic() < until_s


def test_a_sleeping_thread_waits_for_no_cpu() -> None:
    over = threading.Event()
    sleeper = threading.Thread(target=over.wait)
    sleeper.start()
    assert sleeper.native_id is not None
    me = threading.get_native_id()
    with competing_with_a_busy_process():
        before_s, mine_s = seen(sleeper.native_id), seen(me)
        until_s = time.monotonic() + PATIENCE_S
        while seen(me) < mine_s + 0.1:
            assert time.monotonic() < until_s
        assert seen(sleeper.native_id) < before_s + 0.05
    over.set()
    sleeper.join()


def test_an_ended_thread_has_no_waiting_time() -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    assert thread.native_id is not None
    until_s = time.monotonic() + PATIENCE_S
    while waited_s(thread.native_id) is not None:  # the system ends it a little later
        assert time.monotonic() < until_s
