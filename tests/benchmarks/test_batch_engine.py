"""Benchmark of batch tasks: every job gives the directly computed result."""

import tempfile
from functools import partial
from pathlib import Path

import pytest

from benchmarks.batch_engine import Run, measure, measure_join, source_records
from benchmarks.jobs.checks import tally_for
from benchmarks.jobs.expected import expected
from benchmarks.jobs.plan import JOBS
from benchmarks.topics.outputs import Tally
from tidewheel.tasks.processing.engine.output import OutputColumns


def _add(tally: Tally, columns: OutputColumns) -> None:
    tally.add(zip(filter(None, columns.keys), columns.values, strict=True))


@pytest.mark.parametrize("name", JOBS)
def test_a_job_gives_the_result_of_the_direct_computation(name: str) -> None:
    job = JOBS[name]
    specs = job.inputs(1_000)
    topics = [f"input-{number}" for number in range(len(specs))]
    records = {
        topic: list(source_records(topic, spec)) for topic, spec in zip(topics, specs, strict=True)
    }
    timed = set(topics[: len(job.work(specs))])
    tally = tally_for(job.check, "int64")
    with (
        tempfile.TemporaryDirectory() as directory,
        Run(name, topics, Path(directory), partial(_add, tally)) as run,
    ):
        run.process({topic: records[topic] for topic in records.keys() - timed})
        run.process({topic: records[topic] for topic in timed})
    assert not tally.problems(expected(name, specs))


def test_records_find_fewer_rows_in_turns_than_behind_all_rows() -> None:
    _, outputs, _ = measure_join(2_000, interleaved=False)
    _, in_turns, _ = measure_join(2_000, interleaved=True)
    assert outputs > in_turns > 0


def test_measure_returns_the_cost_of_one_record() -> None:
    count, outputs, cost = measure("count_by_key", 2_000)
    assert (count, outputs) == (2_000, 2_000)
    assert cost > 0
