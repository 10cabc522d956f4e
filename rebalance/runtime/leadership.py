"""Leadership terms of one process: claim, takeover, decisions and their effects.

    IDLE ──claim──▶ CLAIMING ──fenced the leader before──▶ CATCHING_UP ──read all it wrote──▶ TAKING_OVER
      ▲                                                                                           │
      └───────────────── lost (fenced, unknown outcome), resigned ◀── LEADING ◀──claim is in the log──┘

Cluster calls run on executors; results return through `post` to the runtime's thread. Results of
earlier terms are dropped. While a transaction is open, the coordinator decides nothing, but still
records messages.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from tidewheel.rebalance.assignors.task_assignor import Assignment, AssignmentRequest
from tidewheel.rebalance.leader.coordinator import Coordinator
from tidewheel.rebalance.leader.decision import CoordinatorSettings, Decision, Fence
from tidewheel.rebalance.leader.repair import repair_group
from tidewheel.rebalance.protocol.decoding import RejectedRecord
from tidewheel.rebalance.protocol.group import Group, replay, snapshot
from tidewheel.rebalance.protocol.messages import (
    AnyMessage,
    Beat,
    DrainMember,
    LeaderBeat,
    Leave,
    MemberDied,
    ShutDown,
)
from tidewheel.rebalance.protocol.records import AnyRecord, LeaderClaim
from tidewheel.rebalance.runtime.log_keys import LogKeys
from tidewheel.rebalance.runtime.ports import EndsReader, Fencer, GroupLog

_log: Final = logging.getLogger("tidewheel.group")

_T = TypeVar("_T")

#: Obsolete log keys deleted per transaction, and its interval. Few: decisions wait meanwhile.
_STALE_KEYS_MAX: Final = 200
_STALE_KEYS_EACH_MS: Final = 10_000

#: Wait before a check for foreign committed offsets, at which tasks would start: after a claim, a
#: clean check, a finding.
OFFSETS_CHECK_FIRST_MS: Final = 60_000
OFFSETS_CHECK_EACH_MS: Final = 3_600_000
OFFSETS_CHECK_AGAIN_MS: Final = 60_000
_NAMED: Final = 8
_OFFSETS: Final = "offsets"
_INBOX: Final = "inbox"
_LOG: Final = "log"
#: Duration of alarms about dropped messages and about a repaired log.
_DROPPED_MS: Final = 3_600_000

#: Interval of comparing the group read from the log with the one that this leader decided.
AUDIT_EACH_MS: Final = 5_000

#: A leader that reads none of its beats decides nothing: its members may be alive. It resigns after
#: the longer time.
_BLIND_HEARTBEATS: Final = 2.5
_BLIND_HEARTBEATS_MAX: Final = 40

#: Messages that may be sent only once, to a leader that then ended. Each process keeps those of the
#: last 10 s, in case it leads next.
_REPLAYED: Final = (MemberDied, Leave, DrainMember, ShutDown)
_REPLAYED_MS: Final = 10_000
_REPLAYED_MAX: Final = 1_000
_SENDERS_MAX: Final = 10_000

Posted = Callable[[int], None]
#: Built-in or user assignor; raises an exception if it can't answer.
Assign = Callable[[AssignmentRequest], Assignment]


class TermState(StrEnum):
    IDLE = "IDLE"
    CLAIMING = "CLAIMING"
    CATCHING_UP = "CATCHING_UP"
    TAKING_OVER = "TAKING_OVER"
    LEADING = "LEADING"


class Executors(msgspec.Struct, frozen=True, kw_only=True):
    leader: Executor  # One thread: transactions keep their order.
    fences: Executor  # Its number of threads limits concurrent fences.
    asks: Executor


class LeaderPorts(msgspec.Struct, frozen=True, kw_only=True):
    fencer: Fencer
    ends: EndsReader
    assign: Assign
    executors: Executors


class Leadership:
    """Terms of one process as leader; only `post` is thread-safe."""

    def __init__(
        self,
        *,
        app: str,
        leader: str,
        settings: CoordinatorSettings,
        ports: LeaderPorts,
        post: Callable[[Posted], None],
    ) -> None:
        self._app = app
        self._leader = leader
        self._settings = settings
        self._ports = ports
        self._post = post
        self.state = TermState.IDLE
        self._term = 0
        self._log: GroupLog | None = None
        self._claim_end = 0
        self._topic_ids: dict[str, str] = {}
        self._coordinator: Coordinator | None = None
        #: Time when its own last beat arrived.
        self._heard_ms = 0
        self._busy = False
        self._fencing: set[str] = set()
        self._stale_keys_ms = 0
        self._offsets_check_ms = 0
        self._audit_ms = 0
        self._led_ms = 0
        #: The leader's group, if the log differed from it at the last audit. The reader may lag: the
        #: leader writes the group again after a second such audit.
        self._differing: Group | None = None
        #: A rejected record may have replaced a valid one: the group is written again.
        self._is_damaged = False
        self._dropped_ms = 0
        self._out: list[AnyMessage] = []
        self._announcements: deque[tuple[int, AnyMessage]] = deque(maxlen=_REPLAYED_MAX)
        #: While another process leads: last beat per incarnation, and time of the last message.
        self._beats: dict[str, tuple[int, Beat]] = {}
        self._listened_ms = 0

    @property
    def coordinator(self) -> Coordinator | None:
        return self._coordinator

    def claim(self, log: GroupLog, topic_ids: dict[str, str]) -> None:
        if self.state is not TermState.IDLE:
            return
        self._log = log
        self._topic_ids = topic_ids
        self.state = TermState.CLAIMING
        _log.info("%s: claiming the leadership of group %s", self._leader, self._app)
        self._run(self._ports.executors.leader, log.claim, self._claimed)

    def observe(self, message: AnyMessage, now_ms: int) -> None:
        if self._coordinator is not None:
            if isinstance(message, LeaderBeat) and message.incarnation == self._leader:
                if self._is_blind(now_ms):
                    _log.warning(
                        "%s: its own beats return after %d ms: each member gets a full session",
                        self._leader,
                        now_ms - self._heard_ms,
                    )
                    self._coordinator.pardon_silence(now_ms)
                self._heard_ms = now_ms
            self._coordinator.observe(message, now_ms)
            return
        self._record_activity(now_ms)
        if isinstance(message, Beat):
            self._beats.pop(message.incarnation, None)
            self._beats[message.incarnation] = (now_ms, message)
            while len(self._beats) > _SENDERS_MAX:
                del self._beats[next(iter(self._beats))]
        elif isinstance(message, _REPLAYED):
            self._announcements.append((now_ms, message))

    def rejected(self, records: Sequence[RejectedRecord], now_ms: int, *, in_log: bool) -> None:
        if in_log:
            self._is_damaged = True
        elif self._coordinator is not None:
            self._dropped_ms = now_ms
            self._coordinator.warnings[_INBOX] = (
                f"a message was dropped, {records[-1]}; find out who may write to that topic"
            )

    def turn(
        self, group: Group, state_offset: int, keys: LogKeys, now_ms: int
    ) -> tuple[list[AnyMessage], int | None]:
        """Advance the term; return inbox messages and the next wake time."""
        wake_ms: int | None = None
        coordinator = self._coordinator
        if coordinator is not None:
            coordinator.state_offset = state_offset
            if now_ms - self._dropped_ms > _DROPPED_MS:
                coordinator.warnings.pop(_INBOX, None)
            if now_ms - self._led_ms > _DROPPED_MS:
                coordinator.warnings.pop(_LOG, None)
        match self.state:
            case TermState.CATCHING_UP if state_offset >= self._claim_end:
                self._claim_repaired(group)
            case TermState.LEADING if group.leader_epoch > self._epoch:
                self._lose(f"{group.leader} has claimed epoch {group.leader_epoch}")
            case TermState.LEADING if self._is_blind(now_ms, _BLIND_HEARTBEATS_MAX):
                self._lose("its own beats do not return: the cluster or this process was paused")
            case TermState.LEADING if coordinator and (self._busy or self._is_blind(now_ms)):
                self._out += coordinator.due_beats(now_ms)
                wake_ms = coordinator.next_beat_ms
            case TermState.LEADING:
                wake_ms = self._decide(group, keys, now_ms)
            case _:
                pass
        out, self._out = self._out, []
        return out, wake_ms

    def resign(self, now_ms: int) -> list[AnyMessage]:
        """End the term; return the last beat. An open transaction may still commit."""
        messages: list[AnyMessage] = []
        if self._coordinator is not None:
            _log.info("%s: resigning as leader of group %s", self._leader, self._app)
            messages.append(self._coordinator.resign(now_ms))
        self._end()
        return messages

    def abandon(self, reason: str) -> None:
        if self.state is not TermState.IDLE:
            self._lose(reason)

    def _claimed(self, end: int, now_ms: int) -> None:
        del now_ms
        self._claim_end = end
        self.state = TermState.CATCHING_UP

    def _claim_repaired(self, group: Group) -> None:
        assert self._log is not None, "claimed before"
        group, contradictions = msgspec.structs.astuple(
            repair_group(group, app=self._app, heard=[*self._beats])
        )
        epoch = group.leader_epoch + 1
        claim = LeaderClaim(
            leader_epoch=epoch,
            leader=self._leader,
            previous_epoch=group.leader_epoch,
            topic_ids=self._topic_ids,
        )
        records: list[AnyRecord] = [claim, *snapshot(group, epoch)]
        group_led = replay(records, group)
        self.state = TermState.TAKING_OVER
        log = self._log
        self._run(
            self._ports.executors.leader,
            lambda: log.append(records),
            lambda _, now_ms: self._start_leading(group_led, contradictions, now_ms),
        )

    def _start_leading(self, group: Group, contradictions: Sequence[str], now_ms: int) -> None:
        self.state = TermState.LEADING
        self._led_ms = now_ms
        self._heard_ms = now_ms
        self._stale_keys_ms = now_ms + _STALE_KEYS_EACH_MS
        self._offsets_check_ms = now_ms + OFFSETS_CHECK_FIRST_MS
        self._audit_ms = now_ms + AUDIT_EACH_MS
        self._is_damaged, self._differing = False, None
        self._coordinator = Coordinator(
            group, app=self._app, leader=self._leader, settings=self._settings, now_ms=now_ms
        )
        _log.info(
            "%s: leading group %s, leader epoch %d, %d members, %d tasks",
            self._leader,
            self._app,
            group.leader_epoch,
            len(group.members),
            len(group.tasks),
        )
        if contradictions:
            text = "; ".join(contradictions[:_NAMED])
            text += (
                f" and {len(contradictions) - _NAMED} more" if len(contradictions) > _NAMED else ""
            )
            warning = f"the group log contradicted itself, and was repaired: {text}; find out who may write to that topic"
            _log.warning("group %s: %s", self._app, warning)
            self._coordinator.warnings[_LOG] = warning
        self._replay_observations(self._coordinator, now_ms)

    def _is_blind(self, now_ms: int, heartbeats: float = _BLIND_HEARTBEATS) -> bool:
        return now_ms - self._heard_ms > heartbeats * self._settings.heartbeat_interval_ms

    def _record_activity(self, now_ms: int) -> None:
        """Record that a message came; after a gap, drop the stored beats.

        Later ones may be missing: their senders must not count as silent.
        """
        if now_ms - self._listened_ms > _BLIND_HEARTBEATS * self._settings.heartbeat_interval_ms:
            self._beats.clear()
        self._listened_ms = now_ms

    def _replay_observations(self, coordinator: Coordinator, now_ms: int) -> None:
        """Pass messages from before the term to a new coordinator.

        Beats keep their receive time: a member that died with the old leader gets no extra session.
        """
        self._record_activity(now_ms)
        heard: list[tuple[int, AnyMessage]] = [*self._beats.values()]
        heard += [
            observed for observed in self._announcements if now_ms - observed[0] <= _REPLAYED_MS
        ]
        for heard_ms, message in sorted(heard, key=lambda observed: observed[0]):
            coordinator.observe(message, heard_ms)
        self._beats.clear()
        self._announcements.clear()

    @property
    def _epoch(self) -> int:
        return 0 if self._coordinator is None else self._coordinator.group.leader_epoch

    def _decide(self, group: Group, keys: LogKeys, now_ms: int) -> int:
        assert self._coordinator is not None, "asked while leading only"
        decision = self._coordinator.decide(now_ms)
        if decision.records:
            self._append(decision)
        else:
            self._execute(decision, now_ms)
            if self._must_restate(group, now_ms):
                self._restate()
            elif now_ms >= self._stale_keys_ms:
                self._delete_stale_keys(keys, now_ms)
            if now_ms >= self._offsets_check_ms:
                self._check_offsets(self._coordinator, now_ms)
        return min(decision.wake_ms, self._stale_keys_ms, self._offsets_check_ms, self._audit_ms)

    def _must_restate(self, group: Group, now_ms: int) -> bool:
        coordinator = self._coordinator
        if coordinator is None or now_ms < self._audit_ms:
            return False
        self._audit_ms = now_ms + AUDIT_EACH_MS
        decided = coordinator.group
        differs = group != decided
        did_differ, self._differing = self._differing is decided, decided if differs else None
        return self._is_damaged or (differs and did_differ)

    def _restate(self) -> None:
        log, coordinator = self._log, self._coordinator
        assert log is not None and coordinator is not None, "asked while leading only"  # noqa: PT018 - one statement of one state
        _log.warning(
            "group %s: the group log holds records that this leader did not write; writing the whole group again",
            self._app,
        )
        self._is_damaged, self._differing = False, None
        records = snapshot(coordinator.group, coordinator.group.leader_epoch)
        self._busy = True

        def restated(_: None, __: int) -> None:
            self._busy = False

        self._run(self._ports.executors.leader, lambda: log.append(records), restated)

    def _append(self, decision: Decision) -> None:
        log = self._log
        assert log is not None, "claimed before"
        self._busy = True

        def committed(_: None, now_ms: int) -> None:
            assert self._coordinator is not None, "results of an earlier term are dropped"
            self._busy = False
            self._coordinator.committed(decision.records, now_ms)
            self._execute(decision, now_ms)

        self._run(self._ports.executors.leader, lambda: log.append(decision.records), committed)

    def _execute(self, decision: Decision, now_ms: int) -> None:
        self._out += decision.messages
        for fence in decision.fences:
            self._fence(fence)
        if decision.read_ends:
            self._read_ends(decision.read_ends, now_ms)
        if decision.assign is not None:
            self._assign(decision.assign)

    def _fence(self, fence: Fence) -> None:
        incarnation = fence.incarnation
        if incarnation in self._fencing:
            return
        self._fencing.add(incarnation)

        def fenced(_: None, now_ms: int) -> None:
            self._fencing.discard(incarnation)
            if self._coordinator is not None:
                self._coordinator.fenced(incarnation, now_ms)

        def failed(error: Exception, _: int) -> None:
            self._fencing.discard(incarnation)
            _log.warning("fencing %s failed; trying again: %s", incarnation, error)

        self._run(
            self._ports.executors.fences,
            lambda: self._ports.fencer.fence(fence.transactional_ids),
            fenced,
            failed,
        )

    def _read_ends(self, wanted: tuple[str, ...], requested_ms: int) -> None:
        def read(ends: dict[str, int], now_ms: int) -> None:
            if self._coordinator is not None:
                self._coordinator.ends_read(ends, requested_ms, now_ms)

        def failed(error: Exception, _: int) -> None:
            _log.warning("reading end offsets failed; trying again: %s", error)

        self._run(
            self._ports.executors.asks, lambda: dict(self._ports.ends.ends(wanted)), read, failed
        )

    def _assign(self, request: AssignmentRequest) -> None:
        def answered(answer: Assignment, now_ms: int) -> None:
            if self._coordinator is not None:
                self._coordinator.assigned(request, answer, "", now_ms)

        def failed(error: Exception, now_ms: int) -> None:
            _log.error("assignor %s: %s; the last target stays", request.assignor, error)
            if self._coordinator is not None:
                self._coordinator.assigned(request, None, str(error), now_ms)

        self._run(self._ports.executors.asks, lambda: self._ports.assign(request), answered, failed)

    def _delete_stale_keys(self, keys: LogKeys, now_ms: int) -> None:
        log, coordinator = self._log, self._coordinator
        assert log is not None and coordinator is not None, "asked while leading only"  # noqa: PT018 - one statement of one state
        stale = keys.stale(coordinator.group, limit=_STALE_KEYS_MAX)
        self._stale_keys_ms = now_ms + (_STALE_KEYS_EACH_MS if len(stale) < _STALE_KEYS_MAX else 0)
        if not stale:
            return
        self._busy = True

        def forgotten(_: None, __: int) -> None:
            self._busy = False

        self._run(self._ports.executors.leader, lambda: log.forget(stale), forgotten)

    def _check_offsets(self, coordinator: Coordinator, now_ms: int) -> None:
        """Report foreign offsets: brokers accept them in a group without consumers."""
        self._offsets_check_ms = now_ms + OFFSETS_CHECK_EACH_MS
        partitions = dict(coordinator.group.about.partitions)

        def checked(foreign: tuple[str, ...], now_ms: int) -> None:
            partitions_text = ", ".join(foreign[:_NAMED])
            partitions_text += f" and {len(foreign) - _NAMED} more" if len(foreign) > _NAMED else ""
            warning = f"the committed offsets of {partitions_text} were not written by this application: its next owners would start there"
            before = coordinator.warnings.pop(_OFFSETS, "")
            if foreign:
                coordinator.warnings[_OFFSETS] = warning
                self._offsets_check_ms = now_ms + OFFSETS_CHECK_AGAIN_MS
                if warning != before:
                    _log.warning("group %s: %s", self._app, warning)

        def failed(error: Exception, now_ms: int) -> None:
            self._offsets_check_ms = now_ms + OFFSETS_CHECK_AGAIN_MS
            _log.warning("reading the committed offsets failed; trying again: %s", error)

        self._run(
            self._ports.executors.asks,
            lambda: self._ports.ends.foreign_offsets(partitions),
            checked,
            failed,
        )

    def _lose(self, reason: str) -> None:
        _log.warning(
            "%s: no longer leader of group %s (%s): %s", self._leader, self._app, self.state, reason
        )
        self._end()

    def _end(self) -> None:
        self._term += 1
        log, self._log = self._log, None
        self._coordinator = None
        self._busy = False
        self._fencing.clear()
        self._out.clear()
        self.state = TermState.IDLE
        if log is not None:
            # Runs after the leader thread's pending transactions.
            self._ports.executors.leader.submit(log.resign)

    def _run(
        self,
        executor: Executor,
        work: Callable[[], _T],
        done: Callable[[_T, int], None],
        failed: Callable[[Exception, int], None] | None = None,
    ) -> None:
        """Run `work` on an executor, then `done` or `failed` in the runtime's thread.

        Neither runs after the term's end. Without `failed`, a failure ends the term.
        """
        term = self._term

        def run() -> None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - handed over: `failed` judges it
                outcome = error
                self._post(lambda now_ms: self._failed(term, failed, outcome, now_ms))
            else:
                self._post(lambda now_ms: done(result, now_ms) if term == self._term else None)

        executor.submit(run)

    def _failed(
        self,
        term: int,
        failed: Callable[[Exception, int], None] | None,
        error: Exception,
        now_ms: int,
    ) -> None:
        if term != self._term:
            return
        if failed is None:
            self._lose(str(error))
        else:
            failed(error, now_ms)
