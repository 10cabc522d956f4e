"""Free memory returns to the system."""

import os
import threading
from pathlib import Path

from tidewheel.streams.worker.application.memory import FreedMemory, trim_heap


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_free_memory_between_used_blocks_is_returned() -> None:
    pieces = [bytes(2_000) for _ in range(100_000)]
    kept = pieces[::100]
    del pieces
    before_mib = resident_mib()
    assert trim_heap()
    assert before_mib - resident_mib() > 100
    assert len(kept) == 1_000


def test_memory_is_returned_periodically_until_close() -> None:
    times = threading.Semaphore(0)

    def note() -> bool:
        times.release()
        return True

    freed = FreedMemory(note, every_s=0.001)
    freed.start()
    for _ in range(3):
        assert times.acquire(timeout=10)
    freed.close()
    freed.thread.join(10)
    assert not freed.thread.is_alive()


def test_a_c_library_without_the_function_is_checked_once() -> None:
    asked: list[None] = []

    def can_not() -> bool:
        asked.append(None)
        return False

    freed = FreedMemory(can_not, every_s=0.001)
    freed.start()
    freed.thread.join(10)
    assert len(asked) == 1
