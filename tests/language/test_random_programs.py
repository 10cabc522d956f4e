"""Random programs of all operators on random inputs: batches, single records and a restart give the same outputs."""

import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from streams import StreamsConfig, Topology
from streams.testing import TopologyTestDriver
from tests.language.programs import GLOBAL, INPUTS, OPERATORS, Step, build
from tests.tasks.bench import APP, Bench

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_TEXT: dict[str, Any] = {"key_serde": str, "value_serde": str}

#: (key, value, timestamp); (topic, its records), committed together.
Row = tuple[str | None, str | None, int]
Chunk = tuple[str, list[Row]]
Outputs = dict[str, list[Any]]

#: Operators that keep the programs they are in from running in batches, so they come less often.
_SINGLY = frozenset({"process", "process_values", "self_join"})

#: Idle polls, of 10 ms each, after which a commit has come and nothing has followed from it.
_QUIET_POLLS = 12


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


def driven(
    steps: list[Step], chunks: list[Chunk], *, cache_bytes: int, record_by_record: bool
) -> Outputs:
    """Return what a test driver gives, one commit after each run of records."""
    config = config_of(cache_bytes)
    topology = build(steps).build(config)
    with TopologyTestDriver(topology, config, record_by_record=record_by_record) as driver:
        outputs = {
            name: driver.create_output_topic(name, **_TEXT) for name in sinks_of(topology, config)
        }
        for topic, rows in chunks:
            if topic in topology.source_topics or topic in _global_topics(topology):
                driver.create_input_topic(topic, **_TEXT).pipe_batch(rows)
        return {name: list(output.read_records()) for name, output in outputs.items()}


def _global_topics(topology: Topology) -> set[str]:
    return {GLOBAL} if GLOBAL in str(topology.describe()) else set()


def lived(steps: list[Step], chunks: list[Chunk], cuts: list[int], *, wiped: bool) -> Outputs:
    """Return what a worker on a fake cluster gives that is started anew at `cuts`, perhaps with an empty disk."""
    config = config_of(0)
    topology = build(steps).build(config)
    names = sinks_of(topology, config)
    topics = dict.fromkeys([*INPUTS, *names], 1)
    bench = Bench(topology, topics, emit_interval_ms=0, max_task_idle_ms=-1)
    bench.idle_polls = _QUIET_POLLS + 2
    bounds = [0, *sorted(cut % len(chunks) for cut in cuts), len(chunks)]
    for start, stop in pairwise(bounds):
        _live_through(bench, chunks[start:stop])
        if wiped:
            bench.disk.versions.clear()
    return {
        name: [(each.key, each.value, each.timestamp) for each in bench.broker.records(name)]
        for name in names
    }


def _live_through(bench: Bench, chunks: list[Chunk]) -> None:
    left = list(chunks)

    def send_next(_worker: Any, source: Any) -> None:
        # Each run is sent when what came of the one before has been through all its repartition topics.
        if left and source.idle >= _QUIET_POLLS:
            topic, rows = left.pop(0)
            for key, value, timestamp in rows:
                bench.send(topic, key, value, timestamp=timestamp)

    bench.at_poll.append(send_next)
    assert bench.live()
    bench.at_poll.clear()
    assert not left


_SETTINGS = settings(
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
_SEEDS = st.integers(0, 1_000_000)
_COUNTS = st.integers(50, 90)
#: Programs that are run whatever hypothesis draws beside them.
_GIVEN = 150


def test_batches_give_what_single_records_give() -> None:
    """The same records in the same order in every topic, with and without a cache."""
    drawn = Drawn()

    @_SETTINGS
    @given(steps=STEPS, seed=_SEEDS, count=_COUNTS, cache_bytes=st.sampled_from([0, 1 << 20]))
    def compare(steps: list[Step], seed: int, count: int, cache_bytes: int) -> None:
        chunks = chunks_of(seed, count)
        drawn.note(steps, chunks, build(steps).build(config_of(0)))
        batches = driven(steps, chunks, cache_bytes=cache_bytes, record_by_record=False)
        assert batches == driven(steps, chunks, cache_bytes=cache_bytes, record_by_record=True)

    for seed in range(_GIVEN):
        cache_bytes = (seed % 3 == 0) << 20
        compare = example(steps=steps_of(seed), seed=seed, count=60, cache_bytes=cache_bytes)(
            compare
        )
    compare()
    drawn.check()


def test_a_restart_changes_nothing() -> None:
    """At any moment between two commits, on the same disk or restored from the changelogs."""
    drawn = Drawn()

    @_SETTINGS
    @given(
        steps=STEPS.filter(lambda steps: all(step.operator != "global_lookup" for step in steps)),
        seed=_SEEDS,
        count=_COUNTS,
        cut=st.integers(0, 40),
        wiped=st.booleans(),
    )
    def compare(steps: list[Step], seed: int, count: int, cut: int, *, wiped: bool) -> None:
        chunks = chunks_of(seed, count, with_global=False)
        drawn.note(steps, chunks, build(steps).build(config_of(0)))
        whole = lived(steps, chunks, [], wiped=False)
        assert lived(steps, chunks, [cut], wiped=wiped) == whole

    for seed in range(_GIVEN):
        steps = steps_of(seed, with_global=False)
        compare = example(steps=steps, seed=seed, count=60, cut=seed % 17, wiped=seed % 2 == 0)(
            compare
        )
    compare()
    drawn.check(without=frozenset({"global_lookup"}))
