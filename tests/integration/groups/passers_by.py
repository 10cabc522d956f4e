"""Members that join a group and vanish soon after: alternately a process and a simulated one.

A process restores copies, sends READY and is killed. Half of them die with their watchdog, so no
farewell message follows. A simulated member has no worker, only a runtime in this process.
"""

import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from tests.integration.cluster import PATIENCE_S
from tests.integration.processes import WorkerProcess
from tests.streams.processes.watchdog.playing import hello
from tidewheel.rebalance.protocol.group import replay
from tidewheel.rebalance.protocol.messages import JoinGroup, SeenTask
from tidewheel.rebalance.protocol.orders import AnyOrder, Welcome
from tidewheel.rebalance.protocol.records import AnyRecord, MemberRecord
from tidewheel.rebalance.runtime.runtime import GroupRuntime
from tidewheel.streams.processes.watchdog.watchdog import make_runtime

#: A hundred in two minutes.
JOINS_PER_S: Final = 100 / 120
LIFE_MIN_S: Final = 1.0
LIFE_MAX_S: Final = 5.0
_HEARTBEAT_MS: Final = 500
_TURN_S: Final = 0.05


class _Line:
    def __init__(self) -> None:
        self.welcomed = False
        self._progress = 0

    def order(self, orders: Sequence[AnyOrder]) -> None:
        self.welcomed = self.welcomed or any(isinstance(each, Welcome) for each in orders)

    def lease(self, until_ms: int) -> None:
        pass

    def progress(self) -> int:
        self._progress += 1
        return self._progress

    def call_since_ms(self, silent_ms: int) -> int | None:
        return None


@dataclass(slots=True, kw_only=True)
class _Visit:
    begun_s: float
    end_s: float
    is_in: Callable[[], bool]
    vanish: Callable[[], None]


class PassersBy(threading.Thread):
    """Makes members join and vanish; `lives_s` has the seconds each one stayed."""

    def __init__(
        self,
        *,
        app: str,
        bootstrap_servers: str,
        records: Sequence[AnyRecord],
        start: Callable[[str], WorkerProcess],
        for_s: float,
    ) -> None:
        super().__init__(name="passers-by", daemon=True)
        self.started = 0
        self.lives_s: list[float] = []
        self.error: BaseException | None = None
        self._app = app
        self._join = _join_like(app, records)
        self._start_process = start
        self._count = round(for_s * JOINS_PER_S)
        self._chance = random.Random(11)
        words = hello("nobody", app=app, bootstrap_servers=bootstrap_servers)
        self._runtime: GroupRuntime = make_runtime(
            msgspec.structs.replace(words, heartbeat_interval_ms=_HEARTBEAT_MS, join=self._join)
        )

    def run(self) -> None:
        speaking = threading.Thread(target=self._runtime.run, daemon=True)
        speaking.start()
        try:
            self._come_and_go()
        except BaseException as error:  # noqa: BLE001 - raised again by `finish`
            self.error = error
        self._runtime.finish(2_000)
        speaking.join(10.0)

    def finish(self, timeout_s: float) -> None:
        self.join(timeout_s)
        assert not self.is_alive(), "passers-by are still there"
        if self.error is not None:
            raise self.error

    def _come_and_go(self) -> None:
        begin_s = time.monotonic()
        there: list[_Visit] = []
        while self.started < self._count or there:
            now_s = time.monotonic()
            if self.started < min(self._count, (now_s - begin_s) * JOINS_PER_S):
                there.append(self._come(now_s))
            for visit in [each for each in there if self._is_over(each, now_s)]:
                there.remove(visit)
                visit.vanish()
                self.lives_s.append(time.monotonic() - visit.begun_s)
            time.sleep(_TURN_S)

    def _is_over(self, visit: _Visit, now_s: float) -> bool:
        if now_s < visit.end_s:
            return False
        # A member that the group has not admitted yet stays until it is.
        assert now_s < visit.end_s + PATIENCE_S, "the group does not admit a new member"
        return visit.is_in()

    def _come(self, now_s: float) -> _Visit:
        self.started += 1
        name = f"passing-{self.started}"
        if self.started % 2:
            return self._play(name, now_s)
        worker = self._start_process(name)
        is_silent = self.started % 4 == 0

        def vanish() -> None:
            if is_silent:
                worker.kill_watchdog()
            worker.kill()

        end_s = now_s + LIFE_MAX_S
        return _Visit(begun_s=now_s, end_s=end_s, is_in=lambda: worker.is_running, vanish=vanish)

    def _play(self, name: str, now_s: float) -> _Visit:
        incarnation = secrets.token_hex(8)
        line = _Line()
        self._runtime.add(
            msgspec.structs.replace(
                self._join,
                member=name,
                incarnation=incarnation,
                transactional_ids=(f"{self._app}-{incarnation}-0",),
            ),
            line,
            heartbeat_interval_ms=_HEARTBEAT_MS,
            hang_timeout_ms=30_000,
            welcomed=False,
        )
        return _Visit(
            begun_s=now_s,
            end_s=now_s + self._chance.uniform(LIFE_MIN_S, LIFE_MAX_S),
            is_in=lambda: line.welcomed,
            vanish=lambda: self._runtime.died(incarnation, "it has vanished"),
        )


def _join_like(app: str, records: Sequence[AnyRecord]) -> JoinGroup:
    one = [record for record in records if isinstance(record, MemberRecord)][-1]
    folded = replay(records)
    return JoinGroup(
        app=app,
        member="passing",
        incarnation="passing",
        transactional_ids=("passing",),
        host="elsewhere",
        pid=os.getpid(),
        process_id="passers-by",
        topology_hash=one.topology_hash,
        assignor=one.assignor,
        tasks=tuple(
            SeenTask(task=str(task), stateful=shape.stateful, changelogs=shape.changelogs)
            for task, shape in folded.tasks.items()
        ),
        partitions=dict(folded.about.partitions),
    )
