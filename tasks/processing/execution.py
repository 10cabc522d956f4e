"""Whether a sub-topology runs on whole batches or record by record. Pure; `describe(execution=True)` prints it."""

from collections import Counter
from dataclasses import dataclass

from tasks.processing.operator import OperatorSupplier
from tasks.processing.topology_spec import ProcessorSpec, SubtopologySpec


@dataclass(frozen=True, slots=True)
class ExecutionMode:
    """How a sub-topology runs, and why when it is not in batches."""

    batch: bool
    reason: str = ""

    def __str__(self) -> str:
        return "batch" if self.batch else f"record by record: {self.reason}"


def execution_mode(subtopology: SubtopologySpec) -> ExecutionMode:
    """Decide how a sub-topology runs.

    Batches give the same result as long as no node can see how far another one has come: so not where nodes share a
    store, and not with processors of the user's own, which may forward, schedule and commit at any moment.
    """
    processors = [node for node in subtopology.nodes if isinstance(node, ProcessorSpec)]
    for node in processors:
        if not isinstance(node.supplier, OperatorSupplier):
            return ExecutionMode(
                batch=False, reason=f"{node.name} is a processor of the Processor API"
            )
    users = Counter(store for node in processors for store in node.stores)
    for store, count in sorted(users.items()):
        if count > 1:
            return ExecutionMode(batch=False, reason=f"{count} nodes share the store {store}")
    return ExecutionMode(batch=True)
