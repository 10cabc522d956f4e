"""Who claims the leadership, and when: a candidate's judgement of the leader's silence; pure.

Safe at any timing: the claim itself is made by transactional id (H1). Timing only decides how soon, and how many try. A
leader that is suspected and lives answers at once, so that one lost beat deposes nobody (H2). Only this process's own
clock is read (H22).

        quiet for 2 heartbeats and the rank's delay: SUSPECT; quiet for one more: claim. A leader that resigned, or that never
        was, is not waited for; the rank's delay remains, so that one candidate is first.
"""

from typing import Final
from zlib import crc32

import msgspec

from tidewheel.rebalance.group import Group, is_of_leader
from tidewheel.rebalance.protocol.messages import AnyMessage, LeaderBeat, Suspect

#: Heartbeats without a beat of the leader before it is suspected.
QUIET_HEARTBEATS: Final = 2

#: Heartbeats a candidate waits after its claim before it tries again.
CLAIM_HEARTBEATS: Final = 4

#: A rank's delay is at most this many heartbeats, whatever the number of candidates.
RANK_DELAY_HEARTBEATS_MAX: Final = 1.0


class ElectionDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What a candidate wants done.

    Attributes:
        messages: To be sent to the inbox (SUSPECT).
        claim: Claim the leadership now: open the leader's producer, read the log to its end, write a claim.
        wake_ms: Decide again by then at the latest.
    """

    messages: tuple[AnyMessage, ...] = ()
    claim: bool = False
    wake_ms: int = 0


class Election:
    """One candidate: one per process. While the process leads it is not asked."""

    def __init__(
        self,
        process_id: str,
        *,
        app: str,
        jitter_seed: int,
        heartbeat_interval_ms: int,
        now_ms: int,
    ) -> None:
        """Begin to listen; `jitter_seed` spreads candidates of equal rank: any number, another one in each process."""
        self._process_id = process_id
        self._app = app
        self._seed = jitter_seed
        self._heartbeat_ms = heartbeat_interval_ms
        self._group = Group()
        self._delay: tuple[int, int] | None = None
        #: Of the newest claim in the log. What a beat says of it is not stored: anybody may have written the beat.
        self._leader_epoch = 0
        self._has_leader = False
        self._quiet_since_ms = now_ms
        self._resigned = False
        self._suspected_ms: int | None = None
        self._claimed_ms: int | None = None

    def hear(self, message: AnyMessage, now_ms: int) -> None:
        """Take in a message from the inbox; only beats of the newest leader count."""
        if not isinstance(message, LeaderBeat) or message.app != self._app:
            return
        if not is_of_leader(message, self._group):
            return
        self._has_leader = True
        self._heard(now_ms)
        self._resigned = message.resigns

    def follow(self, group: Group, now_ms: int) -> None:
        """Take in the fold of the log; a new claim is a sign of life."""
        self._group, self._delay = group, None
        if group.leader_epoch > self._leader_epoch:
            self._leader_epoch = group.leader_epoch
            self._has_leader = True
            self._heard(now_ms)

    def decide(self, now_ms: int) -> ElectionDecision:
        """Return whether to suspect, to claim, or when to look again."""
        if self._claimed_ms is not None:
            again_ms = self._claimed_ms + CLAIM_HEARTBEATS * self._heartbeat_ms
            if now_ms < again_ms:
                return ElectionDecision(wake_ms=again_ms)
            self._claimed_ms = None
        if not self._has_leader or self._resigned:
            return self._claim_at(self._quiet_since_ms + self._delay_ms(), now_ms)
        if self._suspected_ms is not None:
            return self._claim_at(self._suspected_ms + self._heartbeat_ms, now_ms)
        suspect_ms = self._quiet_since_ms + QUIET_HEARTBEATS * self._heartbeat_ms + self._delay_ms()
        if now_ms < suspect_ms:
            return ElectionDecision(wake_ms=suspect_ms)
        self._suspected_ms = now_ms
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
        self._claimed_ms = None

    def _claim_at(self, claim_ms: int, now_ms: int) -> ElectionDecision:
        if now_ms < claim_ms:
            return ElectionDecision(wake_ms=claim_ms)
        self._suspected_ms = None
        self._claimed_ms = now_ms
        return ElectionDecision(claim=True, wake_ms=now_ms + CLAIM_HEARTBEATS * self._heartbeat_ms)

    def _delay_ms(self) -> int:
        """Return how long better ranks are given: thought over again only with another group or epoch."""
        if self._delay is None or self._delay[0] != self._leader_epoch:
            self._delay = (self._leader_epoch, self._rank_delay_ms())
        return self._delay[1]

    def _rank_delay_ms(self) -> int:
        """Return how long better ranks are given.

        Ranks are the places among the processes of the group without the silent leader's, turned by its epoch so that one
        that can't reach the log is not first for ever; a process the log does not know comes last.
        """
        processes = {record.process_id for record in self._group.live().values()}
        others = sorted(processes - {self._group.leader})
        rank = len(others)
        if self._process_id in others:
            rank = (others.index(self._process_id) + self._leader_epoch) % len(others)
        mixed = crc32(f"{self._seed}/{self._process_id}/{self._leader_epoch}".encode()) % 1_000
        if not others:  # nobody is known: only chance tells them apart
            return mixed * self._heartbeat_ms // 1_000
        share = min(rank / 4 + mixed / 8_000, RANK_DELAY_HEARTBEATS_MAX)
        return int(share * self._heartbeat_ms)
