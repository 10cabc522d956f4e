"""Schedules of random faults: a seed always draws the same faults, in the same order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

#: Lanes of a schedule: their faults happen one after the other, and independently of other lanes.
WORKERS: Final = ("a", "b", "c")
#: A worker that comes and goes.
VISITOR: Final = "d"
BROKERS: Final = "brokers"

_PAUSE_S: Final = (0.1, 15.0)
_DOWN_S: Final = (0.1, 5.0)

_COMMIT_POINTS: Final = (
    *("before_produce", "before_flush", "before_offsets", "before_commit", "after_commit"),
    *("before_apply", "after_apply", "before_extend", "after_extend", "after_offsets_ahead"),
    *(f"processed_while_{state}" for state in ("opening", "open", "committing", "answered")),
)
_GROUP_POINTS: Final = (
    *(f"sent_{kind}" for kind in ("JOIN", "BEAT", "READY", "REVOKED", "GRANTED_OK", "LEADER_BEAT")),
    *(
        f"{moment}_{kind}"
        for moment in ("appending", "appended")
        for kind in (
            *("LEADER_CLAIM", "SNAP_BEGIN", "SNAP_END", "TARGET", "STEP", "ACTIVE", "FENCING"),
            *("FENCED", "GONE", "REVOKE", "RELEASED", "GRANT", "TASK"),
        )
    ),
)
_RESTORE_POINTS: Final = ("before_ingest", "after_ingest")
POINTS: Final = (*_COMMIT_POINTS, *_GROUP_POINTS, *_RESTORE_POINTS)

#: Kinds of faults by weight; their names are what a report shows.
_CRASHES: Final = {
    "kill worker": 3,
    "kill worker and helpers": 3,
    "kill watchdog": 2,
    "pause worker": 3,
    "pause worker and helpers": 3,
    "pause watchdog": 2,
    "kill at failpoint": 5,
    "pause at failpoint": 3,
}
_OPERATIONS: Final = {
    "kill restore helper": 2,
    "pause restore helper": 1,
    "restart worker": 5,
    "lose worker and disk": 2,
}
#: For workers with a network and a disk of their own.
_HOST_FAULTS: Final = {"cut network": 4, "fill disk": 3}
_BROKER_FAULTS: Final = {
    "restart broker": 4,
    "kill broker": 4,
    "pause broker": 4,
    "kill two brokers": 1,
}
_VISIT: Final = "scale up and down"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault of a lane.

    Attributes:
        wait_s: Seconds after the end of the lane's last fault.
        for_s: Seconds of a pause, or until the start after a kill.
        nodes: Brokers.
        failpoint: Name and number of a failpoint.
    """

    kind: str
    wait_s: float
    for_s: float
    nodes: tuple[int, ...] = ()
    failpoint: str = ""


Schedule = Mapping[str, Sequence[Fault]]


def draw_round(
    seed: int, number: int, seconds: float, *, brokers: Sequence[int], hosts: bool = False
) -> Schedule:
    """Return the faults of about `seconds` seconds, in a lane for each worker and for brokers.

    `hosts`: each worker has a network and a disk of its own, which fail too.
    """
    chance = Random(f"{seed} {number}")
    lanes = dict.fromkeys(WORKERS, _CRASHES | _OPERATIONS | (_HOST_FAULTS if hosts else {}))
    lanes |= {VISITOR: {_VISIT: 1}} | ({BROKERS: _BROKER_FAULTS} if brokers else {})
    return {lane: _lane(chance, kinds, seconds, brokers) for lane, kinds in lanes.items()}


def draw_burst(chance: Random) -> Schedule:
    """Return 2 to 5 crashes and pauses of workers and watchdogs, within a few seconds."""
    lanes: dict[str, list[Fault]] = {}
    for _ in range(chance.randint(2, 5)):
        fault = _fault(chance, _CRASHES, wait_s=chance.uniform(0.0, 1.5), longest_s=3.0)
        lanes.setdefault(chance.choice(WORKERS), []).append(fault)
    return lanes


def _lane(
    chance: Random, kinds: Mapping[str, int], seconds: float, brokers: Sequence[int]
) -> Sequence[Fault]:
    faults: list[Fault] = []
    at_s = 0.0
    while True:
        fault = _fault(chance, kinds, wait_s=chance.uniform(5.0, 50.0), brokers=brokers)
        at_s += fault.wait_s + fault.for_s
        if at_s > seconds:
            return faults
        faults.append(fault)


def _fault(
    chance: Random,
    kinds: Mapping[str, int],
    *,
    wait_s: float,
    longest_s: float = 30.0,
    brokers: Sequence[int] = (),
) -> Fault:
    (kind,) = chance.choices(list(kinds), list(kinds.values()))
    is_pause = "pause" in kind or kind in _HOST_FAULTS
    for_s = min(_skewed(chance, *(_PAUSE_S if is_pause else _DOWN_S)), longest_s)
    nodes: Sequence[int] = ()
    failpoint = ""
    if "two brokers" in kind:
        nodes, for_s = chance.sample(brokers, 2), chance.uniform(2.0, 10.0)
    elif "broker" in kind:
        nodes = chance.sample(brokers, 1)
    elif kind == _VISIT:
        for_s = chance.uniform(5.0, 30.0)
    elif "failpoint" in kind:
        # Each group of points is as likely as the others.
        points = chance.choice((_COMMIT_POINTS, _COMMIT_POINTS, _GROUP_POINTS, _RESTORE_POINTS))
        failpoint = f"{chance.choice(points)}:{1 + int(_skewed(chance, 0.1, 30.0))}"
    return Fault(
        kind=kind,
        wait_s=round(wait_s, 3),
        for_s=round(for_s, 3),
        nodes=tuple(nodes),
        failpoint=failpoint,
    )


def _skewed(chance: Random, least: float, most: float) -> float:
    """Return a number of any order of magnitude between the two."""
    return float(least * (most / least) ** chance.random())
