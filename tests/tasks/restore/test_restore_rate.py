"""Window of the restore rate."""

from collections import deque
from typing import Any

from tidewheel.tasks.restore.store_restore import RestoreRate, progress_text


def test_the_rate_forgets_old_samples() -> None:
    rate = RestoreRate()
    total = 0
    for second in range(60):
        total += 1_000 if second < 30 else 10
        rate.record(total, float(second))
    assert 9.9 < rate.per_second < 10.1
    left_s = rate.seconds_for(100)
    assert left_s is not None
    assert 9 < left_s < 11


def test_samples_of_one_moment_are_merged() -> None:
    rate = RestoreRate()
    for step in range(10_000):
        rate.record(step, step / 1_000)
    assert 990 < rate.per_second < 1_010


def test_a_concurrent_reader_gets_a_consistent_rate() -> None:
    class Torn(deque[tuple[int, float]]):
        def __getitem__(self, index: Any) -> Any:
            self.clear()
            return super().__getitem__(index)

    rate = RestoreRate()
    rate._samples = Torn([(0, 1.0), (10, 2.0)])
    assert rate.per_second == 10.0


def test_a_restarted_restore_has_a_new_rate() -> None:
    rate = RestoreRate()
    rate.record(5_000, 1.0)
    rate.record(10, 2.0)
    assert (rate.per_second, rate.seconds_for(5), rate.seconds_for(0)) == (0.0, None, 0.0)
    rate.record(20, 3.0)
    assert rate.per_second == 10.0
    assert progress_text(20, 100, rate) == (
        "restoring: 20 records so far, 100 to go, 10 records/s, about 10 s left"
    )
