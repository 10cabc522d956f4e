"""Batch run: reads frames of source topics and runs the passes, each a Spark job."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.bulk_restore.frame_source import FrameSource
from tidewheel.streams.bulk.batch.blob_streams import Stream
from tidewheel.streams.bulk.batch.executors import (
    Counted,
    PassOrder,
    StageResult,
    Work,
    place_records,
    read_blobs,
    run_task,
    write_source,
)
from tidewheel.streams.bulk.batch.rows import OFFSET, TIMESTAMP, RecordEncoder, columns_of
from tidewheel.streams.bulk.batch.source_segments import Segment, StoredRows
from tidewheel.streams.bulk.bootstrap.rows import converted_key_type
from tidewheel.streams.bulk.driver import OnProgress, limited_reporter, reporter
from tidewheel.tasks.batch.passes import Pass
from tidewheel.tasks.processing.api.topology_spec import SourceSpec

if TYPE_CHECKING:
    from tidewheel.state_stores.bulk_restore.spark.frames import Placed
    from tidewheel.state_stores.bulk_restore.spark.job import SparkSession

#: Result of a task that wrote a partition's rows.
Written = TypeVar("Written")


class BatchRun:
    """Spark jobs of one run, and the results of their tasks.

    Attributes:
        sources: Records of each partition of the source topics, in order.
        passes: Results of each pass that has run.
    """

    def __init__(self, session: "SparkSession", work: Work, on_progress: OnProgress | None) -> None:
        self.work = work
        self.sources: dict[TopicPartition, tuple[Segment, ...]] = {}
        self.passes: list[list[StageResult]] = []
        self._session = session
        self._on_progress = on_progress

    def read(
        self, topic: str, frame: Any, source: SourceSpec, partitions: int
    ) -> dict[TopicPartition, StoredRows]:
        """Encode a frame's rows, and write them by partition and in order."""
        frame = self.frame_of(frame, source)
        columns = columns_of(topic, frame.dtypes)
        encoder = RecordEncoder(
            topic=topic,
            partitions=partitions,
            columns=columns,
            key_serde=source.key_serde,
            value_serde=source.value_serde,
        )
        results = self.write_rows(
            f"reading {topic}",
            frame,
            encoder,
            partial(place_records, encoder),
            partial(write_source, self.work, topic, OFFSET in columns.optional),
        )
        return {
            TopicPartition(topic, result.task[1]): StoredRows(
                file=result.file, records=result.records[topic]
            )
            for result in results
            if result.records[topic]
        }

    def frame_of(self, frame: Any, source: SourceSpec) -> Any:
        """Return the data frame that a topic's `frame` is or names."""
        from tidewheel.state_stores.bulk_restore.spark.sources import read_frame  # noqa: PLC0415 - see bulk_session

        if not isinstance(frame, FrameSource):
            return frame
        return read_frame(self._session, frame, key_type=converted_key_type(source.key_serde))

    def write_rows(
        self,
        step: str,
        frame: Any,
        encoder: RecordEncoder,
        place: Callable[[Iterable[Mapping[str, Any]], Counted], Iterator[Any]],
        write: Callable[[int, Iterator[Any], Counted], Written],
    ) -> list[Written]:
        """Run a job that places a frame's rows, and writes them with a task for each partition."""
        from tidewheel.state_stores.bulk_restore.spark import frames, sources  # noqa: PLC0415 - see bulk_session

        for column in encoder.order_by:
            frames.check_sortable(frame, column)
        names = dict.fromkeys((*encoder.columns.names, *encoder.order_by))
        with frames.placed_rows(
            sources.zoned(frame, (TIMESTAMP,)),
            tuple(names),
            place,
            encoder.partitions,
            is_read_twice=False,
        ) as placed:
            return frames.run_on_places(
                placed,
                write,
                description=self._description(step),
                on_progress=self._arrivals(step, placed),
            )

    def run_pass(self, number: int) -> None:
        from tidewheel.state_stores.bulk_restore.spark.frames import placed_items, run_on_places  # noqa: PLC0415 - see bulk_session

        batch = self.work.job.batch
        run = batch.passes[number]
        topics = run.reads & batch.written
        earlier = [
            result
            for results in self.passes
            for result in results
            if not topics.isdisjoint(result.records)
        ]
        tasks = self.work.job.tasks(run)
        placed = placed_items(
            self._session,
            partial(read_blobs, self.work, topics),
            [(result.task, result.file) for result in earlier],
            len(tasks),
        )
        step = f"pass {number + 1} of {len(batch.passes)} (sub-topology {run.subtopology})"
        results = run_on_places(
            placed,
            partial(run_task, self._order(run, earlier, topics)),
            description=self._description(step),
            on_progress=limited_reporter(self._on_progress, step, self._total(run, earlier)),
        )
        self.passes.append(results)

    def _order(
        self, run: Pass, earlier: Sequence[StageResult], topics: frozenset[str]
    ) -> PassOrder:
        streams: dict[int, dict[Stream, int]] = {}
        for result in earlier:
            for (topic, partition), count in result.blobs.items():
                if topic in topics:
                    streams.setdefault(partition, {})[topic, result.task] = count
        return PassOrder(
            work=self.work,
            run=run,
            sources=self._of_topics(run.reads),
            global_sources=self._of_topics(
                {store.topic for store in self.work.job.plan.global_stores}
            ),
            streams=streams,
        )

    def _of_topics(self, topics: AbstractSet[str]) -> dict[TopicPartition, tuple[Segment, ...]]:
        return {at: segments for at, segments in self.sources.items() if at.topic in topics}

    def _total(self, run: Pass, earlier: Sequence[StageResult]) -> int:
        made = sum(
            records
            for result in earlier
            for topic, records in result.records.items()
            if topic in run.reads
        )
        return made + sum(
            segment.records
            for segments in self._of_topics(run.reads).values()
            for segment in segments
        )

    def last_results(self) -> list[StageResult]:
        """Return the results of the last pass of each sub-topology."""
        return [
            result
            for run, results in zip(self.work.job.batch.passes, self.passes, strict=True)
            if run.is_last
            for result in results
        ]

    def _arrivals(self, step: str, placed: "Placed") -> Any:
        if self._on_progress is None:
            return None
        report = reporter(self._on_progress, step)
        return lambda _done: report(placed.arrived(), None)

    def _description(self, step: str) -> str:
        return f"{self.work.job.config.application_id}: {step}"
