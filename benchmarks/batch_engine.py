"""Cost of the engine without a broker: each job of the suite `throughput` in batch tasks.

    python -m benchmarks.batch_engine [--jobs count_by_key,word_count] [--records 500000] [--rounds 3]

Each line has microseconds of processor time per input record, of the whole process: the median and
the minimum of all rounds. Records of a table that a live run loads before the timed work are not
timed here either. There is one partition, no cache, and no changelog.

The jobs `join_…` are whole batch runs of a stream-table join with as many rows as records: all rows
first, or rows and records in turns.
"""

import argparse
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

from benchmarks.jobs.contents import input_blocks
from benchmarks.jobs.plan import JOBS
from benchmarks.peers.tidewheel.throughput import topology
from benchmarks.topics.generator import InputSpec
from tidewheel import StreamsConfig
from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.streams.batch.inline import run_inline
from tidewheel.streams.batch.job import BatchJob
from tidewheel.streams.batch.local_tasks import LocalTasks
from tidewheel.streams.worker.topic_setup import spec_of
from tidewheel.tasks.batch.batch_task import BatchTask
from tidewheel.tasks.kafka.internal_topics import plan_application
from tidewheel.tasks.processing.engine.output import OutputColumns
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

_APPLICATION = "batch-engine"
_OUTPUT = "output"

Columns = dict[str, list[SourceRecords]]


class Run:
    """One job in batch tasks, one for each sub-topology.

    Attributes:
        on_output: Receives the records for the job's output topic.
    """

    def __init__(
        self,
        job: str,
        topics: list[str],
        directory: Path,
        on_output: Callable[[OutputColumns], object],
    ) -> None:
        names = dict(zip(("input_topic", "other_topic"), topics, strict=False))
        built = topology({"job": job, "output_topic": _OUTPUT, "cache_bytes": "0", **names})
        config = StreamsConfig(
            application_id=_APPLICATION,
            bootstrap_servers="unused:9092",
            statestore_cache_max_bytes=0,
            emit_interval_ms=0,
        )
        plan = plan_application(spec_of(built, config), _APPLICATION, dict.fromkeys(topics, 1))
        self.on_output = on_output
        self._tasks: list[BatchTask] = []
        self._stack = ExitStack()
        local = LocalTasks(
            plan, config, directory=directory, now_ms=lambda: 0, partition_count=lambda _topic: 1
        )
        self._stack.enter_context(local)
        for number in plan.subtopologies:
            self._tasks.append(local.start(TaskId(number, 0)))
            self._stack.callback(self._tasks[-1].close)
        self._uncommitted_bytes_max = config.statestore_uncommitted_max_bytes
        self._offsets: Counter[str] = Counter()

    def process(self, columns: Columns) -> None:
        """Process records and all that follow from them."""
        while columns:
            made: Columns = {}
            for task in self._tasks:
                for output in self._process(task, columns):
                    if output.topic == _OUTPUT:
                        self.on_output(output)
                    else:
                        made.setdefault(output.topic, []).append(self._records(output))
            columns = made

    def _process(self, task: BatchTask, columns: Columns) -> Iterator[OutputColumns]:
        inputs = {at: iter(columns[at.topic]) for at in task.task.inputs if at.topic in columns}
        return task.process(inputs, uncommitted_bytes_max=self._uncommitted_bytes_max)

    def _records(self, output: OutputColumns) -> SourceRecords:
        first = self._offsets[output.topic]
        self._offsets[output.topic] += len(output)
        offsets = range(first, first + len(output))
        columns = (output.keys, output.values, output.timestamps, output.headers)
        return SourceRecords(output.topic, 0, offsets, *columns)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def source_records(topic: str, spec: InputSpec) -> Iterator[SourceRecords]:
    first = 0
    for block in input_blocks(spec):
        keys, values, times, _ = zip(*block, strict=True)
        yield SourceRecords(topic, 0, range(first, first + len(block)), keys, values, times, None)
        first += len(block)


def measure(name: str, records: int) -> tuple[int, int, float]:
    """Return the timed records, their outputs, and microseconds per record."""
    job = JOBS[name]
    specs = job.inputs(int(records * job.record_share))
    topics = [f"input-{number}" for number in range(len(specs))]
    work = [
        (topic, list(source_records(topic, spec)))
        for topic, spec in zip(topics, specs, strict=True)
    ]
    timed = len(job.work(specs))
    outputs: list[int] = []
    with (
        tempfile.TemporaryDirectory() as directory,
        Run(name, topics, Path(directory), lambda made: outputs.append(len(made))) as run,
    ):
        run.process(dict(work[timed:]))
        outputs.clear()
        started = time.process_time()
        run.process(dict(work[:timed]))
        spent = time.process_time() - started
    count = sum(spec.records for spec in specs[:timed])
    return count, sum(outputs), spent / count * 1e6


def measure_join(records: int, *, interleaved: bool) -> tuple[int, int, float]:
    """Return the figures of a stream-table join in a batch run with as many rows as records.

    Rows and records alternate, or all rows are first.
    """
    stream = InputSpec(records=records // 2, keys=10_000, content="timed")
    columns = {"input-0": list(source_records("input-0", stream))}
    columns["input-1"] = list(source_records("input-1", replace(stream, seed=stream.seed + 1)))
    for rows_of_table in () if interleaved else columns["input-1"]:
        rows_of_table.timestamps = [time - stream.records for time in rows_of_table.timestamps]
    built = topology(
        {
            "job": "stream_table_join",
            "input_topic": "input-0",
            "other_topic": "input-1",
            "output_topic": _OUTPUT,
            "cache_bytes": "0",
        }
    )
    config = StreamsConfig(application_id=_APPLICATION, bootstrap_servers="unused:9092")
    job = BatchJob.of(built, config, dict.fromkeys(columns, 1))
    inputs = {TopicPartition(topic, 0): chunks for topic, chunks in columns.items()}
    started = time.process_time()
    result = run_inline(job, inputs)
    spent = time.process_time() - started
    outputs = sum(len(records) for records in result.records(_OUTPUT))
    return records, outputs, spent / records * 1e6


_JOINS: Mapping[str, Callable[[int], tuple[int, int, float]]] = {
    "join_rows_first": partial(measure_join, interleaved=False),
    "join_in_turns": partial(measure_join, interleaved=True),
}


def rows(jobs: Iterable[str], records: int, rounds: int) -> Iterator[str]:
    for job in jobs:
        run = _JOINS.get(job, partial(measure, job))
        measured = [run(records) for _ in range(rounds)]
        count, outputs, _ = measured[0]
        costs = [cost for _, _, cost in measured]
        yield f"{job:20} {count:9} {outputs:9} {statistics.median(costs):7.2f} {min(costs):7.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", default=",".join([*JOBS, *_JOINS]))
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{'job':20} {'records':>9} {'outputs':>9} {'median':>7} {'minimum':>7}  µs per record")
    for row in rows(options.jobs.split(","), options.records, options.rounds):
        print(row, flush=True)


if __name__ == "__main__":
    main()
