"""A group of member processes under a steady feed, with checks around each operation."""

import logging
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import psutil
from confluent_kafka import Producer

from benchmarks.handoff.feed import Feeder, Observer, preload
from benchmarks.topics.generator import key_bytes
from tests.integration.cluster import PATIENCE_S, Cluster, until
from tests.integration.forked import ROOT, ForkedProcess
from tests.integration.groups.group_evidence import (
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
from tidewheel.rebalance.protocol.records import (
    AnyRecord,
    LeaderClaim,
    MemberRecord,
    decode_record,
)

_log: Final = logging.getLogger(__name__)

_PROGRAM: Final = "tests.integration.programs.member"
#: A partition with a working owner has new records at least this often.
_ALIVE_S: Final = 1.5
_SETTLED_S: Final = 1.0
#: Missing results will not come after this long without a new one.
_STUCK_S: Final = 60.0
#: Moves begin at once, and each result is one record.
EXACT_AND_QUICK: Final[dict[str, Any]] = {
    "processing_guarantee": "exactly_once",
    "statestore_cache_max_bytes": 0,
    "settling_ms": 0,
}


class MemberProcess:
    def __init__(
        self,
        run: "GroupRun",
        name: str,
        instance: str,
        config: dict[str, Any],
        root: Path = ROOT,
    ) -> None:
        self.name, self.instance = name, instance
        self.log_path = run.folder / f"{instance}.log"
        # Forked: imports of a new interpreter would take the processor from the other members.
        with self.log_path.open("wb") as log:
            self.process = ForkedProcess(_PROGRAM, log.fileno(), root)
        orders = Orders(
            folder=str(run.folder),
            instance=instance,
            source=run.source,
            sink=run.sink,
            config=config,
            records_windows=config.get("partition_shards", 1) == 1,
        )
        self.process.stdin.write(msgspec.json.encode(orders) + b"\n")
        self.process.stdin.close()

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def helpers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def kill_watchdog(self) -> None:
        for helper in self.helpers():
            helper.kill()

    def check(self) -> None:
        assert self.process.poll() is None, f"{self.instance} ended:\n{self.log[-4000:]}"

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float = 60.0) -> int:
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def destroy(self) -> None:
        try:
            left = [*self.helpers(), psutil.Process(self.process.pid)]
        except psutil.NoSuchProcess:
            left = []
        for number in left:
            try:
                number.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.kill()
        self.process.wait(PATIENCE_S)


_Run = TypeVar("_Run", bound="GroupRun")


