"""Random topologies in batch runs: results equal the oracle's, for all sizes.

With one partition they also equal the test driver's, where its order is the canonical one: it
processes a record and all that follow from it before the next one.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from tests.language.draws import Program, config_of
from tests.language.programs import GLOBALLY, OPERATORS, Step
from tests.streams.batch.oracle import Result, Row, run_oracle
from tests.streams.batch.records import Rows, columns_of, comparable, rows_of
from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.bulk_restore.content import StoredRow
from tidewheel.streams.batch.inline import run_inline
from tidewheel.streams.batch.job import BatchJob, TaskSettings
from tidewheel.tasks.processing.engine.graph import TaskGraph
from tidewheel.tasks.processing.engine.record_batch import JointBatch, SourceRecords
from tidewheel.testing import TopologyTestDriver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

#: Drawn as often as all other operators together: each of them broke a design of batch runs.
HARD = (
    "foreign_key_join", "foreign_key_left_join", "session", "suppress_close", "suppress_records",
    "tumbling_on_close", "table_lookup", "stream_outer_join", "aggregate", "grouped_table_reduce",
    "repartition", "select_key", "stream_timer", "wall_clock_timer",
)  # fmt: skip
STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(HARD) | st.sampled_from(sorted(OPERATORS)),
        st.integers(0, 11),
        st.integers(0, 11),
    ),
    min_size=1,
    max_size=5,
)
#: Records between two that change the topic: 1 interleaves the inputs finely.
RUNS = st.sampled_from([1, 1, 3, 40])

SIZES = st.builds(
    TaskSettings,
    batch_records=st.sampled_from([1, 2, 7, 10_000]),
    blob_records=st.sampled_from([1, 3, 2_000]),
    uncommitted_bytes_max=st.sampled_from([0, 2_000, 1 << 20]),
)

SETTINGS = settings(
    max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@SETTINGS
@given(
    steps=STEPS,
    seed=st.integers(0, 1_000_000),
    partitions=st.integers(1, 3),
    run=RUNS,
    sizes=SIZES,
    chunk=st.sampled_from([1, 5, 1_000]),
)
def test_a_batch_run_gives_the_results_of_the_oracle(
    steps: list[Step], seed: int, partitions: int, run: int, sizes: TaskSettings, chunk: int
) -> None:
    program = Program.of(steps, config_of(0))
    job = BatchJob.of(program.topology, config_of(0), dict.fromkeys(program.inputs, partitions))
    rows = rows_of(seed, program.inputs, partitions, run)
    event("circular" if job.batch.circular else "no circle")
    event(f"{max(job.batch.levels.values())} levels")
    result = comparable(run_inline(job, columns_of(rows, chunk), settings=sizes))
    expected = run_oracle(job, rows)
    assert result.outputs == expected.outputs
    assert result.stores == expected.stores
    assert result.ends == expected.ends


#: Operators of keyed tasks that judge no lateness.
KEYED = (
    "table_lookup", "table_left_lookup", "table_join", "table_left_join", "table_outer_join",
    "table_filter_stored", "table_map_values_stored", "to_table", "reduce", "count",
    "filter", "flat_map_values", "merge", "select_key", "to_multicast",
)  # fmt: skip


def test_joint_batches_change_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    run_together = TaskGraph.run_together

    def counted(graph: TaskGraph, batches: Sequence[JointBatch]) -> None:
        sizes.append(sum(len(batch) for _, batch, _ in batches))
        run_together(graph, batches)

    monkeypatch.setattr(TaskGraph, "run_together", counted)

    @SETTINGS
    @given(
        steps=st.lists(
            st.builds(Step, st.sampled_from(KEYED), st.integers(0, 11), st.integers(0, 11)),
            max_size=5,
        ),
        seed=st.integers(0, 1_000_000),
        sizes=SIZES,
    )
    def compare(steps: list[Step], seed: int, sizes: TaskSettings) -> None:
        program = Program.of([Step("table_lookup", 0, 0), *steps], config_of(0))
        job = BatchJob.of(program.topology, config_of(0), dict.fromkeys(program.inputs, 1))
        rows = rows_of(seed, program.inputs, 1, 1)
        result = comparable(run_inline(job, columns_of(rows, 1_000), settings=sizes))
        expected = run_oracle(job, rows)
        assert result.outputs == expected.outputs
        assert result.stores == expected.stores
        assert result.ends == expected.ends

    compare()
    assert len(sizes) > 100
    assert sum(sizes) > 2 * len(sizes)


def _takes_turns(job: BatchJob) -> bool:
    """Return True if no task merges repartitioned records with others: the driver's order differs.

    Live workers merge them by time, and so does a batch run.
    """
    return not any(
        len(planned.topic_partitions) > 1 and job.batch.written & planned.topic_partitions.keys()
        for planned in job.plan.subtopologies.values()
    )


def _driven(program: Program, rows: Rows) -> Result:
    """Pipe single records in canonical order."""
    piped: list[tuple[int, str, int, Row]] = []
    for at, every in rows.items():
        latest = -1
        for place, row in enumerate(every):
            latest = max(latest, row.timestamp)
            piped.append((latest, at.topic, place, row))
    result = Result()
    with TopologyTestDriver(program.topology, config_of(0)) as driver:
        for _, topic, _, row in sorted(piped, key=lambda each: each[:3]):
            raw = driver.create_input_topic(topic, key_serde=bytes, value_serde=bytes)
            raw.pipe_input(row.key, row.value, row.timestamp, row.headers)
        for topic in program.pool.outputs:
            output = driver.create_output_topic(topic, key_serde=bytes, value_serde=bytes)
            for record in output.read_records():
                row = Row(record.key, record.value, record.timestamp, tuple(record.headers))
                result.outputs.setdefault(TopicPartition(topic, 0), []).append(row)
        for task in driver._batch_tasks.values():
            for store in task.stores:
                result.stores[store] = {0: list(task.rows(store))}
    return result


@SETTINGS
@given(steps=STEPS, seed=st.integers(0, 1_000_000), run=RUNS)
def test_a_batch_run_of_one_partition_gives_the_results_of_the_test_driver(
    steps: list[Step], seed: int, run: int
) -> None:
    # The driver's wall clock stands still, and it reads global tables with the other topics.
    assume({"wall_clock_timer", *GLOBALLY}.isdisjoint(step.operator for step in steps))
    program = Program.of(steps, config_of(0))
    job = BatchJob.of(program.topology, config_of(0), dict.fromkeys(program.inputs, 1))
    assume(_takes_turns(job))
    rows = rows_of(seed, program.inputs, 1, run)
    result = comparable(run_inline(job, columns_of(rows, 1_000)))
    expected = _driven(program, rows)
    assert result.outputs == expected.outputs
    assert result.stores == expected.stores


@SETTINGS
@given(steps=STEPS, seed=st.integers(0, 1_000_000), run=RUNS)
def test_offsets_below_zero_change_no_result(steps: list[Step], seed: int, run: int) -> None:
    """History of a topic with few records in Kafka has such offsets."""
    program = Program.of(steps, config_of(0))
    job = BatchJob.of(program.topology, config_of(0), dict.fromkeys(program.inputs, 2))
    columns = columns_of(rows_of(seed, program.inputs, 2, run), 5)
    shifted = {
        at: [
            SourceRecords(
                at.topic,
                at.partition,
                [offset - 30 for offset in records.offsets],
                *records.raw[3:],
            )
            for records in runs
        ]
        for at, runs in columns.items()
    }
    expected = comparable(run_inline(job, columns))
    result = comparable(run_inline(job, shifted))
    assert result.outputs == expected.outputs
    assert _without_offsets(job, result) == _without_offsets(job, expected)
    for task_id, end in expected.ends.items():
        for at, offset in end.next_offsets.items():
            moved = 30 if at in columns else 0
            assert result.ends[task_id].next_offsets[at] == offset - moved


def _without_offsets(job: BatchJob, result: Result) -> dict[str, dict[int, list[StoredRow]]]:
    """Return the stored rows; without values where a buffer stores offsets in them."""
    internal = {
        store.name
        for planned in job.plan.subtopologies.values()
        for store in planned.spec.stores
        if store.internal_rows or store.changelog_headers
    }
    return {
        store: {
            partition: [replace(row, value=b"") for row in rows] if store in internal else rows
            for partition, rows in stored.items()
        }
        for store, stored in result.stores.items()
    }


@SETTINGS
@given(
    operator=st.sampled_from(["foreign_key_join", "foreign_key_left_join"]),
    seed=st.integers(0, 1_000_000),
    run=RUNS,
)
def test_foreign_key_joins_end_in_the_state_of_the_test_driver(
    operator: str, seed: int, run: int
) -> None:
    """Late rows among them; intermediate results differ, as they do between live workers.

    So may the last result of an inner join: a response to a row that was replaced meanwhile is
    dropped, and there is none to a row without a partner.
    """
    program = Program.of([Step(operator, 0, 1)], config_of(0))
    job = BatchJob.of(program.topology, config_of(0), dict.fromkeys(program.inputs, 1))
    rows = rows_of(seed, program.inputs, 1, run)
    result = comparable(run_inline(job, columns_of(rows, 1_000)))
    expected = _driven(program, rows)
    assert result.stores == expected.stores
    if operator == "foreign_key_left_join":
        assert _last(result) == _last(expected)


def _last(result: Result) -> dict[bytes | None, bytes]:
    rows = {row.key: row.value for rows in result.outputs.values() for row in rows}
    return {key: value for key, value in rows.items() if value is not None}
