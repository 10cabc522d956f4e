"""Changelogs of batch tasks: a worker that restores them continues like the task itself."""

import tempfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, event, example, given, settings
from hypothesis import strategies as st

from tests.language.draws import Program, config_of
from tests.language.programs import OPERATORS, Step
from tests.streams.batch.oracle import Row, fill_global_stores, run_oracle
from tests.streams.batch.records import Rows, rows_of
from tests.streams.batch.test_laws import HARD, RUNS
from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.buffers.timed_buffer import TimedBuffer
from tidewheel.state_stores.bulk_restore.content import StoredRow, stored_rows
from tidewheel.state_stores.spec import StoreKind
from tidewheel.streams.batch.job import BatchJob
from tidewheel.streams.batch.local_tasks import LocalTasks
from tidewheel.tasks.batch.batch_task import BatchTask
from tidewheel.tasks.processing.engine.output import OutputColumns, headers_of_changelog
from tidewheel.tasks.processing.engine.record_batch import SourceRecords
from tidewheel.tasks.restore.source_restore import SourceRestore, open_source_restore
from tidewheel.tasks.restore.store_restore import StoreRestore
from tidewheel.tasks.task.lifecycle import TaskState
from tidewheel.tasks.task.task import Task

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

#: A restart shifts its times.
CLOCKED = "wall_clock_timer"
#: With headers, the size of a buffer is estimated after a restart.
SIZED = frozenset({"suppress_bytes", "suppress_both"})
#: Above the number of keys: a restart loses the LRU order.
MOST_ENTRIES = 100
#: Time (ms) from which all records are later by a leap: one beyond the retention of windows.
LEAP_FROM_MS = 60
LEAPS = st.sampled_from([0, 0, 150_000])
#: Records between two commits.
COMMIT_EVERY = 7

STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from([*HARD, "as_of_join_grace", "stream_left_join", "process_session"])
        | st.sampled_from(sorted(OPERATORS)),
        st.integers(0, 11),
        st.integers(0, 11),
    ).filter(lambda step: step.operator != CLOCKED),
    min_size=1,
    max_size=5,
)


@contextmanager
def local_tasks(job: BatchJob, rows: Rows) -> Generator[LocalTasks]:
    with (
        tempfile.TemporaryDirectory() as directory,
        LocalTasks(
            job.plan,
            job.config,
            directory=Path(directory),
            now_ms=lambda: 0,
            partition_count=job.partition_count,
        ) as local,
    ):
        fill_global_stores(local, rows)
        yield local


def restored(local: LocalTasks, original: BatchTask, before: Sequence[SourceRecords]) -> BatchTask:
    """Return a copy as a worker starts it: from changelogs, its inputs, and committed positions."""
    task = local._factory(original.task.task_id, local._collector, local.policy)
    task.life.cycle.move_to(TaskState.RESTORING)
    stores = task.stores
    stores.open()
    stores.topic_ids = {at.topic: bytes(16) for at in (*stores.changelogs, *stores.sources)}
    assert {*original.changelog_stores, *stores.sources.values()} == {*stores.specs}
    for store in original.changelog_stores:
        changelog = stores.changelog(store)
        assert changelog is not None
        _restore(task, store, changelog, records_of(original, store, changelog))
    for at, store in stores.sources.items():
        own = (records for records in before if records.topic == at.topic)
        _restore(task, store, at, own, open_source_restore(task.life, at))
    end = original.end()
    task.start(end.next_offsets, end.partition_times_ms, end.operator_times_ms)
    return BatchTask(task, local._collector, local.policy, now_ms=lambda: 0)


def records_of(task: BatchTask, store: str, changelog: TopicPartition) -> Iterator[SourceRecords]:
    first = 0
    for columns in task.changelog(store):
        count = len(columns.keys)
        headers = headers_of_changelog(count, columns.headers, columns.row_headers)
        offsets = range(first, first + count)
        yield SourceRecords(changelog.topic, changelog.partition, offsets, *columns[:3], headers)
        first += count


def _restore(
    task: Task,
    store: str,
    partition: TopicPartition,
    records: Iterable[SourceRecords],
    source: SourceRestore | None = None,
) -> None:
    restore = StoreRestore(
        task=task, store=store, partition=partition, start=0, position=0, end=None, known_ms=0,
        milestone=0, source=source,
    )  # fmt: skip
    for run in records:
        restore.apply(run)


def assert_each_key_comes_once(task: BatchTask, store: str) -> None:
    """Check that no key comes twice, and versions of a key from the oldest to the newest."""
    is_versioned = task.task.stores.specs[store].kind is StoreKind.VERSIONED
    times: dict[bytes, int] = {}
    for columns in task.changelog(store):
        for key, timestamp in zip(columns.keys, columns.timestamps, strict=True):
            assert key not in times or (is_versioned and times[key] < timestamp)
            times[key] = timestamp


