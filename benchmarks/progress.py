"""Rate of a run, computed from the times of its commits (pure).

**One method for every system.** The input topic is full before a system starts. Kafka writes each
commit of the consumer group into `__consumer_offsets` with the broker's time. This holds for
commits by the consumer and inside a transaction. After the run `commit_log` reads these records, so
no measurement runs inside a system and all share one clock. A commit covers a record's output,
state and changelog: a system cannot look fast by postponing work.

The figure is the slope of the committed records between two commits:

    start   the first commit with at least `untimed_records`: the system is warm
    end     the last commit at least half a commit interval before the very last one

The very last commit does not count: after its input has ended, a system only waits for it. With a
commit each second that is up to a second of a ten-second run, and it costs fast systems more. If
this leaves less than half of the timed records and less than `MINIMUM_S` seconds, the last commit
is the end, and `window_end` is `final_commit`.

Partitions may commit together (one thread) or at different times. The total at a time interpolates
a later partition evenly over the commit interval before its commit.

Work that continues behind internal topics (a repartition) is done after all of them. Each topic
then counts alike (`staged_slope`): records done are the mean of each topic's done share. Reading
all input first gives no advantage.
"""

import statistics
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

MINIMUM_S = 2.0
PAUSE_MS = 500
#: Above any partition's number: separates the partitions of several topics.
_PARTITIONS_MAX = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    at_ms: int
    partition: int
    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class ProgressPoint:
    at_ms: int
    records: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """The rate between two commits.

    Attributes:
        start: The first commit of the warm system.
        end: The last commit that counts.
        commits: Number of different commit times after `start`, up to `end`.
        window_end: `last_commit_before_end`, or `final_commit` with too few commits.
        pauses: Gaps between commits of more than `PAUSE_MS` beyond the requested interval.
        longest_gap_ms: The longest time between two commits.
        interval_ms: Median time between two commits of a partition.
    """

    start: ProgressPoint
    end: ProgressPoint
    commits: int
    window_end: str
    pauses: int = 0
    longest_gap_ms: int = 0
    interval_ms: float = 0.0

    @property
    def seconds(self) -> float:
        return (self.end.at_ms - self.start.at_ms) / 1000

    @property
    def pauses_per_million(self) -> float:
        return self.pauses / (self.end.records - self.start.records) * 1e6

    @property
    def records_per_s(self) -> float:
        return (self.end.records - self.start.records) / self.seconds


@dataclass(slots=True)
class PartitionTrack:
    times_ms: list[int] = field(default_factory=list[int])
    offsets: list[int] = field(default_factory=list[int])

    def add(self, commit: CommitRecord) -> None:
        before = self.offsets[-1] if self.offsets else 0
        if commit.offset < before:
            raise ValueError(
                f"the committed offset of input partition {commit.partition} went back from"
                f" {before} to {commit.offset}: records were done twice, so this run has no figure"
            )
        if commit.offset > before:
            self.times_ms.append(commit.at_ms)
            self.offsets.append(commit.offset)

    def done_at(self, at_ms: int, commit_interval_ms: int) -> float:
        """Return the records done at a time, interpolated as in the module's docstring."""
        after = bisect_right(self.times_ms, at_ms)
        done = self.offsets[after - 1] if after else 0
        if after == len(self.times_ms):
            return done
        next_ms, next_offset = self.times_ms[after], self.offsets[after]
        begun_ms = next_ms - commit_interval_ms
        if after:
            begun_ms = max(begun_ms, self.times_ms[after - 1])
        if at_ms <= begun_ms:
            return done
        return done + (next_offset - done) * (at_ms - begun_ms) / (next_ms - begun_ms)


def progress_points(
    commits: Iterable[CommitRecord], *, commit_interval_ms: int
) -> list[ProgressPoint]:
    return _points(partition_tracks(commits), commit_interval_ms)


def partition_tracks(commits: Iterable[CommitRecord]) -> dict[int, PartitionTrack]:
    """Return the commits of each partition; raise `ValueError` if an offset decreased."""
    tracks: dict[int, PartitionTrack] = {}
    for commit in sorted(commits, key=lambda each: each.at_ms):  # stable: keeps the log's order
        tracks.setdefault(commit.partition, PartitionTrack()).add(commit)
    return tracks


