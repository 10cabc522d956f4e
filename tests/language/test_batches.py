"""Random programs of all operators on random inputs: batches give what single records give."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streams import Topology
from streams.testing import TopologyTestDriver
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
from tests.language.programs import GLOBAL, Step, build

pytestmark = [pytest.mark.slow, pytest.mark.first, pytest.mark.timeout(600)]

_TEXT: dict[str, Any] = {"key_serde": str, "value_serde": str}


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


def test_batches_give_what_single_records_give() -> None:
    """The same records in the same order in every topic, with and without a cache."""
    drawn = Drawn()

    @SETTINGS
    @given(steps=STEPS, seed=SEEDS, count=COUNTS, cache_bytes=st.sampled_from([0, 1 << 20]))
    def compare(steps: list[Step], seed: int, count: int, cache_bytes: int) -> None:
        chunks = chunks_of(seed, count)
        drawn.note(steps, chunks, build(steps).build(config_of(0)))
        batches = driven(steps, chunks, cache_bytes=cache_bytes, record_by_record=False)
        assert batches == driven(steps, chunks, cache_bytes=cache_bytes, record_by_record=True)

    for seed in range(GIVEN):
        cache_bytes = (seed % 3 == 0) << 20
        compare = example(steps=steps_of(seed), seed=seed, count=60, cache_bytes=cache_bytes)(
            compare
        )
    compare()
    drawn.check()