@dataclass(slots=True, kw_only=True)
class GroupRun:
    """The whole run; `operation(...)` judges the group during one change.

    `standstill_max`: consecutive 250 ms windows without a record that an unmoved task may have.
    `expected`: number of records written per key.
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
        """Create the topics, write every key once, and start to read the output."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.cluster.create({self.source: self.partitions, self.sink: self.partitions})
        self.observer = Observer(self.cluster.bootstrap_servers, self.sink, self.partitions)
        self.observer.start()
        self.sweep()

    def sweep(self) -> None:
        preload(self.cluster.bootstrap_servers, self.source, self.keys)
        self.expected.update(map(key_bytes, range(self.keys)))
        self._written += self.keys

    def start(self, name: str, *, root: Path = ROOT, **config: Any) -> MemberProcess:
        """Start a member, of another version's tree if `root` is given."""
        self._lives += 1
        given = {
            **self.config,
            "application_id": self.application_id,
            "bootstrap_servers": self.cluster.bootstrap_servers,
            "state_dir": str(self.folder / f"state-{name}"),
            **config,
        }
        member = MemberProcess(self, name, f"{name}.{self._lives}", given, root)
        self.members[name] = member
        return member

    def stop(self, *names: str) -> None:
        ended = [self.members.pop(name) for name in names]
        for member in ended:
            member.terminate()
        assert [member.wait() for member in ended] == [0] * len(ended)

    def check(self) -> None:
        for member in self.members.values():
            member.check()
        for thread in (self._feeder, self.observer):
            if thread is not None and thread.error is not None:
                raise thread.error

    def writers(self) -> list[str | None]:
        """Return the writing member of each partition; None for an earlier life or no member."""
        lives = {member.instance: name for name, member in self.members.items()}
        return [
            None if writer is None else lives.get(writer)
            for writer in self.observer.writers(_ALIVE_S)
        ]

    def until_shared_by(self, shares: Iterable[int], names: Iterable[str], limit_s: float) -> None:
        wanted = dict(zip(names, shares, strict=True))
        assert sum(wanted.values()) == self.partitions

        def reached() -> bool:
            self.check()
            writers = self.writers()
            return sorted(writers.count(name) for name in wanted) == sorted(wanted.values())

        self.until_lasting(reached, f"shares {wanted}", limit_s)

    def until_lasting(self, reached: Callable[[], bool], what: str, limit_s: float) -> None:
        since: list[float] = []

        def lasting() -> bool:
            if not reached():
                since.clear()
                return False
            since.append(time.monotonic())
            return since[-1] - since[0] >= _SETTLED_S

        until(lasting, f"{what}; now {self.writers()}", timeout_s=limit_s)

    @contextmanager
    def operation(self, name: str, *, unmoved: int, promoted: int) -> Iterator[None]:
        """Feed steadily during a change of the group; then judge it.

        `unmoved` partitions stay with the same life of their member, and process a record in every
        fed window. `promoted` tasks move to copies that were READY, and these restore only records
        written after READY. Output and state are exact.
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
        summaries = [self._stayed(lives, after, fed, from_s, until_s, unmoved)]
        summaries.append(self._promoted(known, promoted))
        summaries.append(self.check_exact(list(feeder.written)))
        _log.info("%s, %.1f s: %s", name, until_s - from_s, "; ".join(summaries))

    def _stayed(
        self,
        before: list[str | None],
        after: list[str | None],
        fed: FedWindows,
        from_s: float,
        until_s: float,
        wanted: int,
    ) -> str:
        stayed = [
            partition
            for partition, (then, now) in enumerate(zip(before, after, strict=True))
            if then == now and not self.observer.arrivals[partition].moves(from_s, until_s)
        ]
        assert len(stayed) == wanted, f"partitions {stayed} did not move: {before} -> {after}"
        judged = fed.between(from_s, until_s)
        # With fewer windows the feed would be judged instead of the group.
        assert len(judged) >= (until_s - from_s) * 2, f"fed in {len(judged)} windows only"
        missed = {
            partition: set(judged) - worked_windows(self.folder, partition) for partition in stayed
        }
        rows = {partition: longest_row(windows) for partition, windows in missed.items()}
        summary = (
            f"{len(judged)} windows of {len(stayed)} unmoved, {sum(map(len, missed.values()))} without a record, "
            f"in a row at most {max(rows.values(), default=0)}"
        )
        assert max(rows.values(), default=0) <= self.standstill_max, f"{summary}: {missed}"
        return summary

    def _promoted(self, known: int, wanted: int) -> str:
        def planned() -> list[Grant]:
            return [grant for grant in self.grants()[known:] if grant.is_planned]

        until(lambda: all(grant.granted for grant in planned()), "new owners say that they process")
        grants = planned()
        assert len(grants) == wanted, [each.record for each in grants]
        restored: list[int] = []
        for each in grants:
            task = each.record.task
            assert each.ready is not None, f"task {task} went to a copy that had not said READY"
            place = self.changelog_key(int(task.partition("_")[2]))
            assert each.restored_too_much(place) == 0, each
            assert each.granted is not None
            restored.append(each.granted.restored)
        return (
            f"{len(grants)} promoted, restored after the grant: {restored}, all written after READY"
        )

    @contextmanager
    def feeding(self) -> Iterator[Feeder]:
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
        """Wait until each record has a result, as long as results keep coming."""
        last, since_s = -1, time.monotonic()
        while (now := self.observer.results) < self._written:
            self.check()
            if now != last:
                last, since_s = now, time.monotonic()
            assert time.monotonic() - since_s < _STUCK_S, f"{now} of {self._written} results"
            time.sleep(0.1)

    def records(self) -> list[AnyRecord]:
        data = self.cluster.read(f"{self.application_id}-group-state")
        return [record for each in data if (record := decode_record(each.value)) is not None]

    def messages(self) -> list[AnyMessage]:
        data = self.cluster.read(f"{self.application_id}-group-inbox")
        return [
            message
            for each in data
            if each.value is not None and (message := decode_message(each.value)) is not None
        ]

    def claim(self) -> LeaderClaim:
        """Return the newest claim of the leadership."""
        return [record for record in self.records() if isinstance(record, LeaderClaim)][-1]

    def leader(self) -> MemberProcess:
        """Return the leading member: a claim names its watchdog, and its log its incarnation."""
        leader = _program_of(self.claim().leader)
        hosted = {
            record.incarnation
            for record in self.records()
            if isinstance(record, MemberRecord) and _program_of(record.process_id) == leader
        }
        return next(
            member
            for member in self.members.values()
            if any(incarnation in member.log for incarnation in hosted)
        )

    def grants(self) -> list[Grant]:
        return grants(self.records(), self.messages())

    def changelog_key(self, partition: int) -> str:
        return position_key(TopicPartition(self.changelog_topic, partition))

    def close(self) -> None:
        for thread in (self._feeder, self.observer):
            with suppress(Exception):  # `check` has read the error, or the test has already failed
                if thread is not None:
                    thread.stop()
        for member in self.members.values():
            member.destroy()
        if self.changelog is not None:
            self.changelog.close()


@contextmanager
def begun(run: _Run) -> Iterator[_Run]:
    """Begin a run, and end its processes with the block."""
    run.begin()
    try:
        yield run
    finally:
        run.close()


def _program_of(process_id: str) -> str:
    """Return the host program of a watchdog, whose id has an extra part at the end."""
    return process_id.rpartition("-")[0]
