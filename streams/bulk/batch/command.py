"""`run_batch`: runs a topology over data frames, pass by pass, each a Spark job."""

import contextlib
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidewheel.state_stores.bulk_restore.frame_source import FrameSource
from tidewheel.state_stores.bulk_restore.storage import open_storage
from tidewheel.streams.batch.job import BatchJob
from tidewheel.streams.bulk.batch.executors import Work
from tidewheel.streams.bulk.batch.result import BatchResult
from tidewheel.streams.bulk.batch.run import BatchRun
from tidewheel.streams.bulk.driver import OnProgress, bulk_session
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.config.streams_config import checked_config
from tidewheel.streams.errors import ConfigError
from tidewheel.streams.kafka.portable_settings import Keeper, without_clients
from tidewheel.streams.topology.topology import Topology, checked_topology
from tidewheel.streams.worker.topic_setup import spec_of
from tidewheel.tasks.processing.api.topology_spec import SourceSpec, TopologySpec

if TYPE_CHECKING:
    from tidewheel.state_stores.bulk_restore.spark.job import DataFrame, SparkSession

_APPLICATION_ID: Final = "batch"
_PREFIX: Final = "tidewheel-batch-"
_UTC: Final = "UTC"


def run_batch(
    topology: Topology,
    frames: "Mapping[str, DataFrame | FrameSource]",
    *,
    partitions: int = 8,
    config: StreamsConfig | None = None,
    work: str | Path | None = None,
    spark: "SparkSession | None" = None,
    master: str | None = None,
    on_progress: OnProgress | None = None,
) -> BatchResult:
    """Run a topology over data frames in place of its topics, without a cluster.

    The topology's functions, windows, joins and stores are those of its workers. Records of one
    partition are processed in the order of their times, and those of several topics together.

    Args:
        frames: For each source topic a frame with the columns `key`, `timestamp` (ms, or a
            timestamp) and `value`, or other columns as the value's fields. The source's serdes
            encode keys and values; binary columns are taken as they are. Optional columns:
            `headers`, `partition`, and `offset` (the order in a partition, instead of the time).
        partitions: Partition count of all source topics: the tasks that can run concurrently.
        config: Settings of processing, such as default serdes and error handlers. None: defaults.
        work: Folder or URL for intermediate files, which the driver and all executors can use.
            None: a temporary folder, if all of Spark runs on this machine.
        spark: Session; None for the frames', or a temporary one at `master`.

    Raises:
        ConfigError: A frame is missing or has wrong columns, or Spark is missing.
        StreamsError: A row does not fit its serde, a user's function failed, or Spark failed.

    With a session `spark`:

    >>> from tidewheel import StreamsBuilder
    >>> from tidewheel.bulk import run_batch
    >>> builder = StreamsBuilder()
    >>> visits = builder.stream("visits", key_serde=str, value_serde=str)
    >>> _ = visits.group_by_key().count(store="visits-per-page")
    >>> rows = [("/home", "ann", 1_000), ("/shop", "ann", 2_000), ("/home", "bob", 3_000)]
    >>> frame = spark.createDataFrame(rows, ["key", "value", "timestamp"])  # doctest: +SKIP
    >>> with run_batch(builder.build(), {"visits": frame}) as result:  # doctest: +SKIP
    ...     counts = result.stores["visits-per-page"].orderBy("key").collect()
    >>> [(row.key, row.value) for row in counts]  # doctest: +SKIP
    [('/home', 2), ('/shop', 1)]
    """
    checked_topology(topology, "run_batch")
    _check_partitions(partitions)
    config = _config(config)
    spec = spec_of(topology, config)
    _check_frames(spec, frames)
    job = BatchJob.of(topology, config, dict.fromkeys(frames, partitions))
    if spark is None:
        sessions = (getattr(frame, "sparkSession", None) for frame in frames.values())
        spark = next((session for session in sessions if session is not None), None)
    with contextlib.ExitStack() as stack:
        session = stack.enter_context(
            bulk_session(
                spark,
                what="batch",
                master=master,
                settings={"spark.sql.session.timeZone": _time_zone(frames)},
            )
        )
        url = _work_url(stack, session, work)
        run = BatchRun(session, Work(job=job, url=url), on_progress)
        for topic, frame in sorted(frames.items()):
            stored = run.read(topic, frame, source_of(spec, topic), partitions)
            run.sources |= {at: (rows,) for at, rows in stored.items()}
        for number in range(len(job.batch.passes)):
            run.run_pass(number)
        return BatchResult(session, run.work, run.last_results(), stack.pop_all())


