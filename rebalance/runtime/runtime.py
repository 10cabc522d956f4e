"""Group runtime of one process: clock, thread and queue around the pure state machines.

Its thread never waits for the cluster: a reader thread and executors do, and send calls to a queue.

    workers ──reports──▶ ┌─────────┐ ──orders, leases──▶ workers
    topics ──read──────▶ │ runtime │ ──messages, records─▶ topics
    effects ──results──▶ └─────────┘ ──fences, questions─▶ effects
"""

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

import msgspec

from tidewheel.rebalance.leader.decision import CoordinatorSettings
from tidewheel.rebalance.member.member import Member
from tidewheel.rebalance.protocol.decoding import RejectedRecord
from tidewheel.rebalance.protocol.group import Group, apply, refusal_of
from tidewheel.rebalance.protocol.inbox_limit import InboxLimit
from tidewheel.rebalance.protocol.messages import AnyMessage, JoinGroup
from tidewheel.rebalance.protocol.orders import (
    LASTING,
    AnyReport,
    EndIncarnation,
    MayClose,
    WorkerClosed,
    WorkerLeaves,
)
from tidewheel.rebalance.runtime.election import Election
from tidewheel.rebalance.runtime.leadership import LeaderPorts, Leadership, Posted
from tidewheel.rebalance.runtime.log_follower import Followed, LogFollower, LogHeld, LogOpened
from tidewheel.rebalance.runtime.log_keys import LogKeys
from tidewheel.rebalance.runtime.ports import (
    GroupLog,
    LoggedRecord,
    LogRead,
    MonotonicClock,
    WorkerConnection,
)

_log: Final = logging.getLogger("tidewheel.group")

_T = TypeVar("_T")

_TURN_MAX_MS: Final = 250
_POLL_S: Final = 0.5
_TOPIC_CHECK_MS: Final = 5_000
_REPORTED_MAX: Final = 10
_RECOVER: Final = (
    "the group decides nothing and takes no input until `tidewheel group recover MODULE:TOPOLOGY --execute` has run; "
    "then members resume by themselves"
)


class RuntimeSettings(msgspec.Struct, frozen=True, kw_only=True):
    app: str
    process_id: str  # Unique per process start.
    heartbeat_interval_ms: int = 500
    #: Reading of the inbox starts 2 * this time ago: each live member has sent a message since.
    session_timeout_ms: int = 3_000
    jitter_seed: int = 0
    coordinator: CoordinatorSettings = msgspec.field(default_factory=CoordinatorSettings)


