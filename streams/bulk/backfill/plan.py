"""Plan of a backfill: its passes, the offsets that it reads, and what is not exact."""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.streams.batch.job import BatchJob, JobProcess
from tidewheel.streams.bulk.backfill.cut import Cut
from tidewheel.streams.bulk.backfill.ends import EARLIEST, OffsetsAdmin, parse_begins, ranges_of
from tidewheel.streams.bulk.backfill.history import objections_to_begins, objections_to_history
from tidewheel.streams.bulk.backfill.objections import (
    Difference,
    differences_of,
    objections_to_topology,
)
from tidewheel.streams.bulk.batch.source_segments import OffsetRange
from tidewheel.streams.bulk.bootstrap.plan import InputOffsets
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.errors import ConfigError
from tidewheel.streams.kafka.portable_settings import without_clients
from tidewheel.streams.topology.topology import Topology
from tidewheel.streams.worker.application.configured_plan import configured_plan
from tidewheel.streams.worker.topic_setup import spec_of
from tidewheel.tasks.kafka.internal_topics import (
    ApplicationPlan,
    absence,
    missing_output_topics,
)

DISCARD: Final = "discard"
TOPICS: Final = "topics"
URL: Final = "url"

#: Microseconds of processor time a record and pass, of the cheapest and the dearest common jobs.
_RECORD_US: Final = (2, 20)

_LATEST: Final = InputOffsets(text="latest", kind="latest")


_OUTPUTS_TEXT: Final = {
    DISCARD: "discarded",
    TOPICS: "written to their topics",
    URL: "written as Parquet files",
}


class BackfillPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Plan of a backfill.

    Attributes:
        live: The plan of the application's workers.
        ranges: Offsets to read, by partition of the source topics and the topics of global tables.
        outputs: What becomes of the records for output topics: "discard", "topics" or "url".
        history: Topics with a history, which is read before their ranges.
        differences: Nodes whose results may differ from those of live workers, and topics that the
            application of `until_of` does not read.
        obstacle: Reason why a backfill would be refused now: the application of `until_of` is not at
            rest, so its offsets are still to come. None without one.
    """

    job: BatchJob
    live: ApplicationPlan
    ranges: Mapping[TopicPartition, OffsetRange]
    outputs: str
    history: tuple[str, ...]
    differences: tuple[Difference, ...]
    obstacle: str | None = None

    @property
    def application_id(self) -> str:
        return self.job.config.application_id

    @property
    def records(self) -> int:
        """Return the records to read from Kafka, at most."""
        return sum(span.records for span in self.ranges.values())

    @property
    def changelogs(self) -> tuple[str, ...]:
        return tuple(topic.name for topic in self.live.changelog_topics)

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the plan as pairs of a name and a text."""
        topics: dict[str, list[OffsetRange]] = {}
        for at, span in sorted(self.ranges.items()):
            topics.setdefault(at.topic, []).append(span)
        for topic, spans in topics.items():
            count = sum(span.records for span in spans)
            before = sum(span.first for span in spans)
            text = f"{len(spans)} partitions, at most {count:,} records"
            if topic in self.history:
                text += ", after those of its history, which a plan does not look at"
            elif before:
                text += f"; {before:,} earlier offsets are not read: without a history, these records are missing"
            yield f"read {topic}", text
        for number, run in enumerate(self.job.batch.passes, 1):
            tasks = len(self.job.tasks(run))
            yield (
                f"pass {number}",
                f"sub-topology {run.subtopology}: {tasks} tasks read {', '.join(sorted(run.reads))}",
            )
        for topic in self.changelogs:
            yield "write", topic
        yield "records for output topics", _OUTPUTS_TEXT[self.outputs]
        least, most = (self.records * us / 1e6 for us in _RECORD_US)
        cost = (
            f"{least:,.0f} to {most:,.0f} s of one core for the records read, as much again for each repartition of "
            "them, and about 20 s to start Spark"
        )
        yield "cost", cost


def output_choice(outputs: str | None, spec_has_sinks: bool) -> Literal["discard", "topics", "url"]:
    """Return the kind of `outputs`; raise `ConfigError` for others, and for None with sinks."""
    if outputs is None and not spec_has_sinks:
        return DISCARD
    if outputs == DISCARD:
        return DISCARD
    if outputs == TOPICS:
        return TOPICS
    if outputs is not None and ("/" in outputs or "\\" in outputs):
        return URL
    problem = f"outputs is {outputs!r}" if outputs is not None else "the topology writes to topics"
    raise ConfigError(
        f"backfill: {problem}; say what becomes of the records for its output topics, with outputs (--outputs): discard; "
        "topics, which writes them there; or a folder or URL for Parquet files, such as s3://bucket/outputs"
    )