def _points(tracks: Mapping[int, PartitionTrack], commit_interval_ms: int) -> list[ProgressPoint]:
    times = sorted({at_ms for track in tracks.values() for at_ms in track.times_ms})
    return [
        ProgressPoint(
            at_ms, sum(track.done_at(at_ms, commit_interval_ms) for track in tracks.values())
        )
        for at_ms in times
    ]


def staged_slope(
    stages: Sequence[Sequence[CommitRecord]],
    *,
    untimed_records: int,
    records: int,
    commit_interval_ms: int,
) -> Slope:
    """Return the rate of a run whose records pass several topics; the first is the input.

    Raises:
        ValueError: The commits do not allow a figure; the text names the remedy.
    """
    scaled: list[CommitRecord] = []
    for number, commits in enumerate(stages):
        last: dict[int, int] = {}
        for commit in commits:
            last[commit.partition] = max(commit.offset, last.get(commit.partition, 0))
        total = sum(last.values())
        if number == 0 and total != records:
            raise ValueError(f"the system committed {total} of {records} records")
        if not total:
            raise ValueError(f"the system committed nothing of its own topic number {number}")
        # Their offsets include transaction markers, so they exceed the number of records.
        scaled += [
            replace(
                commit,
                partition=number * _PARTITIONS_MAX + commit.partition,
                offset=commit.offset * records // total,
            )
            for commit in commits
        ]
    done = sum(
        {
            each.partition: each.offset for each in sorted(scaled, key=lambda each: each.at_ms)
        }.values()
    )
    count = len(stages)
    found = slope(
        scaled,
        untimed_records=untimed_records * count,
        records=done,
        commit_interval_ms=commit_interval_ms,
    )
    start, end = (
        ProgressPoint(point.at_ms, point.records / count) for point in (found.start, found.end)
    )
    return replace(found, start=start, end=end)


def slope(
    commits: Iterable[CommitRecord],
    *,
    untimed_records: int,
    records: int,
    commit_interval_ms: int,
) -> Slope:
    """Return the rate of a run between the module docstring's two commits.

    Raises:
        ValueError: The commits do not allow a figure; the text names the remedy.
    """
    tracks = partition_tracks(commits)
    points = _points(tracks, commit_interval_ms)
    if not points or points[-1].records != records:
        reached = points[-1].records if points else 0
        raise ValueError(f"the system committed {reached:.0f} of {records} records")
    warm = [point for point in points if point.records >= untimed_records]
    last_ms = points[-1].at_ms - commit_interval_ms / 2
    inside = [point for point in warm if point.at_ms <= last_ms]
    chosen, window_end = warm, "final_commit"
    if inside:
        covered = inside[-1].records - inside[0].records
        seconds = (inside[-1].at_ms - inside[0].at_ms) / 1000
        if seconds >= MINIMUM_S or (seconds and covered >= (records - untimed_records) / 2):
            chosen, window_end = inside, "last_commit_before_end"
    if len(chosen) < 2 or chosen[-1].at_ms == chosen[0].at_ms:
        raise ValueError(
            f"only {len(chosen)} commit after the first {untimed_records} records:"
            " a rate needs two; use more records or a shorter commit interval"
        )
    gaps_ms = [after.at_ms - before.at_ms for before, after in pairwise(chosen)]
    return Slope(
        start=chosen[0],
        end=chosen[-1],
        commits=len(chosen) - 1,
        window_end=window_end,
        pauses=sum(gap_ms > commit_interval_ms + PAUSE_MS for gap_ms in gaps_ms),
        longest_gap_ms=max(gaps_ms),
        interval_ms=_interval_ms(tracks.values(), chosen[0].at_ms, chosen[-1].at_ms),
    )


def _interval_ms(tracks: Iterable[PartitionTrack], start_ms: int, end_ms: int) -> float:
    """Return the median time between two commits of a partition; 0 without two commits."""
    gaps_ms = [
        after_ms - before_ms
        for track in tracks
        for before_ms, after_ms in pairwise(track.times_ms)
        if start_ms <= before_ms and after_ms <= end_ms
    ]
    return statistics.median(gaps_ms) if gaps_ms else 0.0
