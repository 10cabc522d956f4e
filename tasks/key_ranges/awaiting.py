"""Whether a sub-topology's key ranges await on one event loop and so take up no threads. Pure, known before a graph is made."""

from tidewheel.tasks.processing.api.supplied import awaits
from tidewheel.tasks.processing.api.topology_spec import ProcessorSpec, SinkSpec, SubtopologySpec
from tidewheel.tasks.processing.engine.operator import OperatorSupplier


def only_awaits(subtopology: SubtopologySpec) -> bool:
    """Return whether every function of the user's is a processor's `async def process`, as `TaskGraph.awaits` tells of a graph.

    Processors whose supplier is a function are made to be asked; none is initialised.
    """
    processors = [each for each in subtopology.nodes if isinstance(each, ProcessorSpec)]
    sinks = [each for each in subtopology.nodes if isinstance(each, SinkSpec)]
    return (
        bool(processors)
        and all(each.partitioner is None and isinstance(each.topic, str) for each in sinks)
        and all(each.wrap is None for each in processors)
        and not any(isinstance(each.supplier, OperatorSupplier) for each in processors)
        and all(awaits(each.supplier) for each in processors)
    )