def missing_outputs_text(topics: Sequence[str]) -> str:
    """Return the error for output topics that do not exist, with a command.

    >>> missing_outputs_text(["out"])
    'output topic out does not exist; create it: tidewheel topics create out --partitions N'
    >>> missing_outputs_text(["a", "b"])
    'output topics a, b do not exist; create each: tidewheel topics create a --partitions N'
    """
    return (
        f"{absence('output topic', topics)}; create {'it' if len(topics) == 1 else 'each'}: tidewheel topics create {topics[0]} "
        "--partitions N"
    )


def plan_backfill(
    topology: Topology,
    config: StreamsConfig,
    admin: OffsetsAdmin,
    topics: Mapping[str, int],
    *,
    outputs: str | None,
    begins: Mapping[str, str] | None,
    until: InputOffsets | Cut,
    history: Iterable[str] = (),
) -> BackfillPlan:
    """Return the plan on a cluster with `topics` (name to partition count); reads no record.

    Raises:
        ConfigError: The topology's state can't be handed over, or an argument is wrong. All
            reasons are in one message.
    """
    spec = spec_of(topology, config)
    live = configured_plan(spec, config, topics)
    sinks = [sink for sub in spec.subtopologies for sink in sub.sinks if not sink.internal]
    choice = output_choice(outputs, bool(sinks))
    history = tuple(history)
    reasons = [
        *objections_to_topology(live),
        *objections_to_history(live, history),
        *objections_to_begins(
            live, [at for at, text in (begins or {}).items() if text != EARLIEST]
        ),
    ]
    missing = sorted(missing_output_topics(spec, topics)) if choice == TOPICS else []
    if missing:
        reasons.append(missing_outputs_text(missing))
    if reasons:
        raise ConfigError(f"backfill: {'; '.join(reasons)}")
    globals_ = {store.topic for store in live.global_stores}
    inside = {topic.name for topic in live.repartition_topics}
    sources = {
        topic: count
        for planned in live.subtopologies.values()
        for topic, count in planned.topic_partitions.items()
        if topic not in inside
    }
    job = msgspec.structs.replace(
        BatchJob.of(topology, without_clients(config), topics),
        known_partitions=dict(topics),
        discards_outputs=choice == DISCARD,
    )
    inputs = [TopicPartition(topic, n) for topic, count in sources.items() for n in range(count)]
    ranges = ranges_of(
        admin,
        sorted(inputs),
        begins=parse_begins(begins, sorted(sources)),
        until=until if isinstance(until, InputOffsets) else until.ends(sorted(inputs)),
    )
    whole = [
        TopicPartition(topic, n)
        for topic in sorted(globals_)
        for n in range(live.global_partitions[topic])
    ]
    ranges |= ranges_of(admin, whole, begins={}, until=_LATEST)
    return BackfillPlan(
        job=job,
        live=live,
        ranges=ranges,
        outputs=choice,
        history=history,
        differences=(
            *differences_of(
                live,
                has_cache=config.statestore_cache_max_bytes > 0,
                has_schedule=lambda task_id: _has_schedule(job, task_id),
            ),
            *(until.differences(sources) if isinstance(until, Cut) else ()),
        ),
        obstacle=until.obstacle if isinstance(until, Cut) else None,
    )


def _has_schedule(job: BatchJob, task_id: TaskId) -> bool:
    """Start a task without records; return true if it then has wall-clock schedules."""
    run = next(each for each in job.batch.passes if each.subtopology == task_id.subtopology)
    with (
        tempfile.TemporaryDirectory(prefix="tidewheel-backfill-") as folder,
        JobProcess(job, Path(folder)) as process,
        process.task(run, task_id) as task,
    ):
        return task.has_wall_clock_schedules


def check_differences(differences: tuple[Difference, ...], accepted: frozenset[str]) -> None:
    """Raise `ConfigError` for differences that the user has not accepted."""
    open_ = [each for each in differences if each.reason not in accepted]
    if open_:
        names = sorted({each.reason for each in open_})
        raise ConfigError(
            f"backfill: not accepted: {'; '.join(map(str, open_))}; accept with accept={names!r} (--accept {','.join(names)}), "
            "or change the topology"
        )