def _check_partitions(partitions: object) -> None:
    if type(partitions) is not int or partitions < 1:
        raise ConfigError(
            f"run_batch: partitions is {partitions!r}; it must be a whole number from 1: the tasks that can run concurrently"
        )


def _config(config: StreamsConfig | None) -> StreamsConfig:
    if config is None:
        config = StreamsConfig(application_id=_APPLICATION_ID)
    return without_clients(checked_config(config, "run_batch"))


def _check_frames(spec: TopologySpec, frames: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a missing frame, one that is not read, and other types."""
    sources = [source for sub in spec.subtopologies for source in sub.sources]
    external = [source for source in sources if not source.internal]
    written = {
        sink.topic
        for sub in spec.subtopologies
        for sink in sub.sinks
        if not sink.internal and isinstance(sink.topic, str)
    }
    named = {topic for source in external for topic in source.topics}
    named |= {store.topic for store in spec.global_stores}
    patterns = [source.pattern for source in external if source.pattern is not None]
    missing = sorted(named - written - frames.keys())
    if missing:
        raise ConfigError(
            f"run_batch: the topology reads {', '.join(missing)}, but there is no frame for "
            f'{"it" if len(missing) == 1 else "them"}; give {{"{missing[0]}": frame, ...}}'
        )
    for topic in frames:
        if topic in written:
            raise ConfigError(
                f"run_batch: the topology itself writes {topic}, so it takes no frame; leave it out"
            )
        if topic not in named and not any(pattern.fullmatch(topic) for pattern in patterns):
            raise ConfigError(
                f"run_batch: {topic} is not a source topic of the topology; it reads "
                f"{', '.join(sorted(named)) or 'only topics that match a pattern'}"
            )
    _check_patterns(patterns, {*frames, *written})
    for topic, frame in frames.items():
        if not isinstance(frame, FrameSource) and not hasattr(frame, "sparkSession"):
            raise ConfigError(
                f"run_batch: the frame of {topic} is of type {type(frame).__name__}; give a Spark DataFrame, such as by "
                "spark.createDataFrame, or a FrameSource"
            )


def _check_patterns(patterns: Sequence[re.Pattern[str]], topics: Iterable[str]) -> None:
    for pattern in patterns:
        if not any(map(pattern.fullmatch, topics)):
            raise ConfigError(
                f"run_batch: the topology reads topics that match {pattern.pattern!r}, but there is no frame for one; give "
                "a frame for each of them"
            )


def source_of(spec: TopologySpec, topic: str) -> SourceSpec:
    """Return the node that reads a source topic."""
    for store in spec.global_stores:
        if store.topic == topic:
            return store.source
    sources = [
        source for sub in spec.subtopologies for source in sub.sources if not source.internal
    ]
    return next(
        source
        for source in sources
        if topic in source.topics
        or (source.pattern is not None and source.pattern.fullmatch(topic))
    )


def _time_zone(frames: Mapping[str, Any]) -> str:
    zones = [frame.time_zone for frame in frames.values() if isinstance(frame, FrameSource)]
    return next((zone for zone in zones if zone), _UTC)


def _work_url(stack: contextlib.ExitStack, session: "SparkSession", work: str | Path | None) -> str:
    """Return a new folder's URL for executors; the stack deletes it."""
    from tidewheel.state_stores.bulk_restore.spark.job import is_encrypted, runs_here  # noqa: PLC0415 - see bulk_session

    if work is None and not runs_here(session):
        raise ConfigError(
            f"run_batch: Spark's executors at {session.sparkContext.master} may run on other machines; give work=, a folder or URL "
            "that the driver and all executors can read and write, such as s3://bucket/work"
        )
    if work is None:
        folder = tempfile.mkdtemp(prefix=_PREFIX)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        return folder
    url = f"{str(work).rstrip('/')}/{_PREFIX}{secrets.token_hex(8)}"
    if "://" not in url:
        url = str(Path(url).expanduser().absolute())
        stack.callback(shutil.rmtree, url, ignore_errors=True)
        return url
    stack.callback(_delete_files, url)
    keeper = Keeper(same_machine=runs_here(session), encrypted=is_encrypted(session))
    return stack.enter_context(keeper).url("work", url)


def _delete_files(url: str) -> None:
    storage = open_storage(url)
    for name in storage.names(""):
        storage.delete(name)
