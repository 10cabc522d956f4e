"""`ProcessorWrapper`: one place that wraps what every node of a topology runs, for tracing, timing and tests (KIP-1112)."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from inspect import isclass
from typing import Any

from tidewheel.tasks.processing.api.processor import FixedKeyProcessor, Processor
from tidewheel.tasks.processing.api.topology_spec import ProcessorSpec
from tidewheel.tasks.processing.engine.operator import OperatorSupplier, Output
from tidewheel.tasks.processing.engine.record_batch import RecordBatch

#: What an operator does with a batch.
OperatorWork = Callable[[RecordBatch], Output]


class ProcessorWrapper:
    """Wraps the processors and operators of a topology; the `processor_wrapper_class` of the settings.

    Override what you need; what is not overridden costs nothing. A wrapper is made once for each topology that is to
    run, in every process, and its methods are called once for each node.

    >>> from tidewheel import ProcessorWrapper, StreamsBuilder, StreamsConfig
    >>> from tidewheel.testing import TopologyTestDriver
    >>> class Counting(ProcessorWrapper):
    ...     def wrap_operator(self, processor_name, process):
    ...         def counted(batch):
    ...             print(processor_name, len(batch))
    ...             return process(batch)
    ...         return counted
    >>> builder = StreamsBuilder()
    >>> builder.stream("in", key_serde=str, value_serde=str).map_values(str.upper, name="shout").foreach(print)
    >>> config = StreamsConfig(application_id="a", bootstrap_servers="unused:9092", processor_wrapper_class=Counting)
    >>> with TopologyTestDriver(builder.build(), config) as driver:
    ...     driver.create_input_topic("in", key_serde=str, value_serde=str).pipe_input("k", "v")
    shout 1
    KSTREAM-FOREACH-0000000002 1
    V
    """

    def configure(self, config: Any) -> None:
        """Take what is needed from the settings (the `StreamsConfig`); called once, before all else."""

    def wrap_processor_supplier(
        self,
        processor_name: str,  # noqa: ARG002 - for those who override it
        supplier: Callable[[], Processor[Any, Any, Any, Any]],
    ) -> Callable[[], Processor[Any, Any, Any, Any]]:
        """Return what makes the processors of a node of the user's own, one per task.

        >>> class Announced(ProcessorWrapper):
        ...     def wrap_processor_supplier(self, processor_name, supplier):
        ...         def announce():
        ...             print("made for", processor_name)
        ...             return supplier()
        ...         return announce
        >>> Announced().wrap_processor_supplier("work", Processor)().close()
        made for work
        """
        return supplier

    def wrap_fixed_key_processor_supplier(
        self,
        processor_name: str,  # noqa: ARG002 - for those who override it
        supplier: Callable[[], FixedKeyProcessor[Any, Any, Any]],
    ) -> Callable[[], FixedKeyProcessor[Any, Any, Any]]:
        """Return what makes the fixed-key processors of a node of the user's own, one per task."""
        return supplier

    def wrap_operator(self, processor_name: str, process: OperatorWork) -> OperatorWork:  # noqa: ARG002 - for those who override it
        """Return what is called with each batch in place of an operator of the DSL, once for each task.

        `process(batch)` does the operator's work; its result is to be returned as it is. A batch has columns to be read:
        `keys`, `values`, `timestamps`, and a length. What a cache has held back is forwarded beside it, at the commit. An
        error raised here is nobody's record's: it stops the worker.
        """
        return process


def wrapped(node: ProcessorSpec, wrapper: ProcessorWrapper) -> ProcessorSpec:
    """Return a node as the wrapper wants it."""
    if isinstance(node.supplier, OperatorSupplier):
        if type(wrapper).wrap_operator is ProcessorWrapper.wrap_operator:
            return node
        return replace(node, wrap=partial(wrapper.wrap_operator, node.name))
    wrap = (
        wrapper.wrap_fixed_key_processor_supplier
        if _makes_fixed_key(node.supplier)
        else wrapper.wrap_processor_supplier
    )
    return replace(node, supplier=wrap(node.name, node.supplier))


def _makes_fixed_key(supplier: Callable[[], Any]) -> bool:
    if isclass(supplier):
        return issubclass(supplier, FixedKeyProcessor)
    return isinstance(supplier(), FixedKeyProcessor)
