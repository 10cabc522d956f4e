"""Tasks whose inputs interleave finely: joint batches give the results of single records.

Both tasks get the same records. After each call of `process` the second task catches up record by
record, so a commit may follow any call.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.language.draws import Program, config_of
from tests.language.programs import Step
from tests.streams.batch.records import columns_of, rows_of
from tests.tasks.loop.bench import Disk, Fuse
from tidewheel import (
    DeadLetter,
    ErrorResponse,
    RecordFailedError,
    StreamsBuilder,
    StreamsConfig,
    Topology,
)
from tidewheel.rebalance.model import TaskId
from tidewheel.streams.batch.local_tasks import LocalTasks
from tidewheel.tasks.batch.batch_task import BatchTask
from tidewheel.tasks.kafka.internal_topics import plan_application
from tidewheel.tasks.processing.engine.graph import TaskGraph
from tidewheel.tasks.processing.engine.record_batch import SourceRecords
from tidewheel.tasks.task.active_task import ActiveTask

SETTINGS = settings(
    max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@dataclass
class Calls:
    """Calls of user functions, by function; `poison` fails."""

    poison: Callable[[str], bool]
    made: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])

    def of(self, name: str) -> Callable[..., str]:
        def called(*arguments: Any) -> str:
            self.made.setdefault(name, []).append(arguments)
            mixed = f"{crc32(repr(arguments).encode()):08x}"
            # A failing view is a look-up of the whole batch, before any call of the joiner.
            if "view" not in name and self.poison(mixed):
                raise ValueError(mixed)
            return mixed

        return called

    @property
    def in_order(self) -> dict[str, list[Any]]:
        """Return the calls in order; sorted if two operators share the function."""
        return {
            name: sorted(calls, key=repr) if name.startswith("shared") else calls
            for name, calls in self.made.items()
        }

    def on_error(self, context: Any, record: Any, error: Exception) -> ErrorResponse:
        place = (context.topic, context.partition, context.offset, context.headers)
        name = f"handler of {context.node}"
        if context.stage == "deserialization":
            name += f", {context.topic}"  # a joint batch decodes one input after the other
        self.made.setdefault(name, []).append(
            (context.stage, place, context.raw_key, context.raw_value, record, str(error))
        )
        if context.stage == "deserialization":
            return ErrorResponse(action="continue")
        letter = DeadLetter(topic="letters", key=context.raw_key, value=context.raw_value)
        return ErrorResponse(action="continue", dead_letter_records=(letter,))


class Side:
    """One task and all it has done."""

    def __init__(
        self, topology: Topology, config: StreamsConfig, number: int, calls: Calls
    ) -> None:
        self.calls = calls
        plan = plan_application(
            topology.spec(config), "app", dict.fromkeys(topology.source_topics, 1)
        )
        local = LocalTasks(
            plan,
            config,
            directory=Path(),
            now_ms=lambda: 0,
            partition_count=lambda _topic: 1,
            open_database=Disk(Fuse()).open,
        )
        self.batch_task: BatchTask = local.start(TaskId(number, 0))
        task = self.batch_task.task
        assert isinstance(task, ActiveTask)
        self.task = task
        self.outputs: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
        self._stack = ExitStack()
        self._stack.callback(local.close)
        self._stack.callback(self.batch_task.close)

    def process(self, limit: int) -> int:
        try:
            return self.task.process(limit)
        finally:
            self._collect(self.batch_task.collector.pop_staged())

    def commit(self) -> None:
        self._collect(self.batch_task.commit())

    def _collect(self, staged: list[Any]) -> None:
        for columns in staged:
            headers = columns.headers or [()] * len(columns)
            self.outputs[columns.topic, columns.node] += zip(
                columns.keys, columns.values, columns.timestamps, headers, strict=True
            )

    @property
    def done(self) -> dict[str, Any]:
        """Return all that must be equal after the same records."""
        task = self.task
        counters = task.counters
        return {
            "offsets": task.next_offsets,
            "partition times": task.partition_times_ms,
            "stream time": task.stream_time_ms,
            "operator times": task.operator_times_ms(),
            "outputs": self.outputs,
            "calls": self.calls.in_order,
            "counts": (counters.processed, counters.skipped, counters.dropped),
            "drops": {reason: drop.count for reason, drop in counters.drops.items()},
            "nodes": {name: node.processed for name, node in counters.nodes.items()},
        }

    @property
    def rows(self) -> dict[str, list[Any]]:
        return {store: list(self.batch_task.rows(store)) for store in self.batch_task.stores}

    def close(self) -> None:
        self._stack.close()


@dataclass(frozen=True)
class Pace:
    """Sizes of chunks and slabs, and whether a commit follows a call."""

    chunk: int
    limits: tuple[int, ...]
    commits: tuple[bool, ...]

    def columns(self, seed: int, topics: list[str], run: int) -> list[SourceRecords]:
        rows = rows_of(seed, topics, 1, run)
        # Chunks of all topics in turns, so that all inputs have records most of the time.
        columns = [list(chunks) for chunks in columns_of(rows, self.chunk).values()]
        ordered: list[SourceRecords] = []
        while any(columns):
            ordered += [chunks.pop(0) for chunks in columns if chunks]
        return ordered


PACES = st.builds(
    Pace,
    chunk=st.sampled_from([3, 20, 1_000]),
    limits=st.tuples(st.sampled_from([1, 7, 10_000]), st.sampled_from([5, 30, 10_000])),
    commits=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)


def compare(joint: Side, single: Side, chunks: list[SourceRecords], pace: Pace) -> None:
    turn = 0
    for chunk in chunks:
        joint.task.group.add(chunk)
        single.task.group.add(chunk)
        # No input may be empty: its lag is unknown.
        while joint.task.ready(0):
            joint.process(pace.limits[turn % len(pace.limits)])
            catch_up(single, joint)
            if pace.commits[turn % len(pace.commits)]:
                joint.commit()
                single.commit()
                assert joint.rows == single.rows
            assert joint.done == single.done
            turn += 1


def catch_up(single: Side, joint: Side) -> None:
    while single.task.counters.processed < joint.task.counters.processed:
        assert single.task.ready(0), "a single record would have to wait"
        single.process(1)


@contextmanager
def counted_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Count the records of each joint batch."""
    sizes: list[int] = []
    run_together = TaskGraph.run_together

    def counted(graph: TaskGraph, batches: Any) -> None:
        sizes.append(sum(len(batch) for _, batch, _ in batches))
        run_together(graph, batches)

    with monkeypatch.context() as patch:
        patch.setattr(TaskGraph, "run_together", counted)
        yield sizes


