"""Parts from which both kinds of task are built."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tidewheel.rebalance.model import TaskId
from tidewheel.state_stores.stores.factory import Store
from tidewheel.tasks.kafka.internal_topics import SubtopologyPlan
from tidewheel.tasks.processing.api.topology_spec import TimestampExtractor
from tidewheel.tasks.processing.engine.error_policy import ErrorPolicy
from tidewheel.tasks.processing.engine.sink import Collector
from tidewheel.tasks.processing.engine.task_processing import TaskProcessing, TaskSetting
from tidewheel.tasks.task.partition_group import NEVER_IDLE
from tidewheel.tasks.task.state_manager import StateManager


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskParts:
    task_id: TaskId
    plan: SubtopologyPlan
    stores: StateManager
    setting: TaskSetting
    collector: Collector
    policy: ErrorPolicy
    default_timestamp_extractor: TimestampExtractor | None = None
    max_task_idle_ms: int = NEVER_IDLE

    def make_processing(
        self,
        figures: Callable[[], dict[str, float]],
        *,
        stores: Mapping[str, Store] | None = None,
        collector: Collector | None = None,
        policy: ErrorPolicy | None = None,
    ) -> TaskProcessing:
        """Make the graph of the task, or of one key range with its own stores and collector."""
        return TaskProcessing(
            self.task_id,
            self.plan.spec,
            self.setting,
            stores=self.stores.stores if stores is None else stores,
            collector=collector or self.collector,
            policy=policy or self.policy,
            figures=figures,
        )
