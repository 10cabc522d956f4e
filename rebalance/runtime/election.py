"""Leader election: when a candidate suspects the leader, and when it claims.

A claim is safe at any time: it fences the earlier leader's transactional id (H1). A live leader
answers a suspicion, so one lost beat deposes no leader (H2). All times are of the local clock.

After 2 heartbeats without the leader's beat, plus its rank delay, a candidate sends SUSPECT; one
heartbeat after it reads that SUSPECT, it claims. While the inbox is away, the leader is not judged.
Without a leader, or after it resigned, only the rank delay remains. Repeated claims wait longer:
slow ones must end before others fence them.
"""

from typing import Final
from zlib import crc32

import msgspec

from tidewheel.rebalance.protocol.group import Group, is_of_leader
from tidewheel.rebalance.protocol.messages import AnyMessage, LeaderBeat, Suspect

QUIET_HEARTBEATS: Final = 2

CLAIM_HEARTBEATS: Final = 4

DOUBLINGS_MAX: Final = 3

SETTLED_HEARTBEATS: Final = 10

RANK_DELAY_HEARTBEATS_MAX: Final = 1.0


class ElectionDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Messages to send; with `claim`, claim the leadership now."""

    messages: tuple[AnyMessage, ...] = ()
    claim: bool = False
    wake_ms: int = 0


class Election:
    """Candidacy of a process; its own beats keep it idle while it leads."""

    def __init__(
        self,
        process_id: str,
        *,
        app: str,
        jitter_seed: int,
        heartbeat_interval_ms: int,
        now_ms: int,
    ) -> None:
        """Create a candidate; `jitter_seed` differs per process and spreads claims."""
        self._process_id = process_id
        self._app = app
        self._seed = jitter_seed
        self._heartbeat_ms = heartbeat_interval_ms
        self._group = Group()
        self._delay: tuple[int, int] | None = None
        #: Epoch of the newest claim in the log; epochs in beats may be forged.
        self._leader_epoch = 0
        self._has_leader = False
        self._quiet_since_ms = now_ms
        self._resigned = False
        self._suspected_ms: int | None = None
        self._is_suspicion_read = False
        self._led_since_ms = now_ms
        self._claims = 0
        self._again_ms = now_ms

    def receive(self, message: AnyMessage, now_ms: int) -> None:
        if message.app != self._app:
            return
        if isinstance(message, Suspect) and message.incarnation == self._process_id:
            is_due = self._suspected_ms is not None and not self._is_suspicion_read
            if is_due and message.leader_epoch == self._leader_epoch:
                self._suspected_ms, self._is_suspicion_read = now_ms, True
        if not isinstance(message, LeaderBeat) or not is_of_leader(message, self._group):
            return
        self._has_leader = True
        self._heard(now_ms)
        self._resigned = message.resigns
        if now_ms >= self._led_since_ms + SETTLED_HEARTBEATS * self._heartbeat_ms:
            self._claims, self._again_ms = 0, now_ms

    def follow(self, group: Group, now_ms: int) -> None:
        self._group, self._delay = group, None
        if group.leader_epoch > self._leader_epoch:
            self._leader_epoch = group.leader_epoch
            self._has_leader = True
            self._heard(now_ms)
            self._led_since_ms = now_ms

    def decide(self, now_ms: int) -> ElectionDecision:
        if now_ms < self._again_ms:
            return ElectionDecision(wake_ms=self._again_ms)
        if not self._has_leader or self._resigned:
            return self._claim_at(self._quiet_since_ms + self._delay_ms(), now_ms)
        if self._suspected_ms is None:
            quiet_ms = QUIET_HEARTBEATS * self._heartbeat_ms
            suspect_ms = self._quiet_since_ms + quiet_ms + self._delay_ms()
        elif self._is_suspicion_read:
            return self._claim_at(self._suspected_ms + self._heartbeat_ms, now_ms)
        else:
            suspect_ms = self._suspected_ms + QUIET_HEARTBEATS * self._heartbeat_ms
        if now_ms < suspect_ms:
            return ElectionDecision(wake_ms=suspect_ms)
        self._suspected_ms, self._is_suspicion_read = now_ms, False
        suspect = Suspect(
            app=self._app,
            member=self._process_id,
            incarnation=self._process_id,
            leader_epoch=self._leader_epoch,
        )
        return ElectionDecision(messages=(suspect,), wake_ms=now_ms + self._heartbeat_ms)

    def _heard(self, now_ms: int) -> None:
        self._quiet_since_ms = now_ms
        self._resigned = False
        self._suspected_ms = None

    def _claim_at(self, claim_ms: int, now_ms: int) -> ElectionDecision:
        if now_ms < claim_ms:
            return ElectionDecision(wake_ms=claim_ms)
        self._suspected_ms = None
        heartbeats = CLAIM_HEARTBEATS << min(self._claims, DOUBLINGS_MAX)
        self._claims += 1
        self._again_ms = now_ms + heartbeats * self._heartbeat_ms
        return ElectionDecision(claim=True, wake_ms=self._again_ms)

    def _delay_ms(self) -> int:
        if self._delay is None or self._delay[0] != self._leader_epoch:
            self._delay = (self._leader_epoch, self._rank_delay_ms())
        return self._delay[1]

    def _rank_delay_ms(self) -> int:
        """Return the wait (ms) for candidates of better rank.

        Ranks rotate with the leader epoch: no unreachable process stays first.
        """
        processes = {record.process_id for record in self._group.live().values()}
        candidates = sorted(processes - {self._group.leader})
        rank = len(candidates)
        if self._process_id in candidates:
            rank = (candidates.index(self._process_id) + self._leader_epoch) % len(candidates)
        mixed = crc32(f"{self._seed}/{self._process_id}/{self._leader_epoch}".encode()) % 1_000
        if not candidates:
            return mixed * self._heartbeat_ms // 1_000
        share = min(rank / 4 + mixed / 8_000, RANK_DELAY_HEARTBEATS_MAX)
        return int(share * self._heartbeat_ms)