#: Operators of keyed tasks that judge no lateness.
KEYED = (
    "table_lookup", "table_left_lookup", "table_join", "table_left_join", "table_outer_join", "count",
    "table_filter_stored", "table_map_values_stored", "to_table", "reduce", "filter", "flat_map_values", "merge",
    "select_key", "map_values_later", "map_values_batch", "cogroup", "foreach",
)  # fmt: skip


def test_joint_batches_give_the_results_of_single_records(monkeypatch: pytest.MonkeyPatch) -> None:
    @SETTINGS
    @given(
        steps=st.lists(
            st.builds(Step, st.sampled_from(KEYED), st.integers(0, 11), st.integers(0, 11)),
            max_size=5,
        ),
        seed=st.integers(0, 1_000_000),
        run=st.sampled_from([1, 1, 3, 40]),
        cache_bytes=st.sampled_from([0, 1 << 20]),
        pace=PACES,
    )
    def check(steps: list[Step], seed: int, run: int, cache_bytes: int, pace: Pace) -> None:
        config = config_of(cache_bytes)
        sides: list[tuple[Program, Side]] = []
        with ExitStack() as stack:
            for _ in range(2):
                program = Program.of([Step("table_lookup", 0, 0), *steps], config)
                calls = Calls(lambda _: False, program.pool.calls)
                side = Side(program.topology, config, number_of(program, config), calls)
                stack.callback(side.close)
                sides.append((program, side))
            (program, joint), (_, single) = sides
            topics = sorted(partition.topic for partition in joint.task.inputs)
            event(f"{len(topics)} inputs")
            event("joint" if joint.task._joint_ranks is not None else "not joint")
            compare(joint, single, pace.columns(seed, topics, run), pace)

    with counted_parts(monkeypatch) as sizes:
        check()
    assert len(sizes) > 100
    assert sum(sizes) > 2 * len(sizes)


def number_of(program: Program, config: StreamsConfig) -> int:
    """Return the sub-topology of the look-up, which reads a stream and a table."""
    spec = program.topology.spec(config).place_of("rows-store")
    assert spec is not None, "a table of a topic is in a task"
    return spec.id


def joined(builder: StreamsBuilder, calls: Calls) -> None:
    builder.stream("a").map_values(calls.of("map")).join(
        builder.table("b", store="rows"), calls.of("join")
    ).to("out")


def joined_left(builder: StreamsBuilder, calls: Calls) -> None:
    rows = builder.table("b").filter(lambda value: value > "v4", store="kept")
    joined = builder.stream("a").left_join(rows, calls.of("join"))
    joined.flat_map_values(lambda value: [value, None, value][: len(value) % 4]).to("out")
    joined.group_by_key().reduce(calls.of("reduce")).to_stream().to("reduced")


