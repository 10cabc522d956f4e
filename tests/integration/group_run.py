"""A group of member processes under a steady feed, and what is asked of it: who moved, who noticed, is it all exact."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.handoff.feed import Feeder, Observer, preload
from rebalance.messages import AnyMessage, GrantedOk, Ready, decode_message
from rebalance.model import TopicPartition, position_key
from rebalance.records import AnyRecord, TaskRecord, decode_record
from tests.integration.cluster import Cluster, until
from tests.integration.programs.member import STORE, WINDOWS_PER_S

_ROOT: Final = Path(__file__).resolve().parents[2]
#: A partition whose owner works writes at least this often.
_ALIVE_S: Final = 1.5
_SETTLED_S: Final = 1.0


class MemberProcess:
    """One life of a member: a worker and its watchdog."""

    def __init__(self, run: "GroupRun", name: str, instance: str, config: dict[str, Any]) -> None:
        self.name, self.instance = name, instance
        self.log_path = run.folder / f"{instance}.log"
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.integration.programs.member",
                    f"folder={run.folder}",
                    f"instance={instance}",
                    f"source={run.source}",
                    f"sink={run.sink}",
                    f"config={json.dumps(config)}",
                ],
                cwd=_ROOT,
                env={**os.environ, "PYTHONPATH": str(_ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

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
        self.process.wait()

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
        self.process.wait()


@dataclass(slots=True, kw_only=True)
class GroupRun:
    """The whole run. `phase(...)` brackets one operation and judges what it did to the others."""

    cluster: Cluster
    folder: Path
    application_id: str
    partitions: int
    keys: int
    rate: int
    config: dict[str, Any]
    members: dict[str, MemberProcess] = field(default_factory=dict[str, MemberProcess])
    feeder: Feeder = field(init=False)
    observer: Observer = field(init=False)
    _lives: int = 0

    @property
    def source(self) -> str:
        return f"{self.application_id}-in"

    @property
    def sink(self) -> str:
        return f"{self.application_id}-out"

    def begin(self) -> None:
        """Make the topics, write every key once, and start looking at the output."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.cluster.create({self.source: self.partitions, self.sink: self.partitions})
        servers = self.cluster.bootstrap_servers
        preload(servers, self.source, self.keys)
        self.feeder = Feeder(servers, self.source, keys=self.keys, records_per_s=self.rate, seed=5)
        self.observer = Observer(servers, self.sink, self.partitions)
        self.observer.start()

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

    def check(self) -> None:
        """Fail if a member ended by itself or feed or observer failed."""
        for member in self.members.values():
            member.check()
        for thread in (self.feeder, self.observer):
            if thread.error is not None:
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

    def windows(self, partition: int) -> set[int]:
        """Return the windows of 250 ms in which any member processed a record of a partition."""
        found: set[int] = set()
        for path in self.folder.glob(f"*-0_{partition}.windows"):
            found.update(map(int, path.read_text().split()))
        return found

    def standstill(self, partition: int, from_s: float, until_s: float) -> int:
        """Return how many windows in a row, between two times, nobody processed a record of a partition in, at most."""
        worked = self.windows(partition)
        longest = row = 0
        for window in range(int(from_s * WINDOWS_PER_S) + 1, int(until_s * WINDOWS_PER_S)):
            row = 0 if window in worked else row + 1
            longest = max(longest, row)
        return longest

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

    def promotions(self) -> list[tuple[TaskRecord, GrantedOk, Ready | None]]:
        """Return each grant that was answered, with the last READY of the owner's copy before it."""
        messages = self.messages()
        grants = [
            each
            for each in self.records()
            if isinstance(each, TaskRecord) and each.event == "GRANT"
        ]
        found: list[tuple[TaskRecord, GrantedOk, Ready | None]] = []
        for grant in grants:
            place = (grant.task, grant.owner)
            answer = next(
                (
                    index
                    for index, each in enumerate(messages)
                    if isinstance(each, GrantedOk)
                    and (each.task, each.incarnation, each.task_epoch) == (*place, grant.task_epoch)
                ),
                None,
            )
            if answer is None:
                continue
            ready = [
                each
                for each in messages[:answer]
                if isinstance(each, Ready) and (each.task, each.incarnation) == place
            ]
            granted = messages[answer]
            assert isinstance(granted, GrantedOk)
            found.append((grant, granted, ready[-1] if ready else None))
        return found

    def changelog_key(self, partition: int) -> str:
        """Return how the changelog partition is called in messages."""
        return position_key(TopicPartition(f"{self.application_id}-{STORE}-changelog", partition))

    def close(self) -> None:
        """End everything, whatever went wrong before."""
        for thread in (self.feeder, self.observer):
            with suppress(Exception):  # it was looked at by `check`, or the test has failed already
                thread.stop()
        for member in self.members.values():
            member.destroy()
