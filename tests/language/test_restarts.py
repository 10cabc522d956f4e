"""Random programs: a restart changes no result."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.language.draws import (
    GIVEN,
    SEEDS,
    SETTINGS,
    STEPS,
    Chunk,
    Drawn,
    Outputs,
    Program,
    chunks_of,
    config_of,
    hands,
)
from tests.language.pool import INPUTS
from tests.language.programs import GLOBALLY, Step
from tests.tasks.loop.bench import Bench

pytestmark = [pytest.mark.slow, pytest.mark.first, pytest.mark.timeout(600 + 5 * GIVEN)]

#: Idle polls (10 ms each) after which a commit has finished without new records.
_QUIET_POLLS = 12

#: Their times do not depend on records: a global table is read independently.
_NOT_TOLD = GLOBALLY | {"wall_clock_timer"}
#: Above the number of keys: a restart loses the LRU order.
_MOST_ENTRIES = 100


@dataclass(frozen=True)
class Fate:
    """An interruption of a worker.

    Attributes:
        cut: Runs of records before the stop, modulo their number; None: it crashes.
        step: External step at which it crashes.
        wiped: Its disk is empty afterwards.
    """

    cut: int | None = 0
    step: int = 0
    wiped: bool = False


def lived(program: Program, chunks: list[Chunk], fate: Fate | None) -> Outputs:
    outputs = program.pool.outputs
    topics = dict.fromkeys(INPUTS, 1) | outputs
    bench = Bench(program.topology, topics, emit_interval_ms=0, max_task_idle_ms=-1)
    bench.idle_polls = _QUIET_POLLS + 2
    left = list(chunks)
    if fate is not None and fate.cut is not None:
        cut = fate.cut % len(chunks)
        _run_chunks(bench, chunks[:cut])
        left = chunks[cut:]
    elif fate is not None:
        _run_chunks(bench, left, crash_after=fate.step)
    if fate is not None and fate.wiped:
        bench.disk.versions.clear()
    _run_chunks(bench, left)
    return {
        name: [(each.key, each.value, each.timestamp) for each in bench.broker.records(name)]
        for name in outputs
    }


def _run_chunks(bench: Bench, left: list[Chunk], *, crash_after: int | None = None) -> None:
    """Send runs of records until none is left or the worker crashes."""

    def send_next(_worker: Any, source: Any) -> None:
        # Sent after the previous run has passed all repartition topics.
        if left and source.idle >= _QUIET_POLLS:
            topic, rows = left.pop(0)
            for key, value, timestamp in rows:
                bench.send(topic, key, value, timestamp=timestamp)

    bench.at_poll.append(send_next)
    ended = bench.live(crash_after=crash_after)
    bench.at_poll.clear()
    assert not ended or not left
    assert ended or crash_after is not None


def test_a_restart_changes_nothing() -> None:
    drawn = Drawn()

    @SETTINGS
    @given(
        steps=STEPS.filter(lambda steps: _NOT_TOLD.isdisjoint(step.operator for step in steps)),
        seed=SEEDS,
        fate=st.builds(Fate, st.none() | st.integers(0, 40), st.integers(0, 250), st.booleans()),
    )
    def compare(steps: list[Step], seed: int, fate: Fate) -> None:
        program = Program.of(steps, config_of(0), most_entries=_MOST_ENTRIES)
        chunks = chunks_of(seed, steps, program.inputs)
        drawn.note(steps, program, chunks)
        assert lived(program, chunks, fate) == lived(program, chunks, None)

    for seed, steps in enumerate(hands(_NOT_TOLD)):
        cut = None if seed % 4 >= 2 else seed % 17
        fate = Fate(cut=cut, step=seed * 7 % 150, wiped=seed % 2 == 0)
        compare = example(steps=steps, seed=seed, fate=fate)(compare)
    compare()
    drawn.check(without=_NOT_TOLD)