def joined_twice(builder: StreamsBuilder, calls: Calls) -> None:
    rows, others = builder.table("b"), builder.table("c")
    stream = builder.stream("a").join(rows, calls.of("first"))
    stream.left_join(others.map_values(calls.of("shared view")), calls.of("second")).to("out")


def tables(builder: StreamsBuilder, calls: Calls) -> None:
    rows = builder.table("a").outer_join(
        builder.table("b"), calls.of("shared outer join"), store="joined"
    )
    rows.join(builder.table("c"), calls.of("shared join")).to_stream().to("out")


def aggregates(builder: StreamsBuilder, calls: Calls) -> None:
    """Streams that share a topic node, whose table others read."""
    both = builder.stream(["a", "b"])
    table = both.group_by_key().aggregate(str, calls.of("aggregate"), store="sums")
    builder.stream("c").join(table, calls.of("join")).to("out")


@pytest.mark.parametrize("build", [joined, joined_left, joined_twice, tables, aggregates])
def test_calls_errors_and_dead_letters_are_those_of_single_records(
    build: Callable[[StreamsBuilder, Calls], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    @SETTINGS
    @given(
        seed=st.integers(0, 1_000_000),
        run=st.sampled_from([1, 1, 2]),
        poison=st.sampled_from("0123"),
        extracts=st.booleans(),
        pace=PACES,
    )
    def check(seed: int, run: int, poison: str, *, extracts: bool, pace: Pace) -> None:
        with ExitStack() as stack:
            joint, single = (
                stack.enter_context(failing_side(build, poison, extracts=extracts))
                for _ in range(2)
            )
            topics = sorted(partition.topic for partition in joint.task.inputs)
            compare(joint, single, corrupted(pace.columns(seed, topics, run)), pace)

    with counted_parts(monkeypatch) as sizes:
        check()
    assert sum(sizes) > 2 * len(sizes) > 200


@contextmanager
def failing_side(
    build: Callable[[StreamsBuilder, Calls], None], poison: str, *, extracts: bool = False
) -> Iterator[Side]:
    calls = Calls(lambda mixed: mixed.startswith(poison))
    config = config_of(0).model_copy(
        update={
            "processing_exception_handler": calls.on_error,
            "deserialization_exception_handler": calls.on_error,
            "default_timestamp_extractor": partial(_extracted) if extracts else None,
        }
    )
    builder = StreamsBuilder()
    build(builder, calls)
    side = Side(builder.build(config), config, 0, calls)
    try:
        yield side
    finally:
        side.close()


def _extracted(record: Any, partition_time: int) -> int:
    """Return the time, a late one, or one that drops the record."""
    place = crc32(b"%d" % record.offset) % 20
    return -1 if place == 0 else max(record.timestamp - place, partition_time // 2)


def corrupted(chunks: list[SourceRecords]) -> list[SourceRecords]:
    """Return the records, of which some do not decode."""
    return [
        SourceRecords(
            chunk.topic,
            chunk.partition,
            chunk.offsets,
            chunk.raw_keys,
            [b"\xff" if crc32(value or b"") % 17 == 0 else value for value in chunk.raw_values],
            chunk.timestamps,
            chunk.headers,
        )
        for chunk in chunks
    ]


@given(seed=st.integers(0, 1_000_000), place=st.integers(1, 30))
def test_a_failure_names_the_record_that_fails_alone(seed: int, place: int) -> None:
    """And no offset passes that record."""
    joint, passed = failure_of(seed, place, limit=10_000)
    single, _ = failure_of(seed, place, limit=1)
    assert str(joint) == str(single)
    if joint is not None:
        assert joint.offset is not None
        assert passed[joint.topic] <= joint.offset


def failure_of(
    seed: int, place: int, *, limit: int
) -> tuple[RecordFailedError | None, dict[str | None, int]]:
    """Return the error of the joiner's call at that place, and the next offsets by topic."""
    calls = Calls(lambda _: len(calls.made["join"]) == place)
    builder = StreamsBuilder()
    builder.stream("a").join(builder.table("b"), calls.of("join")).to("out")
    config = config_of(0)
    side = Side(builder.build(config), config, 0, calls)
    for chunk in Pace(1_000, (limit,), (False,)).columns(seed, ["a", "b"], 1):
        side.task.group.add(chunk)
    error: RecordFailedError | None = None
    try:
        while side.process(limit):
            pass
    except RecordFailedError as failure:
        error = failure
    side.close()
    return error, {at.topic: offset for at, offset in side.task.next_offsets.items()}
