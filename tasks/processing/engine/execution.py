"""Execution mode of a sub-topology: batches or record by record (`describe(execution=True)`)."""

from dataclasses import dataclass

from tidewheel.tasks.processing.api.topology_spec import ProcessorSpec, SinkSpec, SubtopologySpec
from tidewheel.tasks.processing.engine.operator import OperatorSupplier


@dataclass(frozen=True, slots=True)
class ExecutionMode:
    batch: bool
    reason: str = ""

    def __str__(self) -> str:
        return "batch" if self.batch else f"record by record: {self.reason}"


def execution_mode(subtopology: SubtopologySpec) -> ExecutionMode:
    """Choose batches unless a node could observe how far another one has processed.

    Users' processors could: they forward and commit at any record. Below one source, no two nodes
    may use a store that one of them writes: the second would see the first one's whole batch. Below
    different sources they may: a batch has one source, except in graphs whose nodes all keep the
    record order (`takes_joint`).
    """
    processors = [node for node in subtopology.nodes if isinstance(node, ProcessorSpec)]
    for node in processors:
        if not isinstance(node.supplier, OperatorSupplier):
            return ExecutionMode(
                batch=False, reason=f"{node.name} is a processor of the Processor API"
            )
        if node.supplier.operator.runs_users_object:
            return ExecutionMode(batch=False, reason=f"{node.name} runs a transformer of values")
    for source in subtopology.sources:
        reachable = {source.name}
        users: dict[str, list[ProcessorSpec]] = {}
        for node in processors:
            if reachable.isdisjoint(node.parents):
                continue
            reachable.add(node.name)
            for store in node.stores:
                users.setdefault(store, []).append(node)
        for store, nodes in sorted(users.items()):
            if len(nodes) > 1 and any(store not in node.reads for node in nodes):
                names = " and ".join(node.name for node in nodes)
                return ExecutionMode(
                    batch=False,
                    reason=f"{names} share the store {store}, and one batch of {source.name} reaches them",
                )
    return ExecutionMode(batch=True)


def has_ordered_outputs(subtopology: SubtopologySpec) -> bool:
    """Return True if no two sinks can write to one topic."""
    topics = [node.topic for node in subtopology.nodes if isinstance(node, SinkSpec)]
    named = all(isinstance(topic, str) for topic in topics)
    return len(topics) < 2 or (named and len(set(topics)) == len(topics))  # noqa: PLR2004 - one sink is in order