def assert_same_state(task: BatchTask, copy: BatchTask) -> None:
    assert copy.end() == task.end()
    for store in task.stores:
        assert _times(copy, store) == _times(task, store)
        assert _rows(copy, store) == _rows(task, store)


def _times(task: BatchTask, store: str) -> tuple[int, int]:
    """Return a store's time and last sequence number; its database may lag behind them."""
    buffer = task.task.stores.stores[store].buffer
    return (buffer.time_ms, buffer.seq) if isinstance(buffer, TimedBuffer) else (-1, 0)


def _rows(task: BatchTask, store: str) -> list[StoredRow]:
    rows = _disk_rows(task, store)
    return list(stored_rows(task.task.stores.specs[store], rows, _times(task, store)[0]))


def _disk_rows(task: BatchTask, store: str) -> list[tuple[bytes, bytes]]:
    return list(task.task.stores.database(store).iterate(store, None, None))


def process(task: BatchTask, records: Sequence[SourceRecords]) -> list[dict[str, list[Row]]]:
    """Process records one by one; return the outputs of each commit, by topic."""
    outputs: list[dict[str, list[Row]]] = []
    for count, record in enumerate(records):
        task.task.group.add(record)
        while task.task.group.records:
            task.task.process(1)
        task.task.commit_requested = False
        if count % COMMIT_EVERY == 0:
            outputs.append(_by_topic(task.commit()))
    outputs.append(_by_topic(task.commit()))
    return outputs


def _by_topic(outputs: Iterable[OutputColumns]) -> dict[str, list[Row]]:
    rows: dict[str, list[Row]] = {}
    for columns in outputs:
        headers = map(tuple, columns.headers or [()] * len(columns))
        rows.setdefault(columns.topic, []).extend(
            map(Row, columns.keys, columns.values, columns.timestamps, headers)
        )
    return rows


def _with_leap(rows: Rows, leap_ms: int) -> Rows:
    return {
        at: [
            row._replace(timestamp=row.timestamp + leap_ms * (row.timestamp >= LEAP_FROM_MS))
            for row in every
        ]
        for at, every in rows.items()
    }


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@example([Step("as_of_join_grace", 0, 1)], 1, 1, 0.8, 0, "rocksdb", "DEFAULT")
@example([Step("process_window", 0, 1)], 1, 1, 0.5, 0, "rocksdb", "DEFAULT")
@example([Step("stream_outer_join", 0, 1)], 1, 1, 0.5, 0, "in_memory", "HEADERS")
@example([Step("session", 0, 1)], 1, 1, 0.9, 150_000, "rocksdb", "DEFAULT")
@example([Step("process_ttl", 0, 1)], 1, 1, 0.5, 0, "rocksdb", "DEFAULT")
@example([Step("suppress_close", 0, 1)], 1, 1, 0.5, 0, "rocksdb", "HEADERS")
@given(
    steps=STEPS,
    seed=st.integers(0, 1_000_000),
    run=RUNS,
    cut=st.floats(0, 1),
    leap=LEAPS,
    suppliers=st.sampled_from(["rocksdb", "in_memory"]),
    store_format=st.sampled_from(["DEFAULT", "HEADERS"]),
)
def test_a_restored_task_continues_like_the_task_itself(
    steps: list[Step],
    seed: int,
    run: int,
    cut: float,
    leap: int,
    suppliers: Any,
    store_format: Any,
) -> None:
    assume(store_format == "DEFAULT" or SIZED.isdisjoint(step.operator for step in steps))
    config = config_of(0).replace(dsl_store_suppliers=suppliers, dsl_store_format=store_format)
    program = Program.of(steps, config, most_entries=MOST_ENTRIES)
    job = BatchJob.of(program.topology, config, dict.fromkeys(program.inputs, 1))
    rows = _with_leap(rows_of(seed, program.inputs, 1, run), leap)
    for task_id, records in run_oracle(job, rows).inputs.items():
        place = round(cut * len(records))
        before, after = records[:place], records[place:]
        with local_tasks(job, rows) as local, local_tasks(job, rows) as other:
            task = local.start(task_id)
            process(task, before)
            for store in task.changelog_stores:
                spec = task.task.stores.specs[store]
                event(f"{spec.kind}{' with headers' if spec.keeps_headers else ''}")
                assert_each_key_comes_once(task, store)
            copy = restored(other, task, before)
            for store in task.stores:
                if task.task.stores.specs[store].ttl_ms is None:
                    assert _disk_rows(copy, store) == _disk_rows(task, store)
            assert_same_state(task, copy)
            assert process(task, after) == process(copy, after)
            assert_same_state(task, copy)
            copy.close()
            task.close()
