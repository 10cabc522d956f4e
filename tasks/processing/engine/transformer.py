"""Users' value transformers of tables (Kafka Streams: `ValueTransformerWithKey`)."""

from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

from tidewheel.tasks.processing.api.processor import (
    FixedKeyProcessor,
    FixedKeyProcessorContext,
    ProcessingContext,
)
from tidewheel.tasks.processing.engine.operator import NodeContext, Operator
from tidewheel.tasks.processing.engine.processor_node import ProcessorHost, ProcessorNode
from tidewheel.tasks.processing.engine.record_batch import RecordBatch, SourceRecords

K = TypeVar("K")
VIn = TypeVar("VIn")
VOut = TypeVar("VOut")


class ValueTransformerWithKey(Generic[K, VIn, VOut]):
    """Computes each row's value, perhaps with stores; override `transform`. For `KTable.transform_values`.

    >>> class Shout(ValueTransformerWithKey[str, str, str]):
    ...     def transform(self, key: str, value: str | None) -> str | None:
    ...         return None if value is None else value.upper()
    """

    #: See `Processor.keyed`.
    keyed: ClassVar[bool] = False

    context: ProcessingContext

    def init(self, context: ProcessingContext) -> None:
        """Called once before the first row; the default keeps the context as `self.context`."""
        self.context = context

    def transform(self, key: K, value: VIn | None) -> VOut | None:
        """Return the new value of a row. A deleted row's value is None; a result None deletes."""
        raise NotImplementedError(f"{type(self).__name__} must override transform(key, value)")

    def close(self) -> None: ...


@runtime_checkable
class HostingContext(Protocol):
    @property
    def host(self) -> ProcessorHost: ...

    def operator(self, node: str) -> Operator | None: ...


class RunningTransformer:
    def __init__(
        self,
        transformer: ValueTransformerWithKey[Any, Any, Any],
        context: NodeContext,
        stores: frozenset[str],
    ) -> None:
        assert isinstance(context, HostingContext), "users' objects run in tasks"
        self._transformer = transformer
        # Provides the user's transformer with a context; processes no records.
        self._node = ProcessorNode(_Transforms(transformer), context.host, stores)
        self._node.connect(_refuse_forward)
        self._node.init(context)
        self.punctuate = self._node.punctuate
        self.close = self._node.close

    def transform(
        self, key: Any, value: Any, timestamp: int, source: SourceRecords | None, row: int
    ) -> Any:
        context = self._node.user_context
        before = context.current
        context.enter_record((source, row, timestamp))
        try:
            return self._transformer.transform(key, value)
        finally:
            context.current = before


class _Transforms(FixedKeyProcessor[Any, Any, Any]):
    def __init__(self, transformer: ValueTransformerWithKey[Any, Any, Any]) -> None:
        self._transformer = transformer

    def init(self, context: FixedKeyProcessorContext[Any, Any]) -> None:
        self._transformer.init(context)

    def close(self) -> None:
        self._transformer.close()


def _refuse_forward(batch: RecordBatch, child: str | None) -> None:
    raise TypeError(
        f"a transformer of values can't forward records ({len(batch)} to {child or 'all children'}): return the value"
    )
