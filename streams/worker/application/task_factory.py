"""Task factory, for workers and the test driver."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tidewheel.rebalance.model import TaskId
from tidewheel.state_stores.in_memory import InMemoryDatabase
from tidewheel.state_stores.ports import Database
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.config.app_configs import app_configs
from tidewheel.tasks.commit.output_collector import OutputCollector
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan, internal_prefix
from tidewheel.tasks.key_ranges.bounds import RangeBounds
from tidewheel.tasks.processing.engine.error_policy import ErrorHandlers, ErrorPolicy
from tidewheel.tasks.processing.engine.task_processing import TaskSetting
from tidewheel.tasks.processing.engine.traced_graph import BatchTracer
from tidewheel.tasks.restore.global_stores import GlobalStores
from tidewheel.tasks.task.active_task import ActiveTask
from tidewheel.tasks.task.parallel_task import ParallelTask
from tidewheel.tasks.task.sink_task import SinkTask
from tidewheel.tasks.task.state_manager import StateManager, StateSettings
from tidewheel.tasks.task.task import Task
from tidewheel.tasks.task.task_parts import TaskParts


class TaskFactory(msgspec.Struct, frozen=True, kw_only=True):
    """Factory of an application's tasks.

    Attributes:
        record_by_record: Process records singly; tests compare batches with it.
        tracer: Tracer of batches and operators; None for none.
        measures_latency: Measure the latency of records at sources and sinks.
        inline_sinks: Sinks outside Kafka write in the caller's thread, for the test driver.
        factor: Most key ranges (parallel parts) per task.
    """

    plan: ApplicationPlan
    config: StreamsConfig
    directory: Callable[[TaskId], Path]
    open_database: Callable[[Path, list[str]], Database]
    now_ms: Callable[[], int]
    record_by_record: bool = False
    inline_sinks: bool = False
    threads: int = 1
    factor: int = 1
    global_stores: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    tracer: BatchTracer | None = None
    measures_latency: bool = False

    def __call__(
        self,
        task_id: TaskId,
        collector: OutputCollector,
        policy: ErrorPolicy,
        stores: StateManager | None = None,
    ) -> Task:
        """Return a task that is not restored yet; it takes over open `stores`, if given."""
        plan = self.plan.subtopologies[task_id.subtopology]
        count = sum(
            len(other.spec.stores) * len(other.tasks) for other in self.plan.subtopologies.values()
        )
        directory = self.directory(task_id)
        manager = stores or StateManager(
            task_id,
            plan.spec.stores,
            StateSettings(
                application_id=self.config.application_id,
                cache_enabled=self.config.statestore_cache_max_bytes > 0,
                read_cache_bytes_per_store=self.config.statestore_uncommitted_max_bytes
                // max(count, 1),
            ),
            open_persistent=partial(self.open_database, directory),
            open_in_memory=InMemoryDatabase,
            now=lambda: task.record_timestamp(),  # noqa: PLW0108 - the task is created below
            directory=directory,
        )
        parts = TaskParts(
            task_id=task_id,
            plan=plan,
            stores=manager,
            setting=TaskSetting(
                application_id=self.config.application_id,
                topic_prefix=internal_prefix(self.config.application_id),
                state_dir=directory,
                now_ms=self.now_ms,
                app_configs=app_configs(self.config),
                emit_interval_ms=self.config.emit_interval_ms,
                global_stores=self.global_stores,
                record_by_record=self.record_by_record,
                tracer=self.tracer,
                measures_latency=self.measures_latency,
            ),
            collector=collector,
            policy=policy,
            default_timestamp_extractor=self.config.default_timestamp_extractor,
            max_task_idle_ms=self.config.max_task_idle_ms,
        )
        task: Task
        if (sink := plan.spec.external_sink) is not None:
            task = SinkTask(parts, sink, inline=self.inline_sinks)
        elif self.threads == 1:
            task = ActiveTask(parts)
        else:
            task = ParallelTask(parts, bounds=self._bounds())
        if stores is not None:
            stores.renew(task.record_timestamp)
        return task

    def _bounds(self) -> RangeBounds:
        config = self.config
        return RangeBounds(
            factor=self.factor,
            records=config.buffered_records_per_partition,
            bytes=config.buffered_bytes_per_partition,
            cache_bytes=config.statestore_cache_max_bytes // self.threads,
        )


def make_global_stores(
    plan: ApplicationPlan,
    config: StreamsConfig,
    *,
    directory: Callable[[], Path],
    open_database: Callable[[Path, list[str]], Database],
    now_ms: Callable[[], int],
) -> GlobalStores:
    return GlobalStores(
        plan.global_stores,
        plan.global_partitions,
        error_handlers(config),
        application_id=config.application_id,
        state_dir=directory(),
        open_persistent=lambda families: open_database(directory(), families),
        open_in_memory=InMemoryDatabase,
        now_ms=now_ms,
        app_configs=app_configs(config),
    )


def error_handlers(config: StreamsConfig) -> ErrorHandlers:
    return ErrorHandlers(
        deserialization=config.deserialization_exception_handler,
        processing=config.processing_exception_handler,
        production=config.production_exception_handler,
        processing_global=config.processing_exception_handler_global_enabled,
        dead_letter_topic=config.dead_letter_queue_topic,
        late_records=config.late_records_to_dead_letter_queue,
    )
