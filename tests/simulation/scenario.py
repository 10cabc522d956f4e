"""A lifetime's plan, from its seed: members, tasks, settings, faults."""

import random
from dataclasses import dataclass

from tests.simulation.host import MemberSettings
from tests.simulation.laws.evidence import Limits
from tests.simulation.next_version import NEXT
from tests.simulation.toxics import FAULTS, GENTLE, ORDERLY, Toxic
from tidewheel.rebalance.leader.decision import CoordinatorSettings
from tidewheel.rebalance.leader.sharding import required_version
from tidewheel.rebalance.protocol.field_types import ShardCount
from tidewheel.rebalance.protocol.messages import PROTOCOL_MAX

#: Members join in the first 2 s; faults start between these times.
FAULTS_FROM_MS = 2_200
FAULTS_UNTIL_MS = 8_500
#: Retries of faults without a target end here; then missing faults are added.
FAULTS_COUNTED_MS = 9_000
INPUT_UNTIL_MS = 10_000


#: Maximum times of a claim with its election rounds, a fence, a leader transaction. `DECISIONS`
#: counts those from a death to the next grant: FENCING, FENCED and RELEASED, checks, target, STEP,
#: GRANT.
CLAIM_MS = 1_000
FENCE_MS = 700
WRITE_MS = 60
DECISIONS = 6
#: Time to restore the longest changelog twice, at 60 records/s.
OPENS_MS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Plan of one lifetime."""

    seed: int
    members: tuple[tuple[int, MemberSettings], ...]  # Initial members with start times.
    spare: tuple[MemberSettings, ...]  # Settings of members that may join later.
    settings: CoordinatorSettings
    stateful: int
    stateless: int
    rate_per_s: float  # Input per task.
    history: int  # Records processed before the start.
    restore_per_s: int  # Restored records per second.
    commit_interval_ms: int
    together_ms: int  # Leaders decide messages of this window together.
    #: Shares of lost and doubled inbox messages.
    lose: float
    repeat: float
    shards: ShardCount
    newer: frozenset[int]  # Members of the next protocol version; at the end all are.
    rolls_back: bool  # True if they return to this version.
    faults: bool
    toxics: tuple[Toxic, ...]  # Faults, in order of time.

    def limits(self) -> Limits:
        settings = self.settings
        sessions = [each.session_timeout_ms for _, each in self.members]
        # A silent leader's replacement, then a silent member's timeout.
        detect_ms = 2 * max(sessions) + 2 * CLAIM_MS
        rounds = -(-len(self.members + self.spare) // settings.fences_at_once)
        fence_ms = rounds * FENCE_MS
        grant_ms = settings.settling_ms + DECISIONS * (self.together_ms + WRITE_MS)
        return Limits(
            acceptable_recovery_lag=settings.acceptable_recovery_lag,
            max_warmup_replicas=settings.max_warmup_replicas,
            fences_at_once=settings.fences_at_once,
            num_standby_replicas=settings.num_standby_replicas,
            refine=settings.refine,
            unowned_ms=detect_ms + fence_ms + grant_ms,
            opens_ms=OPENS_MS,
        )

    def describe(self) -> str:
        lines = [
            f"seed {self.seed}: {len(self.members)} members, {self.stateful}+{self.stateless} tasks, {self.shards} shards, {self.settings}",
            f"rate {self.rate_per_s}/s, history {self.history}, restore {self.restore_per_s}/s, lose {self.lose}, repeat {self.repeat}",
            *(f"  {start_ms} ms: {settings}" for start_ms, settings in self.members),
            *(f"  {toxic}" for toxic in self.toxics),
        ]
        return "\n".join(lines)


def draw(
    seed: int,
    *,
    faults: bool = True,
    refine: bool = True,
    more: tuple[str, ...] = (),
    shards: ShardCount = 1,
) -> Scenario:
    """Return a seed's plan; without `faults`, members only join and leave.

    With `shards`, the stateful tasks are shards of fewer partitions.
    """
    chance = random.Random(f"scenario {seed}")
    count = chance.randint(3, 8)
    tasks = chance.randint(12, chance.choice((24, 36, 60)))
    stateless = chance.choice((0, 0, tasks // 4, tasks // 3))
    heartbeat_ms = chance.choice((300, 400, 500))
    session_ms = heartbeat_ms * chance.choice((4, 5, 6))
    static = chance.random() < 0.5
    threads = chance.choice(((1,), (1,), (1, 2)))
    newer = frozenset(range(0, count, 2)) if chance.random() < 0.25 else frozenset[int]()

    def member(number: int) -> MemberSettings:
        return MemberSettings(
            member=f"m{number}",
            static=static,
            threads=chance.choice(threads),
            heartbeat_interval_ms=heartbeat_ms,
            session_timeout_ms=session_ms,
            rejoin_timeout_ms=chance.choice((3_000, 6_000)),
            hang_timeout_ms=2_000,
            protocol=(
                required_version(shards),
                NEXT if number in newer else PROTOCOL_MAX,
            ),
            shards=shards,
        )

    return Scenario(
        seed=seed,
        members=tuple((chance.randint(0, 2_000), member(number)) for number in range(count)),
        spare=tuple(member(number) for number in range(count, count + 4)),
        settings=CoordinatorSettings(
            acceptable_recovery_lag=chance.choice((0, 5, 20, 60)),
            max_warmup_replicas=chance.choice((1, 2, 2, 4, 8)),
            num_standby_replicas=chance.choice((0, 0, 1, 1, 2)),
            task_move_interval_ms=chance.choice((0, 0, 0, 50)),
            heartbeat_interval_ms=heartbeat_ms,
            settling_ms=chance.choice((0, 500, 1_500)),
            fences_at_once=chance.choice((1, 2, 16)),
            refine=refine,
        ),
        stateful=max((tasks - stateless) // shards, 2) if shards > 1 else tasks - stateless,
        shards=shards,
        stateless=stateless,
        rate_per_s=chance.choice((3.0, 6.0)),
        history=chance.choice((0, 40, 150)),
        restore_per_s=chance.choice((60, 200, 1_000)),
        together_ms=chance.choice((5, 40, 90)),
        commit_interval_ms=chance.choice((300, 450)),
        lose=chance.choice((0.0, 0.0, 0.02)) if faults else 0.0,
        repeat=chance.choice((0.0, 0.05)) if faults else 0.0,
        newer=newer,
        rolls_back=seed % 2 == 1,
        faults=faults,
        toxics=_draw_toxics(chance, faults=faults, more=more),
    )


def _draw_toxics(
    chance: random.Random, *, faults: bool, more: tuple[str, ...]
) -> tuple[Toxic, ...]:
    if not faults:
        kinds = [chance.choice(GENTLE) for _ in range(chance.randint(2, 4))]
    else:
        orderly = [each for each in FAULTS if each in ORDERLY]
        real = [each for each in FAULTS if each not in ORDERLY]
        kinds = chance.choices(real, [FAULTS[each].weight for each in real], k=chance.randint(5, 7))
        kinds += chance.choices(
            orderly, [FAULTS[each].weight for each in orderly], k=chance.randint(1, 3)
        )
        kinds.append(chance.choice(("kill_leader", "stop_leader", "kill_leader_at_a_bad_time")))
    return tuple(
        sorted(
            Toxic(
                at_ms=chance.randint(FAULTS_FROM_MS, FAULTS_UNTIL_MS),
                kind=kind,
                draw=chance.random(),
                length_ms=int(chance.choice((200, 900, 2_500, 4_000)) * chance.uniform(0.7, 1.4)),
            )
            for kind in (*kinds, *more)
        )
    )
