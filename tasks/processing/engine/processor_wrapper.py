"""`ProcessorWrapper`: wraps all nodes of a topology for tracing, timing and tests (KIP-1112)."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from inspect import isclass
from typing import Any

from tidewheel.tasks.processing.api.processor import FixedKeyProcessor, Processor
from tidewheel.tasks.processing.api.topology_spec import ProcessorSpec
from tidewheel.tasks.processing.engine.operator import OperatorSupplier, Output
from tidewheel.tasks.processing.engine.record_batch import RecordBatch

OperatorWork = Callable[[RecordBatch], Output]


class ProcessorWrapper:
    """Wraps a topology's processors and operators; set by `processor_wrapper_class`.

    Override the methods you need; the others cost nothing. Each process makes one wrapper per topology and calls its
    methods once per node.

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
        """Receive the `StreamsConfig`; called once, before all other methods."""

    def wrap_processor_supplier(
        self,
        processor_name: str,  # noqa: ARG002 - for those who override it
        supplier: Callable[[], Processor[Any, Any, Any, Any]],
    ) -> Callable[[], Processor[Any, Any, Any, Any]]:
        """Return the supplier of a node's processors.

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
        return supplier

    def wrap_operator(self, processor_name: str, process: OperatorWork) -> OperatorWork:  # noqa: ARG002 - for those who override it
        """Return the replacement for a DSL operator's `process`, called once per task.

        It must return the result of `process(batch)`. A batch has the columns `keys`, `values`,
        `timestamps` and a length. Changes flushed from a cache bypass it. An error raised here
        stops the worker; no handler decides.
        """
        return process


def wrapped(node: ProcessorSpec, wrapper: ProcessorWrapper) -> ProcessorSpec:
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
