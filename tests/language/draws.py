"""Random programs and inputs, and what all of them together have to be."""

import random
from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st

from streams import StreamsConfig, Topology
from tests.language.programs import GLOBAL, INPUTS, OPERATORS, Step
from tests.tasks.bench import APP

#: (key, value, timestamp); (topic, its records), committed together.
Row = tuple[str | None, str | None, int]
Chunk = tuple[str, list[Row]]
Outputs = dict[str, list[Any]]

#: Operators that keep the programs they are in from running in batches, so they come less often.
_SINGLY = frozenset({"process", "process_values", "self_join"})


@dataclass
class Drawn:
    """What the examples were, over all of them."""

    operators: Counter[str] = field(default_factory=Counter[str])
    sizes: list[int] = field(default_factory=list[int])
    keys: list[int] = field(default_factory=list[int])
    in_batches: int = 0

    def note(self, steps: list[Step], chunks: list[Chunk], topology: Topology) -> None:
        for operator in {step.operator for step in steps}:
            event(operator)
            self.operators[operator] += 1
        rows = [row for _, chunk in chunks for row in chunk]
        self.sizes.append(len(rows))
        self.keys.append(len({key for key, _, _ in rows if key is not None}))
        text = str(topology.describe(execution=True))
        self.in_batches += "record by record" not in text
        event("batches" if "record by record" not in text else "single records")

    def check(self, without: frozenset[str] = frozenset()) -> None:
        """Every operator in 2 % of the examples, half of them in batches, inputs of some size."""
        examples = len(self.sizes)
        rare = {name for name in OPERATORS if self.operators[name] < 0.02 * examples}
        assert rare <= without
        assert self.in_batches >= examples / 2
        assert median(self.sizes) >= 50
        assert median(self.keys) >= 5


def steps_of(seed: int, *, with_global: bool = True) -> list[Step]:
    """Return a random program; unlike hypothesis' own draws, each operator is as likely as the others."""
    chance = random.Random(f"program {seed}")
    known = [name for name in OPERATORS if with_global or name != "global_lookup"]
    weights = [0.6 if name in _SINGLY else 1.0 for name in known]
    return [
        Step(name, chance.randint(0, 11), chance.randint(0, 11))
        for name in chance.choices(known, weights, k=chance.randint(3, 5))
    ]


STEPS = st.lists(
    st.builds(Step, st.sampled_from(sorted(OPERATORS)), st.integers(0, 11), st.integers(0, 11)),
    min_size=2,
    max_size=5,
)


def chunks_of(seed: int, count: int, *, with_global: bool = True) -> list[Chunk]:
    """Return runs of records of random topics: null keys, deletions, late, equal and leaping times."""
    chance = random.Random(seed)
    topics = [topic for topic in INPUTS if with_global or topic != GLOBAL]
    chunks: list[Chunk] = []
    now = 10
    while count > 0:
        rows: list[Row] = []
        for _ in range(min(chance.choice([1, 2, 5, 12]), count)):
            count -= 1
            now += chance.choice([0, 0, 1, 2, 3, 15 if chance.random() < 0.1 else 0])
            late = chance.randint(0, 12) if chance.random() < 0.25 else 0
            key = None if chance.random() < 0.04 else chance.choice("abcdef")
            value = None if chance.random() < 0.1 else f"v{count}"
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


def sinks_of(topology: Topology, config: StreamsConfig) -> list[str]:
    return sorted(
        str(sink.topic)
        for part in topology.spec(config).subtopologies
        for sink in part.sinks
        if not sink.internal
    )


SETTINGS = settings(
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
SEEDS = st.integers(0, 1_000_000)
COUNTS = st.integers(50, 90)
#: Programs that are run whatever hypothesis draws beside them.
GIVEN = 150
