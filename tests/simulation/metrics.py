"""Counts over lifetimes."""

from collections import Counter
from dataclasses import dataclass, field

from tests.simulation.toxics import ORDERLY

#: Minimum per lifetime with faults: events, faults, kinds of faults, leaders.
EVENTS, FAULTS_STRUCK, KINDS, LEADERS = 200, 5, 3, 2


@dataclass(slots=True)
class Metrics:
    """Counts of one or more lifetimes."""

    lifetimes: int = 0
    events: int = 0
    faults: Counter[str] = field(default_factory=Counter)  # Faults with an effect, by kind.
    leaders: int = 0  # Claims.
    newer_leaders: int = 0  # Claims by members of the next protocol version.
    commits: int = 0  # Committed worker transactions.
    targets: int = 0
    #: Moves of phases in the log, as (from, to).
    member_moves: set[tuple[str, str]] = field(default_factory=set)
    task_moves: set[tuple[str, str]] = field(default_factory=set)
    #: Planned moves of stateful tasks whose new owner restored at most, or more than, the
    #: acceptable lag.
    warm: int = 0
    cold: int = 0
    restored: int = 0  # Changelog records restored after planned grants.
    fewest_events: int = 1 << 60
    fewest_faults: int = 1 << 60
    fewest_kinds: int = 1 << 60
    fewest_leaders: int = 1 << 60

    @property
    def real(self) -> Counter[str]:
        """Faults, without members that come and go in order."""
        return Counter({kind: n for kind, n in self.faults.items() if kind not in ORDERLY})

    def lacks_faults(self) -> bool:
        return self.real.total() < FAULTS_STRUCK or len(self.real) < KINDS

    def lacks(self) -> str:
        """Return the reason why a lifetime was too quiet, or ""."""
        if self.events < EVENTS or self.lacks_faults() or self.leaders < LEADERS:
            return f"{self.events} events, {self.leaders} leaders, faults {dict(self.real)}"
        return ""

    def began(self, *, warm: bool, planned: bool, restored: int) -> None:
        if planned:
            self.warm += warm
            self.cold += not warm
            self.restored += restored

    def add(self, other: "Metrics") -> None:
        self.lifetimes += 1
        self.events += other.events
        self.faults += other.faults
        self.leaders += other.leaders
        self.newer_leaders += other.newer_leaders
        self.commits += other.commits
        self.targets += other.targets
        self.member_moves |= other.member_moves
        self.task_moves |= other.task_moves
        self.warm += other.warm
        self.cold += other.cold
        self.restored += other.restored
        self.fewest_events = min(self.fewest_events, other.events)
        self.fewest_faults = min(self.fewest_faults, other.real.total())
        self.fewest_kinds = min(self.fewest_kinds, len(other.real))
        self.fewest_leaders = min(self.fewest_leaders, other.leaders)

    def text(self) -> str:
        return "\n".join(
            (
                f"{self.lifetimes} lifetimes, {self.events} events, {self.commits} commits, {self.leaders} leaders, {self.targets} targets",
                f"per lifetime at least {self.fewest_events} events, {self.fewest_faults} faults of {self.fewest_kinds} kinds, {self.fewest_leaders} leaders",
                f"planned moves of state: {self.warm} warm, {self.cold} cold; {self.restored} records restored after their grants",
                "faults: " + ", ".join(f"{kind} {n}" for kind, n in sorted(self.faults.items())),
            )
        )
