"""Random programs of all operators on random inputs: a restart gives what a life without one gives."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.language.draws import (
    COUNTS,
    GIVEN,
    SEEDS,
    SETTINGS,
    STEPS,
    Chunk,
    Drawn,
    Outputs,
    chunks_of,
    config_of,
    sinks_of,
    steps_of,
)
from tests.language.programs import INPUTS, Step, build
from tests.tasks.bench import Bench

pytestmark = [pytest.mark.slow, pytest.mark.first, pytest.mark.timeout(600)]

#: Idle polls, of 10 ms each, after which a commit has come and nothing has followed from it.
_QUIET_POLLS = 12


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


def test_a_restart_changes_nothing() -> None:
    """At any moment between two commits, on the same disk or restored from the changelogs."""
    drawn = Drawn()

    @SETTINGS
    @given(
        steps=STEPS.filter(lambda steps: all(step.operator != "global_lookup" for step in steps)),
        seed=SEEDS,
        count=COUNTS,
        cut=st.integers(0, 40),
        wiped=st.booleans(),
    )
    def compare(steps: list[Step], seed: int, count: int, cut: int, *, wiped: bool) -> None:
        chunks = chunks_of(seed, count, with_global=False)
        drawn.note(steps, chunks, build(steps).build(config_of(0)))
        whole = lived(steps, chunks, [], wiped=False)
        assert lived(steps, chunks, [cut], wiped=wiped) == whole

    for seed in range(GIVEN):
        steps = steps_of(seed, with_global=False)
        compare = example(steps=steps, seed=seed, count=60, cut=seed % 17, wiped=seed % 2 == 0)(
            compare
        )
    compare()
    drawn.check(without=frozenset({"global_lookup"}))