class _LocalMember:
    def __init__(
        self,
        join: JoinGroup,
        line: WorkerConnection,
        *,
        heartbeat_interval_ms: int,
        hang_timeout_ms: int,
        max_call_ms: int | None,
        welcomed: bool,
    ) -> None:
        self.join = join
        self.line = line
        self.heartbeat_interval_ms = heartbeat_interval_ms
        self.welcomed = welcomed
        self.member: Member | None = None
        self.may_leave = False
        self._lasting: dict[type[AnyReport], AnyReport] = {}
        self._death: str | None = None
        self._hang_timeout_ms = hang_timeout_ms
        self._max_call_ms = max_call_ms
        self._is_call_reported = False
        self.in_call = False
        self._progress = -1
        self._moved_ms = 0
        self._lease_ms: int | None = None

    @property
    def wants_to_leave(self) -> bool:
        return WorkerLeaves in self._lasting

    @property
    def is_gone(self) -> bool:
        return self._death is not None or WorkerClosed in self._lasting

    def report(self, report: AnyReport, now_ms: int) -> None:
        if isinstance(report, LASTING):
            self._lasting[type(report)] = report
        if self.member is not None:
            self.member.report(report, now_ms)

    def died(self, reason: str, now_ms: int) -> None:
        self._death = reason
        if self.member is not None:
            self.member.died(reason, now_ms)

    def create_member(self, group: Group, state_offset: int, now_ms: int) -> Member:
        self.member = member = Member(
            self.join,
            heartbeat_interval_ms=self.heartbeat_interval_ms,
            session_timeout_ms=self.join.session_timeout_ms,
            now_ms=now_ms,
        )
        member.follow(group, state_offset, now_ms)
        for kind in LASTING:
            if kind in self._lasting:
                member.report(self._lasting[kind], now_ms)
        if self._death is not None:
            member.died(self._death, now_ms)
        return member

    def is_alive(self, now_ms: int, *, alone: Callable[[], bool]) -> bool:
        """Return True if the worker's loop turned within `hang_timeout_ms`, or user code runs.

        A call of user code may take `max_call_ms`; longer if `alone()`: no other member could take
        the tasks.
        """
        progress = self.line.progress()
        if progress != self._progress:
            self._progress = progress
            self._moved_ms = now_ms
        if now_ms - self._moved_ms < self._hang_timeout_ms:
            self._is_call_reported = self.in_call = False
            return True
        since_ms = self.line.call_since_ms(self._hang_timeout_ms // 2)
        self.in_call = since_ms is not None
        if since_ms is None:
            return False
        if self._max_call_ms is None or now_ms - since_ms < self._max_call_ms or alone():
            return True
        if not self._is_call_reported:
            self._is_call_reported = True
            _log.error(
                "member %s is in a call of user code for %d s, longer than max_call_ms (%d ms): its tasks move to other members, "
                "which process the record again; its own log names the function and the record",
                self.join.member,
                (now_ms - since_ms) // 1000,
                self._max_call_ms,
            )
        return False

    def lease(self, until_ms: int | None) -> None:
        if until_ms is not None and until_ms != self._lease_ms:
            self._lease_ms = until_ms
            self.line.lease(until_ms)


class GroupRuntime:
    """Host of one application's members on a machine; leads their group when elected.

    `add`, `report`, `died`, `finish` and `stop` are thread-safe; `run` is the runtime's thread.
    If the log is empty, `was_used` runs on an executor before the first claim. True (offsets were
    committed as a group) shows a deleted log: the group is held, not led.
    """

    def __init__(
        self,
        make_log: Callable[[], GroupLog],
        *,
        ports: LeaderPorts,
        settings: RuntimeSettings,
        clock: MonotonicClock,
        was_used: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._ports = ports
        self._was_used = was_used
        self._calls: queue.SimpleQueue[Posted] = queue.SimpleQueue()
        self._follower = LogFollower(
            make_log,
            inbox_back_ms=2 * settings.session_timeout_ms,
            clock=clock,
            deliver=lambda event: self._calls.put(partial(self._follow, event)),
        )
        self._leadership = Leadership(
            app=settings.app,
            leader=settings.process_id,
            settings=settings.coordinator,
            ports=ports,
            post=self._calls.put,
        )
        self._limit = InboxLimit()
        self._hosted: dict[str, _LocalMember] = {}
        self._stopping = threading.Event()
        self._finish_ms: int | None = None
        self._log: GroupLog | None = None
        self._topic_ids: dict[str, str] = {}
        self._held = ""
        self._first_claim_allowed: bool | None = None
        self._is_call_open = False
        self._topic_check_ms = 0
        self._dropped = 0
        self._rejections = 0
        self._reset_log_state(0)

    def add(
        self,
        join: JoinGroup,
        line: WorkerConnection,
        *,
        heartbeat_interval_ms: int,
        hang_timeout_ms: int,
        max_call_ms: int | None = None,
        welcomed: bool = False,
    ) -> None:
        """Host a worker's member.

        The worker counts as dead after a pause of `hang_timeout_ms`, in a call of user code after
        `max_call_ms` (None: never). With `welcomed`, the log once had this incarnation: if absent
        now, the incarnation is over.
        """
        hosted = _LocalMember(
            # The election knows candidates by their members' process id.
            msgspec.structs.replace(join, process_id=self._settings.process_id),
            line,
            heartbeat_interval_ms=heartbeat_interval_ms,
            hang_timeout_ms=hang_timeout_ms,
            max_call_ms=max_call_ms,
            welcomed=welcomed,
        )
        self._calls.put(lambda _: self._hosted.update({join.incarnation: hosted}))

    def report(self, incarnation: str, report: AnyReport) -> None:
        def reported(now_ms: int) -> None:
            if incarnation in self._hosted:
                self._hosted[incarnation].report(report, now_ms)

        self._calls.put(reported)

    def died(self, incarnation: str, reason: str) -> None:
        def took(now_ms: int) -> None:
            if incarnation in self._hosted:
                self._hosted[incarnation].died(reason, now_ms)

        self._calls.put(took)

    def finish(self, timeout_ms: int) -> None:
        self._calls.put(lambda now_ms: setattr(self, "_finish_ms", now_ms + timeout_ms))

    def stop(self) -> None:
        self.finish(0)

    @property
    def is_leading(self) -> bool:
        return self._leadership.coordinator is not None

    @property
    def group(self) -> Group:
        return self._group

    def run(self) -> None:
        reader = threading.Thread(target=self._read, name="tidewheel-group-log", daemon=True)
        reader.start()
        wake_ms = 0
        while True:
            left_ms = max(wake_ms - self._clock.now_ms(), 0)
            with contextlib.suppress(queue.Empty):
                self._run_calls(self._calls.get(timeout=left_ms / 1000))
            wake_ms = self.turn()
            if self._is_finished():
                break
        self._close()
        reader.join()

    def run_once(self) -> int:
        """Read, process and decide once; return the next wake time."""
        self._follower.run_once(0)
        while not self._calls.empty():
            self._run_calls(self._calls.get())
        return self.turn()

    def _read(self) -> None:
        while not self._stopping.is_set():
            try:
                self._stopping.wait(self._follower.run_once(_POLL_S))
            except Exception:  # noqa: BLE001 - logged; without a reader the members would stop
                _log.exception("reading the group's topics failed; trying again")
                self._stopping.wait(1.0)
        self._follower.close()

    def _run_calls(self, call: Posted) -> None:
        now_ms = self._clock.now_ms()
        with contextlib.suppress(queue.Empty):
            while True:
                call(now_ms)
                call = self._calls.get_nowait()

    def turn(self) -> int:
        now_ms = self._clock.now_ms()
        if self._held:
            self._permit_leaves()
        log = self._log
        if log is None or not self._is_read:
            return now_ms + _TURN_MAX_MS
        messages: list[AnyMessage] = []
        wake_ms = now_ms + _TURN_MAX_MS
        for incarnation in list(self._hosted):
            wake_ms = min(wake_ms, self._turn_member(incarnation, messages, now_ms))
        election = self._election.decide(now_ms)
        messages += election.messages
        if election.claim:
            self._claim(log)
        leading, leader_wake_ms = self._leadership.turn(
            self._group, self._state_offset, self._keys, now_ms
        )
        messages += leading
        if messages:
            log.send(messages)
        self._check_topics(log, now_ms)
        return min(wake_ms, election.wake_ms, leader_wake_ms or wake_ms)

    def _turn_member(self, incarnation: str, messages: list[AnyMessage], now_ms: int) -> int:
        hosted = self._hosted[incarnation]
        member = self._member(incarnation, now_ms)
        if member is None:
            return now_ms + _TURN_MAX_MS
        alive = hosted.is_alive(now_ms, alone=lambda: self._group.live().keys() <= {incarnation})
        member.set_health(alive, now_ms, in_call=hosted.in_call)
        decision = member.decide(now_ms)
        messages += decision.messages
        hosted.lease(decision.lease_until_ms)  # first: a worker without a lease runs no task
        if decision.orders:
            hosted.line.order(decision.orders)
        if decision.over:
            del self._hosted[incarnation]
        return decision.wake_ms

    def _member(self, incarnation: str, now_ms: int) -> Member | None:
        hosted = self._hosted[incarnation]
        if hosted.member is not None:
            return hosted.member
        if hosted.welcomed and incarnation not in self._group.members:
            hosted.line.order(
                [EndIncarnation(reason="the group log does not have this incarnation any more")]
            )
            del self._hosted[incarnation]
            return None
        return hosted.create_member(self._group, self._state_offset, now_ms)

    @property
    def _state_topic(self) -> str:
        return next((name for name in self._topic_ids if name.endswith("-state")), "")

    @property
    def _is_read(self) -> bool:
        return self._log is not None and self._state_offset >= self._needed_offset

    def _reset_log_state(self, now_ms: int) -> None:
        self._group = Group()
        self._keys = LogKeys()
        self._state_offset = 0
        self._needed_offset = 0
        self._election = Election(
            self._settings.process_id,
            app=self._settings.app,
            jitter_seed=self._settings.jitter_seed,
            heartbeat_interval_ms=self._settings.heartbeat_interval_ms,
            now_ms=now_ms,
        )

    def _follow(self, event: Followed, now_ms: int) -> None:
        match event:
            case LogOpened():
                self._opened(event, now_ms)
            case LogHeld():
                self._hold(event.reason)
            case LogRead():
                self._process_read(event, now_ms)

    def _opened(self, opened: LogOpened, now_ms: int) -> None:
        if self._held:
            _log.warning("group %s was recovered: resuming", self._settings.app)
        for hosted in self._hosted.values():
            # `_member` creates it again: this one knows epochs of the old log. After a hold,
            # `welcomed` ends an incarnation that the recovered log lacks.
            hosted.welcomed = hosted.welcomed or self._held != ""
            hosted.member = None
        self._held = ""
        self._leadership.abandon("the log was reopened")
        self._reset_log_state(now_ms)
        self._log = opened.log
        self._topic_ids = dict(opened.topic_ids)
        self._needed_offset = opened.end
        self._topic_check_ms = now_ms + _TOPIC_CHECK_MS

    def _hold(self, reason: str) -> None:
        if self._held:
            return
        _log.error("group %s: SAFE_HOLD: %s; %s", self._settings.app, reason, _RECOVER)
        self._held = reason
        self._leadership.abandon(reason)
        self._log = None

    def _permit_leaves(self) -> None:
        """Let leaving workers close while the group is held: no leader can move their tasks."""
        for incarnation, hosted in list(self._hosted.items()):
            if hosted.is_gone:
                del self._hosted[incarnation]
            elif hosted.wants_to_leave and not hosted.may_leave:
                hosted.may_leave = True
                hosted.line.order([MayClose()])

    def _process_read(self, read: LogRead, now_ms: int) -> None:
        group = self._group
        for logged in read.records:
            group = self._fold(group, logged, now_ms)
        moved = group is not self._group or read.state_offset != self._state_offset
        self._log_hold(group)
        self._group = group
        self._state_offset = read.state_offset
        if moved:
            self._election.follow(group, now_ms)
            for hosted in self._hosted.values():
                if hosted.member is not None:
                    hosted.member.follow(group, self._state_offset, now_ms)
        for message in read.messages:
            self._deliver(message, now_ms)
        if read.rejected:
            self._reject(read.rejected, now_ms, in_log=False)
        if read.dropped > len(read.rejected):
            self._count_dropped(read.dropped - len(read.rejected))
        self._compare_ids()

    def _fold(self, group: Group, logged: LoggedRecord, now_ms: int) -> Group:
        self._keys.add(logged)
        rejected, record = logged.rejected, logged.record
        refusal = None if record is None else refusal_of(group, record)
        if refusal is not None:
            rejected = RejectedRecord(
                topic=self._state_topic, partition=0, offset=logged.offset, rejection=refusal
            )
        if rejected is not None:
            self._reject([rejected], now_ms, in_log=True)
        return group if record is None else apply(group, record)

    def _log_hold(self, group: Group) -> None:
        hold = group.about.held
        if hold == self._group.about.held:
            return
        if hold:
            _log.warning("group %s decides nothing: %s", self._settings.app, hold)
        else:
            _log.info("group %s decides again", self._settings.app)

    def _deliver(self, message: AnyMessage, now_ms: int) -> None:
        if message.app != self._settings.app:
            return
        if not self._limit.admits(message.incarnation, now_ms):
            self._count_dropped(1)
            return
        self._election.receive(message, now_ms)
        self._leadership.observe(message, now_ms)
        for hosted in self._hosted.values():
            if hosted.member is not None:
                hosted.member.receive(message, now_ms)

    def _reject(self, rejected: Sequence[RejectedRecord], now_ms: int, *, in_log: bool) -> None:
        """Log skipped records: the first ten, then at 100, 1000, ..."""
        self._leadership.rejected(rejected, now_ms, in_log=in_log)
        for record in rejected:
            self._rejections += 1
            count = self._rejections
            if count <= _REPORTED_MAX or str(count).strip("0") == "1":
                _log.warning(
                    "group %s: skipped %s (%d such records so far); find out who may write to that topic",
                    self._settings.app,
                    record,
                    count,
                )

    def _count_dropped(self, count: int) -> None:
        before, self._dropped = self._dropped, self._dropped + count
        if len(str(self._dropped)) > len(str(before)) or before == 0:
            _log.warning(
                "group %s: %d inbox messages were dropped: too many of one sender, or of a kind that only a newer version "
                "knows",
                self._settings.app,
                self._dropped,
            )

    def _claim(self, log: GroupLog) -> None:
        if self._group.leader_epoch > 0 or self._first_claim_allowed:
            self._leadership.claim(log, self._topic_ids)
        elif self._first_claim_allowed is None and not self._is_call_open:
            self._is_call_open = True
            self._call_cluster(self._was_used, self._judge_first_claim)

    def _judge_first_claim(self, used: bool) -> None:
        self._first_claim_allowed = not used
        if used and self._group.leader_epoch == 0:
            self._hold_log(
                "the group's log is empty, but the application has committed as a group before: the log was deleted"
            )
        elif self._log is not None:
            self._claim(self._log)

    def _check_topics(self, log: GroupLog, now_ms: int) -> None:
        if now_ms < self._topic_check_ms or self._is_call_open:
            return
        self._topic_check_ms = now_ms + _TOPIC_CHECK_MS
        self._is_call_open = True
        self._call_cluster(lambda: dict(log.topic_ids()), self._judge_topics)

    def _judge_topics(self, topic_ids: Mapping[str, str]) -> None:
        if self._log is not None and topic_ids != self._topic_ids:
            self._hold_log(_changed(self._topic_ids, topic_ids))

    def _compare_ids(self) -> None:
        """Hold the group if its log names other topic ids: topics were restored or renamed."""
        claimed = dict(self._group.topic_ids)
        if self._is_read and claimed and claimed != self._topic_ids:
            self._hold_log(_changed(claimed, self._topic_ids))

    def _hold_log(self, reason: str) -> None:
        self._hold(reason)  # now: reads already queued must not count
        self._follower.hold_soon(reason)

    def _call_cluster(self, work: Callable[[], _T], done: Callable[[_T], None]) -> None:
        def ended(_: int) -> None:
            self._is_call_open = False

        def run() -> None:
            try:
                answer = work()
            except Exception as error:  # noqa: BLE001 - logged; asked again
                if not self._stopping.is_set():
                    _log.warning(
                        "group %s: a call to the cluster failed: %s", self._settings.app, error
                    )
                self._calls.put(ended)
                return

            def answered(now_ms: int) -> None:
                ended(now_ms)
                done(answer)

            self._calls.put(answered)

        self._ports.executors.asks.submit(run)

    def _is_finished(self) -> bool:
        if self._finish_ms is None:
            return False
        return not self._hosted or self._clock.now_ms() >= self._finish_ms

    def _close(self) -> None:
        messages = self._leadership.resign(self._clock.now_ms())
        if messages and self._log is not None:
            self._log.send(messages)
        self._stopping.set()
        executors = self._ports.executors
        for executor in (executors.leader, executors.fences, executors.asks):
            executor.shutdown(wait=False)


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    names = sorted(name for name in before if now.get(name) != before[name])
    states = [f"{name} is {'another one' if name in now else 'gone'}" for name in names]
    return f"control topics were deleted or recreated: {', '.join(states) or 'others were found'}"
