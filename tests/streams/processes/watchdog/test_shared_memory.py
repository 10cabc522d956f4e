"""Shared memory of worker and watchdog."""

import os

from tidewheel.streams.processes.watchdog.shared_memory import SharedMemory


def test_both_ends_read_values_of_the_other_end() -> None:
    worker = SharedMemory.create()
    watchdog = SharedMemory.adopt(os.dup(worker.fd))
    for _ in range(3):
        worker.bump()
    watchdog.lease_ns = 2**62
    assert (watchdog.progress, watchdog.lease_ns) == (3, 2**62)
    assert (worker.progress, worker.lease_ns) == (3, 2**62)
    watchdog.count_turn(7)
    watchdog.count_turn(7)
    assert worker.watchdog == (7, 2)
    worker.close()
    assert watchdog.progress == 3
    watchdog.close()


def test_shared_memory_has_no_name_and_may_be_closed_twice() -> None:
    memory = SharedMemory.create()
    assert os.fstat(memory.fd).st_nlink == 0
    memory.close()
    memory.close()
