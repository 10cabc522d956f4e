"""What a worker is given: its settings, its clients, and what makes its tasks."""

from collections.abc import Callable
from dataclasses import dataclass, field

from rebalance.model import TaskId
from tasks.active_task import ActiveTask
from tasks.output_collector import OutputCollector, TopicInfo
from tasks.ports import (
    Admin,
    ChangelogReader,
    Clock,
    ProducerFactory,
    RecordSource,
    SinkProducer,
)
from tasks.processing.error_policy import ErrorHandlers, ErrorPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What the loop needs to know of the application's settings (units as in `StreamsConfig`)."""

    application_id: str
    transactional_id: str
    topology_hash: bytes
    #: Number of other workers of this program. After a change of the number of workers they find our id in the metadata
    #: of partitions that are theirs now, and fence it, so being fenced soon after a start is no takeover.
    siblings: int = 0
    commit_interval_ms: int = 100
    cache_max_bytes: int = 10 * 1024 * 1024
    uncommitted_max_bytes: int = 64 * 1024 * 1024
    buffered_bytes_per_partition: int = 16 * 1024 * 1024
    buffered_records_per_partition: int = 100_000
    max_poll_records: int = 10_000
    repartition_purge_interval_ms: int = 30_000
    auto_offset_reset: str = "earliest"
    handlers: ErrorHandlers = field(default_factory=ErrorHandlers)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPorts:
    """The clients of one worker, made by the adapters; the worker closes what it made."""

    make_source: Callable[[], RecordSource]
    make_producer: ProducerFactory
    #: None in exactly_once.
    make_sink_producer: Callable[[], SinkProducer] | None
    make_reader: Callable[[], ChangelogReader]
    admin: Admin
    topics: TopicInfo
    clock: Clock


#: Makes a task of the plan: (task id, collector, policy).
MakeTask = Callable[[TaskId, OutputCollector, ErrorPolicy], ActiveTask]
