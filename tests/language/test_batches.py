"""Random programs: batches equal single records."""

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
from tests.language.programs import Step
from tidewheel.testing import TopologyTestDriver

pytestmark = [pytest.mark.slow, pytest.mark.first, pytest.mark.timeout(600 + 5 * GIVEN)]

_TEXT: dict[str, Any] = {"key_serde": str, "value_serde": str}


def driven(
    program: Program, chunks: list[Chunk], *, cache_bytes: int, record_by_record: bool
) -> Outputs:
    """One commit after each run of records."""
    config = config_of(cache_bytes)
    with TopologyTestDriver(program.topology, config, record_by_record=record_by_record) as driver:
        outputs = {name: driver.create_output_topic(name, **_TEXT) for name in program.pool.outputs}
        for topic, rows in chunks:
            driver.create_input_topic(topic, **_TEXT).pipe_batch(rows)
            driver.advance_wall_clock_time(6)
        found = {name: list(output.read_records()) for name, output in outputs.items()}
    return found | program.pool.take_calls()


def test_batches_give_the_results_of_single_records() -> None:
    drawn = Drawn()

    @SETTINGS
    @given(steps=STEPS, seed=SEEDS, cache_bytes=st.sampled_from([0, 1 << 20]))
    def compare(steps: list[Step], seed: int, cache_bytes: int) -> None:
        program = Program.of(steps, config_of(0))
        chunks = chunks_of(seed, steps, program.inputs)
        drawn.note(steps, program, chunks)
        batches = driven(program, chunks, cache_bytes=cache_bytes, record_by_record=False)
        assert batches == driven(program, chunks, cache_bytes=cache_bytes, record_by_record=True)

    for seed, steps in enumerate(hands()):
        cache_bytes = (seed % 3 == 0) << 20
        compare = example(steps=steps, seed=seed, cache_bytes=cache_bytes)(compare)
    compare()
    drawn.check()
