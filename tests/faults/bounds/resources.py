"""Descriptors, threads and resident memory of a worker and its helpers, sampled in a thread."""

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

import psutil

MIB: Final = 1024 * 1024

#: Parts of command lines that tell helpers apart.
_HELPERS: Final = ("watchdog", "restore_helper", "assignor")


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    descriptors: int
    threads: int
    rss_mib: float


@dataclass(frozen=True, slots=True)
class Trend:
    """Medians of the second and the last quarter of the time."""

    descriptors: tuple[float, float]
    threads: tuple[float, float]
    rss_mib: tuple[float, float]

    def growth(self, *, rss_share: float, rss_mib: float) -> list[str]:
        """Return what grew by more than noise: 5 descriptors, 2 threads, and the given memory."""
        (before, after), (fewer, more), (small, large) = (
            self.descriptors,
            self.threads,
            self.rss_mib,
        )
        grown = {
            f"descriptors {before} -> {after}": after > before + 5,
            f"threads {fewer} -> {more}": more > fewer + 2,
            f"RSS {small:.1f} -> {large:.1f} MiB": large > small * (1 + rss_share) + rss_mib,
        }
        return [text for text, is_grown in grown.items() if is_grown]


def trend(samples: Sequence[Sample]) -> Trend:
    first_s, last_s = samples[0].at_s, samples[-1].at_s
    quarter_s = (last_s - first_s) / 4
    second = [s for s in samples if quarter_s <= s.at_s - first_s < 2 * quarter_s]
    last = [s for s in samples if s.at_s - first_s >= 3 * quarter_s]

    def medians(of: Callable[[Sample], float]) -> tuple[float, float]:
        return statistics.median(map(of, second)), statistics.median(map(of, last))

    return Trend(
        medians(lambda sample: sample.descriptors),
        medians(lambda sample: sample.threads),
        medians(lambda sample: sample.rss_mib),
    )


class ResourceWatch(threading.Thread):
    """Samples a process and its children until the block ends; children are named by their task.

    `peak_mib` is the largest RSS of the process itself.
    """

    def __init__(self, pid: int, every_s: float = 0.25) -> None:
        super().__init__(name=f"resources of {pid}", daemon=True)
        self._process = psutil.Process(pid)
        self._every_s = every_s
        self._done = threading.Event()
        self.samples: dict[str, list[Sample]] = {"worker": []}

    def run(self) -> None:
        while not self._done.wait(self._every_s):
            with suppress(psutil.NoSuchProcess):
                self._sample("worker", self._process)
                for child in self._process.children(recursive=True):
                    with suppress(psutil.NoSuchProcess):
                        self._sample(_role(child), child)

    def _sample(self, role: str, process: psutil.Process) -> None:
        with process.oneshot():
            sample = Sample(
                time.monotonic(),
                process.num_fds(),
                process.num_threads(),
                process.memory_info().rss / MIB,
            )
        self.samples.setdefault(role, []).append(sample)

    @property
    def peak_mib(self) -> float:
        return max(sample.rss_mib for sample in self.samples["worker"])

    @property
    def peak_descriptors(self) -> int:
        return max(sample.descriptors for sample in self.samples["worker"])

    @property
    def peak_threads(self) -> int:
        return max(sample.threads for sample in self.samples["worker"])

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join()


def _role(process: psutil.Process) -> str:
    command = " ".join(process.cmdline())
    return next((helper for helper in _HELPERS if helper in command), "other")
