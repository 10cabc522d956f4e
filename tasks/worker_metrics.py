"""What a worker counts of its own work."""

from typing import NamedTuple


class CommitTimes(NamedTuple):
    """What the commits of one worker took. A value of its own, so that who reads it has all three of the same moment."""

    number: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0

    def and_one(self, took_s: float) -> "CommitTimes":
        """Return these with one more."""
        return CommitTimes(self.number + 1, self.total_s + took_s, max(self.longest_s, took_s))


class WorkerMetrics:
    """Counters of one worker. Written by the loop thread, read by anybody."""

    def __init__(self) -> None:
        self.consumed = 0
        self.processed = 0
        self.commit_times = CommitTimes()
        self.rolled_back = 0

    @property
    def commits(self) -> int:
        """How many commits there were."""
        return self.commit_times.number
