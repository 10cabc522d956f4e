"""A group of member processes under a steady feed, and what is asked of each operation: who moved, who noticed, is it exact."""

import logging
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil
from confluent_kafka import Producer

from benchmarks.generator import key_bytes
from benchmarks.handoff.feed import Feeder, Observer, preload
from tests.integration.cluster import PATIENCE_S, Cluster, until
from tests.integration.forked import ForkedProcess
from tests.integration.group_evidence import (
    ChangelogReader,
    FedWindows,
    Grant,
    grants,
    longest_row,
    worked_windows,
)
from tests.integration.programs.member import STORE, Orders
from tidewheel.rebalance.model import TopicPartition, position_key
from tidewheel.rebalance.protocol.messages import AnyMessage, decode_message
from tidewheel.rebalance.protocol.records import AnyRecord, decode_record

_log: Final = logging.getLogger(__name__)

_PROGRAM: Final = "tests.integration.programs.member"
#: A partition whose owner works writes at least this often.
_ALIVE_S: Final = 1.5
_SETTLED_S: Final = 1.0
#: Results that are still to come have stopped coming if there was none for so long.
_STUCK_S: Final = 60.0


class MemberProcess:
    """One life of a member: a worker and its watchdog."""

    def __init__(self, run: "GroupRun", name: str, instance: str, config: dict[str, Any]) -> None:
        self.name, self.instance = name, instance
        self.log_path = run.folder / f"{instance}.log"
        # Forked: a newcomer on this machine shall not take the processor from the others by importing everything.
        with self.log_path.open("wb") as log:
            self.process = ForkedProcess(_PROGRAM, log.fileno())
        orders = Orders(
            folder=str(run.folder),
            instance=instance,
            source=run.source,
            sink=run.sink,
            config=config,
        )
        self.process.stdin.write(msgspec.json.encode(orders) + b"\n")
        self.process.stdin.close()

    @property
    def log(self) -> str:
        """Return what it logged."""
        return self.log_path.read_text(errors="replace")

    def helpers(self) -> list[psutil.Process]:
        """Return the processes it started: its watchdog."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def check(self) -> None:
        """Fail if it has ended by itself."""
        assert self.process.poll() is None, f"{self.instance} ended:\n{self.log[-4000:]}"

    def terminate(self) -> None:
        """Ask it to drain and leave."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float = 60.0) -> int:
        """Wait for its end; its exit code."""
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """End the worker by SIGKILL."""
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def destroy(self) -> None:
        """End all that is left of it."""
        try:
            left = [*self.helpers(), psutil.Process(self.process.pid)]
        except psutil.NoSuchProcess:
            left = []
        for each in left:
            try:
                each.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.kill()
        self.process.wait(PATIENCE_S)


