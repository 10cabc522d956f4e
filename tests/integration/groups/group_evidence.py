"""Evidence of a group run: windows with work, grants with READY, and the changelog."""

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from benchmarks.handoff.feed import Feeder
from tests.integration.cluster import PATIENCE_S
from tests.integration.programs.member import WINDOWS_PER_S
from tidewheel.rebalance.protocol.messages import AnyMessage, GrantedOk, Ready
from tidewheel.rebalance.protocol.records import AnyRecord, TaskRecord

_LOOK_S: Final = 0.02


class FedWindows(threading.Thread):
    """Records the 250 ms windows in which the feed wrote in both halves; only these judge a task."""

    def __init__(self, feeder: Feeder) -> None:
        super().__init__(name="fed-windows", daemon=True)
        self._feeder = feeder
        self._halves: set[int] = set()
        self._ending = threading.Event()

    def run(self) -> None:
        sent = self._feeder.sent
        while not self._ending.wait(_LOOK_S):
            half = int(time.monotonic() * WINDOWS_PER_S * 2)
            now_sent = self._feeder.sent
            if now_sent > sent:
                self._halves.add(half)
            sent = now_sent

    def stop(self) -> None:
        self._ending.set()
        self.join()

    def between(self, from_s: float, until_s: float) -> list[int]:
        windows = range(int(from_s * WINDOWS_PER_S) + 1, int(until_s * WINDOWS_PER_S))
        return [window for window in windows if {2 * window, 2 * window + 1} <= self._halves]


def worked_windows(folder: Path, partition: int) -> set[int]:
    windows: set[int] = set()
    for path in folder.glob(f"*-0_{partition}.windows"):
        windows.update(map(int, path.read_text().split()))
    return windows


def longest_row(windows: Iterable[int]) -> int:
    """Return the longest run of consecutive windows.

    >>> longest_row([3, 5, 6, 9])
    2
    """
    longest = row = 0
    last: int | None = None
    for window in sorted(windows):
        row = row + 1 if last is not None and window == last + 1 else 1
        longest, last = max(longest, row), window
    return longest


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A grant with its answers.

    `is_planned`: the former owner revoked the task for this member. `ready`: the last READY of the
    owner's copy before it.
    """

    record: TaskRecord
    is_planned: bool
    granted: GrantedOk | None
    ready: Ready | None

    def restored_too_much(self, place: str) -> int:
        assert self.granted is not None
        assert self.ready is not None
        after = self.record.changelog_end[place] - self.ready.positions[place]
        return max(self.granted.restored - max(after, 0), 0)


def grants(records: Iterable[AnyRecord], messages: list[AnyMessage]) -> list[Grant]:
    """Return every grant once; snapshots repeat the newest ones."""
    by_place: dict[tuple[str, int], Grant] = {}
    #: Member that each task was revoked for since its last grant, if the owner acknowledged it.
    revoked_for: dict[str, str | None] = {}
    released_for: dict[str, str | None] = {}
    for record in records:
        if not isinstance(record, TaskRecord):
            continue
        place = (record.task, record.task_epoch)
        if record.event == "REVOKE":
            revoked_for[record.task] = record.next_member
        elif record.event == "RELEASED" and record.source == "ack":
            released_for[record.task] = revoked_for.get(record.task)
        if record.event != "GRANT" or place in by_place:
            continue
        wanted = released_for.pop(record.task, None)
        is_planned = wanted is not None and wanted == record.member
        granted, ready = _answer(record, messages)
        by_place[place] = Grant(record=record, is_planned=is_planned, granted=granted, ready=ready)
    return list(by_place.values())


def _answer(grant: TaskRecord, messages: list[AnyMessage]) -> tuple[GrantedOk | None, Ready | None]:
    ready: Ready | None = None
    for message in messages:
        if getattr(message, "task", None) != grant.task or message.incarnation != grant.owner:
            continue
        if isinstance(message, Ready):
            ready = message
        elif isinstance(message, GrantedOk) and message.task_epoch == grant.task_epoch:
            return message, ready
    return None, ready


class ChangelogReader:
    def __init__(self, bootstrap_servers: str, topic: str, partitions: int) -> None:
        self.counts: dict[bytes, int] = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "integration-tests-changelog",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        self._consumer.assign(
            [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions)]
        )
        self._ends = dict.fromkeys(range(partitions), 0)

    def read(self, ends: Mapping[int, int]) -> None:
        left = {each: end for each, end in ends.items() if end > self._ends[each]}
        deadline = time.monotonic() + PATIENCE_S
        while left:
            assert time.monotonic() < deadline, f"partitions {left} of the changelog have no end"
            for message in self._consumer.consume(10_000, timeout=0.05):
                error, partition = message.error(), message.partition() or 0
                if error is None:
                    key, value = message.key(), message.value()
                    assert isinstance(key, bytes)
                    assert isinstance(value, bytes)
                    self.counts[key] = int.from_bytes(value[-8:], "big")
                    deadline = time.monotonic() + PATIENCE_S
                elif error.code() != KafkaError._PARTITION_EOF:
                    raise AssertionError(f"the changelog cannot be read: {error}")
                elif (message.offset() or 0) >= left.get(partition, 0):
                    left.pop(partition, None)
        self._ends.update(ends)

    def close(self) -> None:
        self._consumer.close()
