"""Restores of stores whose changelog is an input of their task."""

from contextlib import ExitStack

from tidewheel.rebalance.model import TopicPartition
from tidewheel.tasks.processing.api.topology_spec import ProcessorSpec
from tidewheel.tasks.task.source_restore import SourceRestore
from tidewheel.tasks.task.task_inputs import TaskInputs
from tidewheel.tasks.task.task_parts import TaskParts


class SourceRestores:
    """Source restores of one task, open until the task starts or closes."""

    def __init__(self, parts: TaskParts, inputs: TaskInputs) -> None:
        self._parts = parts
        self._inputs = inputs
        self._open: list[SourceRestore] = []

    @property
    def stores(self) -> dict[TopicPartition, str]:
        sources = self._parts.stores.sources
        inputs = self._inputs.partitions
        return {partition: sources[partition] for partition in inputs if partition in sources}

    def open(self, partition: TopicPartition) -> SourceRestore:
        parts, store = self._parts, self.stores[partition]
        source = self._inputs.sources[partition.topic].spec
        table = next(
            node
            for node in parts.plan.spec.nodes
            if isinstance(node, ProcessorSpec)
            and node.parents == (source.name,)
            and store in node.stores
            and store not in node.reads
        )
        restore = SourceRestore(
            task_id=str(parts.task_id),
            source=source,
            table=table,
            store=parts.stores.scratch_store(store),
            policy=parts.policy,
            default_timestamp_extractor=parts.default_timestamp_extractor,
            application_id=parts.setting.application_id,
            state_dir=parts.setting.state_dir,
            app_configs=parts.setting.app_configs,
            now_ms=parts.setting.now_ms,
        )
        self._open.append(restore)
        return restore

    def close(self) -> None:
        with ExitStack() as closing:
            for restore in self._open:
                closing.callback(restore.close)
            self._open = []