@dataclass(slots=True, kw_only=True)
class GroupRun:
    """The whole run. `operation(...)` brackets what is done to the group, and judges what became of everybody and everything.

    Attributes:
        standstill_max: Windows of 250 ms in a row in which a task that did not move may have processed nothing.
        expected: How often each key was written.
    """

    cluster: Cluster
    folder: Path
    application_id: str
    partitions: int
    keys: int
    rate: int
    standstill_max: int
    config: dict[str, Any]
    members: dict[str, MemberProcess] = field(default_factory=dict[str, MemberProcess])
    expected: Counter[bytes] = field(default_factory=Counter[bytes])
    observer: Observer = field(init=False)
    changelog: ChangelogReader | None = None
    _feeder: Feeder | None = None
    _written: int = 0
    _lives: int = 0

    @property
    def source(self) -> str:
        return f"{self.application_id}-in"

    @property
    def sink(self) -> str:
        return f"{self.application_id}-out"

    @property
    def changelog_topic(self) -> str:
        return f"{self.application_id}-{STORE}-changelog"

    def begin(self) -> None:
        """Make the topics, write every key once, and start looking at the output."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.cluster.create({self.source: self.partitions, self.sink: self.partitions})
        self.observer = Observer(self.cluster.bootstrap_servers, self.sink, self.partitions)
        self.observer.start()
        self.sweep()

    def sweep(self) -> None:
        """Write every key once."""
        preload(self.cluster.bootstrap_servers, self.source, self.keys)
        self.expected.update(map(key_bytes, range(self.keys)))
        self._written += self.keys

    def start(self, name: str, **config: Any) -> MemberProcess:
        """Start a member; one that was there before gets its old directory."""
        self._lives += 1
        given = {
            **self.config,
            "application_id": self.application_id,
            "bootstrap_servers": self.cluster.bootstrap_servers,
            "state_dir": str(self.folder / f"state-{name}"),
            **config,
        }
        member = MemberProcess(self, name, f"{name}.{self._lives}", given)
        self.members[name] = member
        return member

    def stop(self, *names: str) -> None:
        """Ask members to drain and leave, all at once; fail if one ends otherwise."""
        ended = [self.members.pop(name) for name in names]
        for each in ended:
            each.terminate()
        assert [each.wait() for each in ended] == [0] * len(ended)

    def check(self) -> None:
        """Fail if a member ended by itself or feed or observer failed."""
        for member in self.members.values():
            member.check()
        for thread in (self._feeder, self.observer):
            if thread is not None and thread.error is not None:
                raise thread.error

    def writers(self) -> list[str | None]:
        """Return the name of the member that writes each partition now; None where an earlier life of it, or nobody, does."""
        lives = {member.instance: name for name, member in self.members.items()}
        return [
            None if each is None else lives.get(each) for each in self.observer.writers(_ALIVE_S)
        ]

    def until_shared_by(self, shares: Iterable[int], names: Iterable[str], limit_s: float) -> None:
        """Wait until these members, and only these, write so many partitions each, for a while."""
        wanted = dict(zip(names, shares, strict=True))
        assert sum(wanted.values()) == self.partitions

        def reached() -> bool:
            self.check()
            writers = self.writers()
            return sorted(writers.count(name) for name in wanted) == sorted(wanted.values())

        self.until_lasting(reached, f"shares {wanted}", limit_s)

    def until_lasting(self, reached: Callable[[], bool], what: str, limit_s: float) -> None:
        """Wait until something has been true for a while."""
        since: list[float] = []

        def lasting() -> bool:
            if not reached():
                since.clear()
                return False
            since.append(time.monotonic())
            return since[-1] - since[0] >= _SETTLED_S

        until(lasting, f"{what}; now {self.writers()}", timeout_s=limit_s)

    # -- operations ------------------------------------------------------------------------------------------------

    @contextmanager
    def operation(self, name: str, *, unmoved: int, promoted: int) -> Iterator[None]:
        """Feed steadily while something is done to the group; then judge it.

        So many partitions stay with the life of the member that had them, and process something in every fed window from
        beginning to end. So many tasks are handed over by owners that could go on, each to a copy that had said READY and
        restored nothing after the grant but what was written after that. Output and state are exact.
        """
        with self.feeding() as feeder:
            until(lambda: None not in self.writers(), "every partition is written")
            known = len(self.grants())
            lives, from_s = self.observer.writers(_ALIVE_S), time.monotonic()
            fed = FedWindows(feeder)
            fed.start()
            try:
                yield
            finally:
                fed.stop()
            until_s = time.monotonic()
            after = self.observer.writers(_ALIVE_S)
        told = [self._stayed(lives, after, fed, from_s, until_s, unmoved)]
        told.append(self._promoted(known, promoted))
        told.append(self.check_exact(list(feeder.written)))
        _log.info("%s, %.1f s: %s", name, until_s - from_s, "; ".join(told))

    def _stayed(
        self,
        before: list[str | None],
        after: list[str | None],
        fed: FedWindows,
        from_s: float,
        until_s: float,
        wanted: int,
    ) -> str:
        """Judge the partitions that stayed with one life of a member; return what was counted."""
        stayed = [
            partition
            for partition, (then, now) in enumerate(zip(before, after, strict=True))
            if then == now and not self.observer.arrivals[partition].moves(from_s, until_s)
        ]
        assert len(stayed) == wanted, f"partitions {stayed} did not move: {before} -> {after}"
        judged = fed.between(from_s, until_s)
        # Otherwise the feed, not the group, was judged.
        assert len(judged) >= (until_s - from_s) * 2, f"fed in {len(judged)} windows only"
        missed = {
            partition: set(judged) - worked_windows(self.folder, partition) for partition in stayed
        }
        rows = {partition: longest_row(windows) for partition, windows in missed.items()}
        told = (
            f"{len(judged)} windows of {len(stayed)} unmoved, {sum(map(len, missed.values()))} without a record, "
            f"in a row at most {max(rows.values(), default=0)}"
        )
        assert max(rows.values(), default=0) <= self.standstill_max, f"{told}: {missed}"
        return told

    def _promoted(self, known: int, wanted: int) -> str:
        """Judge the planned grants since so many grants; return what was counted."""

        def planned() -> list[Grant]:
            return [each for each in self.grants()[known:] if each.is_planned]

        until(lambda: all(each.granted for each in planned()), "new owners say that they process")
        found = planned()
        assert len(found) == wanted, [each.record for each in found]
        restored: list[int] = []
        for each in found:
            task = each.record.task
            assert each.ready is not None, f"task {task} went to a copy that had not said READY"
            place = self.changelog_key(int(task.partition("_")[2]))
            assert each.restored_too_much(place) == 0, each
            assert each.granted is not None
            restored.append(each.granted.restored)
        return (
            f"{len(found)} promoted, restored after the grant: {restored}, all written after READY"
        )

    # -- exactness -------------------------------------------------------------------------------------------------

    @contextmanager
    def feeding(self) -> Iterator[Feeder]:
        """Feed at the rate, with keys drawn at random."""
        servers = self.cluster.bootstrap_servers
        feeder = self._feeder = Feeder(
            servers, self.source, keys=self.keys, records_per_s=self.rate, seed=self._written
        )
        feeder.start()
        try:
            yield feeder
        finally:
            feeder.stop()
            self._feeder = None
            self.expected.update(feeder.written)
            self._written += feeder.sent

    def check_exact(self, touched: list[bytes]) -> str:
        """Write these keys once more; then each key must have each count once, in order, and the changelog the last ones.

        Whoever owns a key's state now must go on from the right number.
        """
        producer = Producer(
            {
                "bootstrap.servers": self.cluster.bootstrap_servers,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "queue.buffering.max.messages": 2_000_000,
            }
        )
        for key in touched:
            producer.produce(self.source, b"z" * 80, key)
        assert producer.flush(60.0) == 0
        self.expected.update(touched)
        self._written += len(touched)
        self.until_counted()
        check = self.observer.counts
        assert (check.repeated, check.lost) == (0, 0)
        assert check.last == self.expected
        changelog = self.changelog = self.changelog or ChangelogReader(
            self.cluster.bootstrap_servers, self.changelog_topic, self.partitions
        )
        ends = self.cluster.log_ends(self.changelog_topic)
        changelog.read({each.partition: end for each, end in ends.items()})
        assert changelog.counts == self.expected
        return f"{self._written} records exact"

    def until_counted(self) -> None:
        """Wait until there are as many results as records, however long it takes if only they keep coming."""
        last, since_s = -1, time.monotonic()
        while (now := self.observer.results) < self._written:
            self.check()
            if now != last:
                last, since_s = now, time.monotonic()
            assert time.monotonic() - since_s < _STUCK_S, f"{now} of {self._written} results"
            time.sleep(0.1)

    # -- the group's own topics ------------------------------------------------------------------------------------

    def records(self) -> list[AnyRecord]:
        """Return what the group log holds."""
        data = self.cluster.read(f"{self.application_id}-group-state")
        return [record for each in data if (record := decode_record(each.value)) is not None]

    def messages(self) -> list[AnyMessage]:
        """Return what was said."""
        data = self.cluster.read(f"{self.application_id}-group-inbox")
        return [
            message
            for each in data
            if each.value is not None and (message := decode_message(each.value)) is not None
        ]

    def grants(self) -> list[Grant]:
        """Return every grant there ever was."""
        return grants(self.records(), self.messages())

    def changelog_key(self, partition: int) -> str:
        """Return how the changelog partition is called in messages."""
        return position_key(TopicPartition(self.changelog_topic, partition))

    def close(self) -> None:
        """End everything, whatever went wrong before."""
        for thread in (self._feeder, self.observer):
            with suppress(Exception):  # it was looked at by `check`, or the test has failed already
                if thread is not None:
                    thread.stop()
        for member in self.members.values():
            member.destroy()
        if self.changelog is not None:
            self.changelog.close()
