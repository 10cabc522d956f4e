"""What a group's day leaves behind, read by its tests: windows in which tasks worked, grants and READY, the changelog."""

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
    """Notes in which windows of 250 ms a feed has written something in both halves: only those tell anything of a task."""

    def __init__(self, feeder: Feeder) -> None:
        super().__init__(name="fed-windows", daemon=True)
        self._feeder = feeder
        self._halves: set[int] = set()
        self._ending = threading.Event()

    def run(self) -> None:
        """Look until stopped."""
        sent = self._feeder.sent
        while not self._ending.wait(_LOOK_S):
            half = int(time.monotonic() * WINDOWS_PER_S * 2)
            now_sent = self._feeder.sent
            if now_sent > sent:
                self._halves.add(half)
            sent = now_sent

    def stop(self) -> None:
        """Look no more."""
        self._ending.set()
        self.join()

    def between(self, from_s: float, until_s: float) -> list[int]:
        """Return the fed windows that lie between two times."""
        windows = range(int(from_s * WINDOWS_PER_S) + 1, int(until_s * WINDOWS_PER_S))
        return [each for each in windows if {2 * each, 2 * each + 1} <= self._halves]


def worked_windows(folder: Path, partition: int) -> set[int]:
    """Return the windows in which any member processed a record of a partition."""
    found: set[int] = set()
    for path in folder.glob(f"*-0_{partition}.windows"):
        found.update(map(int, path.read_text().split()))
    return found


def longest_row(windows: Iterable[int]) -> int:
    """Return how many windows follow each other, at most.

    >>> longest_row([3, 5, 6, 9])
    2
    """
    longest = row = 0
    last: int | None = None
    for each in sorted(windows):
        row = row + 1 if last is not None and each == last + 1 else 1
        longest, last = max(longest, row), each
    return longest


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A grant, and what was said of it.

    Attributes:
        record: As it is in the log.
        is_planned: The owner before gave the task up for this member.
        granted: The owner's word that it processes, None if it did not come.
        ready: The last READY of the owner's copy before that.
    """

    record: TaskRecord
    is_planned: bool
    granted: GrantedOk | None
    ready: Ready | None

    def restored_too_much(self, place: str) -> int:
        """Return how many records were restored after the grant beyond those written after READY; `place`: the changelog."""
        assert self.granted is not None
        assert self.ready is not None
        after = self.record.changelog_end[place] - self.ready.positions[place]
        return max(self.granted.restored - max(after, 0), 0)


def grants(records: Iterable[AnyRecord], messages: list[AnyMessage]) -> list[Grant]:
    """Return every grant there ever was, once: a snapshot says the newest ones again."""
    found: dict[tuple[str, int], Grant] = {}
    #: Whom each task was revoked for since its last grant, if its owner acknowledged that.
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
        if record.event != "GRANT" or place in found:
            continue
        wanted = released_for.pop(record.task, None)
        is_planned = wanted is not None and wanted == record.member
        granted, ready = _answer(record, messages)
        found[place] = Grant(record=record, is_planned=is_planned, granted=granted, ready=ready)
    return list(found.values())


def _answer(grant: TaskRecord, messages: list[AnyMessage]) -> tuple[GrantedOk | None, Ready | None]:
    """Return the owner's answer to a grant, and the last READY of its copy before that."""
    ready: Ready | None = None
    for each in messages:
        if getattr(each, "task", None) != grant.task or each.incarnation != grant.owner:
            continue
        if isinstance(each, Ready):
            ready = each
        elif isinstance(each, GrantedOk) and each.task_epoch == grant.task_epoch:
            return each, ready
    return None, ready


class ChangelogReader:
    """Follows a changelog of counts: the last value of each key, as anybody would read it who restores."""

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
            [TopicPartition(topic, each, OFFSET_BEGINNING) for each in range(partitions)]
        )
        self._ends = dict.fromkeys(range(partitions), 0)

    def read(self, ends: Mapping[int, int]) -> None:
        """Read up to these ends."""
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
        """Read no more."""
        self._consumer.close()
