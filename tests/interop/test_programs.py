"""Random programs on Kafka Streams and here: equal topology text, records, times and triggers.

`TIDEWHEEL_TEST_INTEROP_PROGRAMS=2000 TIDEWHEEL_TEST_INTEROP_SEED=7` compares more programs; `python
-m tests.interop.compare` writes differences to a file.
"""

import os
from collections import Counter

import pytest

from tests.interop.compare import DECLARED, Reference, difference
from tests.interop.draws import draw
from tests.interop.programs import OPERATORS, answer
from tests.interop.shapes import Shape, excluded

_PROGRAMS = int(os.environ.get("TIDEWHEEL_TEST_INTEROP_PROGRAMS", "60"))
_SEED = int(os.environ.get("TIDEWHEEL_TEST_INTEROP_SEED", "1"))

pytestmark = [pytest.mark.slow, pytest.mark.first, pytest.mark.timeout(600 + 10 * _PROGRAMS)]


def test_random_programs_give_the_results_of_kafka_streams(kafka_streams: None) -> None:
    programs = [draw(_SEED, number) for number in range(_PROGRAMS)]
    outputs: Counter[str] = Counter()
    differences: list[object] = []
    reference = Reference()
    try:
        for program, theirs in zip(programs, reference.ask(programs), strict=True):
            ours = answer(program)
            found = difference(program, theirs, ours)
            if found is not None and not found.startswith(DECLARED):
                differences.append((found, program, theirs, ours))
            if "outputs" in ours and "outputs" in theirs:
                outputs["all"] += len(Shape.of(program).outputs())
                outputs["excluded"] += len(excluded(program, ours["describe"]))
    finally:
        reference.close()
    assert not differences, differences[0]
    assert outputs["excluded"] < outputs["all"] / 5


def test_every_operator_occurs_in_programs() -> None:
    drawn = Counter(step["op"] for number in range(400) for step in draw(_SEED, number)["steps"])
    assert drawn.keys() == OPERATORS.keys()
    assert min(drawn.values()) >= 10
