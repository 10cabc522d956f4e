"""Random programs and inputs, and laws of all of them together.

Programs are dealt like cards: operators are shuffled as a deck, and each hand is a program. Each
operator is therefore equally frequent for any seed. Most hands use only operators that run in
batches. `TIDEWHEEL_TEST_LANGUAGE_PROGRAMS=600 TIDEWHEEL_TEST_LANGUAGE_SEED=7` deals more hands.
"""

import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from statistics import median
from typing import Any

from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st

from tests.language.pool import GLOBAL, INPUTS, Pool
from tests.language.programs import AT_MIDNIGHT, MIDNIGHT_MS, OPERATORS, SINGLY, Step, build
from tests.tasks.loop.bench import APP
from tidewheel import StreamsConfig, Topology

#: (key, value, timestamp); (topic, its records), committed together.
Row = tuple[str | None, str | None, int]
Chunk = tuple[str, list[Row]]
Outputs = dict[str, list[Any]]

#: Programs that run in addition to hypothesis' draws.
GIVEN = int(os.environ.get("TIDEWHEEL_TEST_LANGUAGE_PROGRAMS", "60"))
SEED = int(os.environ.get("TIDEWHEEL_TEST_LANGUAGE_SEED", "1"))

_HAND = 5
#: Every third hand has this many record-by-record operators.
_SINGLY = 3
#: Attempts to lay out a hand that runs in batches.
_LAYOUTS = 40
#: Records of one long run, and of all short runs together.
_LONG_RUN = 50
_SHORT_RUNS = 30

STEPS = st.lists(
    st.builds(Step, st.sampled_from(sorted(OPERATORS)), st.integers(0, 11), st.integers(0, 11)),
    min_size=2,
    max_size=_HAND,
)
SEEDS = st.integers(0, 1_000_000)
SETTINGS = settings(
    max_examples=GIVEN // 4,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@dataclass(frozen=True)
class Program:
    pool: Pool
    topology: Topology
    text: str

    @classmethod
    def of(cls, steps: list[Step], config: StreamsConfig, *, most_entries: int = 3) -> "Program":
        pool = build(steps, most_entries=most_entries)
        topology = pool.builder.build(config)
        return cls(pool, topology, str(topology.describe(execution=True)))

    @property
    def in_batches(self) -> bool:
        return "record by record" not in self.text

    @property
    def inputs(self) -> list[str]:
        read = set(self.topology.source_topics)
        return [
            topic
            for topic in INPUTS
            if topic in read or (topic == GLOBAL and self.pool.world is not None)
        ]


@dataclass
class Drawn:
    """Statistics of all examples."""

    operators: Counter[str] = field(default_factory=Counter[str])
    #: Records that each program reads, and those of its longest run.
    sizes: list[int] = field(default_factory=list[int])
    runs: list[int] = field(default_factory=list[int])
    keys: list[int] = field(default_factory=list[int])
    in_batches: int = 0
    #: Operators of programs that run in batches.
    batched: set[str] = field(default_factory=set[str])

    def note(self, steps: list[Step], program: Program, chunks: list[Chunk]) -> None:
        operators = {step.operator for step in steps}
        for operator in operators:
            event(operator)
            self.operators[operator] += 1
        read = set(program.inputs)
        runs = [rows for topic, rows in chunks if topic in read]
        self.sizes.append(sum(map(len, runs)))
        self.runs.append(max(map(len, runs), default=0))
        self.keys.append(len({key for rows in runs for key, _, _ in rows if key is not None}))
        if program.in_batches:
            self.in_batches += 1
            self.batched |= operators
        event("batches" if program.in_batches else "single records")

    def check(self, without: frozenset[str] = frozenset()) -> None:
        """Every operator in 2 % of examples; half of the examples in batches; inputs of some size."""
        examples = len(self.sizes)
        rare = {name for name in OPERATORS if self.operators[name] < 0.02 * examples}
        assert rare <= without
        assert self.batched == OPERATORS.keys() - SINGLY - without
        assert self.in_batches >= examples / 2
        assert median(self.sizes) >= 50
        assert median(self.runs) >= 50
        assert median(self.keys) >= 5


def hands(without: frozenset[str] = frozenset()) -> list[list[Step]]:
    chance = random.Random(f"hands {SEED}")
    singly = _dealt(chance, SINGLY - without)
    batches = _dealt(chance, OPERATORS.keys() - SINGLY - without)
    dealt: list[list[Step]] = []
    for number in range(GIVEN):
        single = _SINGLY if number % 3 == 2 else 0
        names = [*islice(singly, single), *islice(batches, _HAND - single)]
        chance.shuffle(names)
        dealt.append(_laid_out(chance, names, in_batches=not single))
    return dealt


def _dealt(chance: random.Random, names: set[str] | frozenset[str]) -> Iterator[str]:
    while True:
        yield from chance.sample(sorted(names), len(names))


def _laid_out(chance: random.Random, names: list[str], *, in_batches: bool) -> list[Step]:
    for _ in range(_LAYOUTS):
        steps = [Step(name, chance.randint(0, 11), chance.randint(0, 11)) for name in names]
        if not in_batches or Program.of(steps, config_of(0)).in_batches:
            break
    return steps


def chunks_of(seed: int, steps: list[Step], topics: list[str]) -> list[Chunk]:
    """Runs of random topics: null keys, deletions, late, equal and leaping times."""
    chance = random.Random(seed)
    lengths = [_LONG_RUN]
    while sum(lengths) < _LONG_RUN + _SHORT_RUNS:
        lengths.append(chance.choice([1, 2, 5, 12]))
    chance.shuffle(lengths)
    at_midnight = any(step.operator in AT_MIDNIGHT for step in steps)
    now = MIDNIGHT_MS - 60 if at_midnight else 10
    left = sum(lengths)
    chunks: list[Chunk] = []
    for length in lengths:
        rows: list[Row] = []
        for _ in range(length):
            left -= 1
            now += chance.choice([0, 0, 1, 2, 3, 15 if chance.random() < 0.1 else 0])
            late = chance.randint(0, 12) if chance.random() < 0.25 else 0
            key = None if chance.random() < 0.04 else chance.choice("abcdef")
            value = None if chance.random() < 0.1 else f"v{left}"
            rows.append((key, value, max(now - late, 0)))
        chunks.append((chance.choice(topics), rows))
    return chunks


def config_of(cache_bytes: int) -> StreamsConfig:
    return StreamsConfig(
        application_id=APP,
        bootstrap_servers="unused:9092",
        statestore_cache_max_bytes=cache_bytes,
        default_key_serde="string",
        default_value_serde="string",
    )
