"""Local tasks: creates an application's tasks and global stores without a broker."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from tidewheel.rebalance.model import TaskId
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.rocksdb.options import RocksDBOptions
from tidewheel.state_stores.rocksdb.shared_resources import SharedResources
from tidewheel.state_stores.rocksdb.task_database import TaskDatabase
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.worker.application.task_factory import (
    TaskFactory,
    error_handlers,
    make_global_stores,
)
from tidewheel.tasks.batch.batch_task import BatchTask
from tidewheel.tasks.commit.output_collector import OutputCollector
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan
from tidewheel.tasks.processing.engine.error_policy import ErrorPolicy
from tidewheel.tasks.restore.global_stores import GlobalStores

#: Topics outside Kafka accept records of any size.
UNLIMITED_BYTES = 1 << 31

OpenDatabase = Callable[[Path, list[str]], Database]


class OutputTopics:
    """Output topics without a broker: all exist."""

    def __init__(self, partition_count: Callable[[str], int]) -> None:
        self._partition_count = partition_count

    def partition_count(self, topic: str) -> int:
        return self._partition_count(topic)

    def message_bytes_max(self, topic: str) -> int:  # noqa: ARG002 - the port's signature
        return UNLIMITED_BYTES

    def message_bytes_max_now(self, topic: str) -> int:  # noqa: ARG002 - the port's signature
        return UNLIMITED_BYTES


class LocalTasks:
    """Tasks of an application in this process; a context manager.

    Attributes:
        policy: Error handling of all tasks; dead letters are outputs.
        global_stores: None if the topology has none.
    """

    def __init__(
        self,
        plan: ApplicationPlan,
        config: StreamsConfig,
        *,
        directory: Path,
        now_ms: Callable[[], int],
        partition_count: Callable[[str], int],
        open_database: OpenDatabase | None = None,
        record_by_record: bool = False,
    ) -> None:
        self._stack = ExitStack()
        self._plan = plan
        self._config = config
        self._directory = directory
        self._now_ms = now_ms
        self._open_database = open_database or _rocksdb()
        self._collector = OutputCollector(OutputTopics(partition_count), None)
        self.policy = ErrorPolicy(
            error_handlers(config),
            lambda columns: self._collector.add(columns, internal=False),
            locations=plan.locations(),
        )
        self._collector.policy = self.policy
        self.global_stores: GlobalStores | None = None
        with ExitStack() as undo:
            undo.callback(self.close)
            if plan.global_stores:
                self.global_stores = self._start_global_stores()
            undo.pop_all()
        views: Mapping[str, Any] = {} if self.global_stores is None else self.global_stores.views
        self._factory = TaskFactory(
            plan=plan,
            config=config,
            directory=lambda task_id: directory / str(task_id),
            open_database=self._open_database,
            now_ms=now_ms,
            record_by_record=record_by_record,
            inline_sinks=True,
            global_stores=views,
        )

    def _start_global_stores(self) -> GlobalStores:
        path = self._directory / "global"
        stores = make_global_stores(
            self._plan,
            self._config,
            directory=lambda: path,
            open_database=self._open_database,
            now_ms=self._now_ms,
        )
        self._stack.callback(stores.close)
        self._stack.callback(stores.stop)
        stores.open()
        stores.manager.topic_ids = dict.fromkeys(stores.specs, bytes(16))
        stores.start()
        return stores

    def start(self, task_id: TaskId) -> BatchTask:
        task = self._factory(task_id, self._collector, self.policy)
        batch_task = BatchTask(task, self._collector, self.policy, now_ms=self._now_ms)
        with ExitStack() as undo:
            undo.callback(batch_task.close)
            batch_task.start()
            undo.pop_all()
        return batch_task

    def close(self) -> None:
        """Close the global stores, after the tasks; idempotent."""
        self._stack.close()
        self.policy.drops.report(at_end=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _rocksdb() -> OpenDatabase:
    options = RocksDBOptions()
    resources = SharedResources.create(options)
    return lambda path, families: TaskDatabase.open(path, families, options, resources)
