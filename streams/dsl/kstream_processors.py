"""`KStream` operators for user processors and batch functions."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

import msgspec

from tidewheel.streams.definitions.call import Call
from tidewheel.streams.definitions.names import check_names
from tidewheel.streams.definitions.node_arguments import check_supplier, connected_stores
from tidewheel.streams.graph.logical_graph import ProcessorGraphNode
from tidewheel.streams.graph.parts import StreamPart
from tidewheel.streams.operators.arrow_batches import MapBatch, tables_of
from tidewheel.streams.operators.stateless import MapValuesBatch
from tidewheel.streams.user_functions import FunctionKind
from tidewheel.tasks.processing.api.processor import FixedKeyProcessor, Processor
from tidewheel.tasks.processing.engine.operator import OperatorSupplier

if TYPE_CHECKING:
    from tidewheel.streams.dsl.kstream import KStream

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")


class KStreamProcessors(ABC, Generic[K, V]):
    """`process`, `process_values`, `map_values_batch` and `map_batch` of a stream."""

    _part: StreamPart

    @abstractmethod
    def _stream(self, part: StreamPart) -> "KStream[Any, Any]":
        """Return a `KStream` of this part."""

    def process(
        self,
        supplier: Callable[[], Processor[K, V, K2, V2]],
        *,
        stores: Sequence[str] = (),
        name: str | None = None,
    ) -> "KStream[K2, V2]":
        """Send each record to your processor; the records it forwards are the result.

        Args:
            supplier: `Processor` class, or a function that returns a new one at each call (one per
                task). Stores in its attribute `stores` are added and connected.
            stores: Names of further stores, added with `StreamsBuilder.add_state_store`. Global
                stores need no name here.

        >>> from tidewheel import Processor, StreamsBuilder
        >>> class Shout(Processor[str, str, str, str]):
        ...     def process(self, record):
        ...         self.context.forward(record.replace(value=record.value.upper()))
        >>> StreamsBuilder().stream("lines", key_serde=str, value_serde=str).process(Shout)
        <KStream KSTREAM-PROCESSOR-0000000001>
        """
        call = Call.here("process")
        check_supplier(supplier, call.context, Processor)
        node = self._add_processor(call, "KSTREAM-PROCESSOR-", name, supplier, stores)
        return self._stream(
            msgspec.structs.replace(
                self._part, node=node, key_serde=None, value_serde=None, rekeyed=True
            )
        )

    def process_values(
        self,
        supplier: Callable[[], FixedKeyProcessor[K, V, V2]],
        *,
        stores: Sequence[str] = (),
        name: str | None = None,
    ) -> "KStream[K, V2]":
        """Send each record to your processor, which can't change keys; no repartitioning follows.

        Args:
            supplier: `FixedKeyProcessor` class, or a function that returns a new one at each call
                (one per task).
            stores: Store names, as in `process`.

        >>> from tidewheel import FixedKeyProcessor, StreamsBuilder
        >>> class Length(FixedKeyProcessor[str, str, int]):
        ...     def process(self, record):
        ...         self.context.forward(record.replace(value=len(record.value)))
        >>> StreamsBuilder().stream("lines", key_serde=str, value_serde=str).process_values(Length)
        <KStream KSTREAM-PROCESSVALUES-0000000001>
        """
        call = Call.here("process_values")
        check_supplier(supplier, call.context, FixedKeyProcessor)
        node = self._add_processor(call, "KSTREAM-PROCESSVALUES-", name, supplier, stores)
        return self._stream(msgspec.structs.replace(self._part, node=node, value_serde=None))

    @overload
    def map_values_batch(
        self,
        mapper: Callable[[list[V]], Coroutine[Any, Any, Iterable[V2]]],
        *,
        name: str | None = None,
    ) -> "KStream[K, V2]": ...
    @overload
    def map_values_batch(
        self, mapper: Callable[[list[V]], Iterable[V2]], *, name: str | None = None
    ) -> "KStream[K, V2]": ...
    def map_values_batch(
        self, mapper: Callable[..., Any], *, name: str | None = None
    ) -> "KStream[K, Any]":
        """Replace values in batches: `mapper(values)` returns as many new values in the same order.

        For models, numpy and multi-key look-ups. A batch contains one or more records already read
        from one partition and never waits for more. Batches grow until a call takes 20 ms. They
        grow further, up to 10,000 records, only while doubling saves a quarter of the cost per
        record. With `parallelising_factor` > 1 a batch has records of one key range, so calls for
        different ranges overlap. If a sub-topology runs record by record (see
        `describe(execution=True)`), each batch has one record.

        The function is called once per batch and is never retried. If it raises, or returns more or
        fewer values, every record of the batch goes to the processing handler; "continue" skips all
        of them.

        >>> from tidewheel import StreamsBuilder
        >>> words = StreamsBuilder().stream("words", key_serde=str, value_serde=str)
        >>> words.map_values_batch(lambda values: [value.upper() for value in values])
        <KStream KSTREAM-MAPVALUES-0000000001>
        """
        call = Call.here("map_values_batch")
        function = call.function(mapper, FunctionKind.BATCH_MAPPER)
        return self._map_batches(call, name, OperatorSupplier(MapValuesBatch, (function,)))

    def map_batch(
        self,
        mapper: Callable[[Any], Any],
        *,
        frame: Literal["arrow", "pandas", "polars"] = "arrow",
        schema: Any = None,
        name: str | None = None,
    ) -> "KStream[K, Any]":
        """Replace values in batches, as tables: `mapper(table)` returns a table with as many rows.

        Needs the extra `[arrow]`. The table has a column for each field of the values (dicts,
        Structs, dataclasses, pydantic models), or one column `value` for other values; besides
        `_key`, `_timestamp` and `_headers`. The new values are dicts of the result's other columns,
        or plain values if its only one is `value`. Values None are in no table and stay
        None. Batches, calls and failures are those of `map_values_batch`.

        Args:
            mapper: Function or coroutine function. Its result may be a pyarrow Table or RecordBatch,
                a pandas or a polars DataFrame, in the order of the argument's rows.
            frame: Kind of its argument. "polars" and "pandas" use the table's memory, without a
                copy; pandas gets columns with Arrow's types.
            schema: A `pyarrow.Schema` of the values' fields. Without it, records of a batch share a
                table only if they have the same fields and types.
            name: Name of the node.

        Raises:
            TopologyError: An argument is wrong, or a library is not installed.

        >>> import pyarrow.compute as pc
        >>> from tidewheel import Serdes, StreamsBuilder
        >>> orders = StreamsBuilder().stream("orders", key_serde=str, value_serde=Serdes.json())
        >>> def with_total(table):
        ...     return table.append_column("total", pc.multiply(table["price"], table["count"]))
        >>> orders.map_batch(with_total)
        <KStream KSTREAM-MAPVALUES-0000000001>
        """
        call = Call.here("map_batch")
        tables = tables_of(frame, schema, call.context)
        function = call.function(mapper, FunctionKind.TABLE_MAPPER)
        return self._map_batches(call, name, OperatorSupplier(MapBatch, (function, tables)))

    def _map_batches(
        self, call: Call, name: str | None, supplier: OperatorSupplier
    ) -> "KStream[K, Any]":
        node = ProcessorGraphNode(
            name=self._part.graph.node_name("KSTREAM-MAPVALUES-", call.name(name)),
            location=call.location,
            supplier=supplier,
            changes_value=True,
        )
        self._part.graph.add(node, self._part.node)
        return self._stream(msgspec.structs.replace(self._part, node=node, value_serde=None))

    def _add_processor(
        self,
        call: Call,
        prefix: str,
        name: str | None,
        supplier: Callable[[], Any],
        stores: Sequence[str],
    ) -> ProcessorGraphNode:
        names = check_names(stores, "stores", call.context)
        brought = connected_stores(supplier, call.context)
        graph = self._part.graph
        for builder in brought:
            graph.add_state_store(replace(builder, location=builder.location or call.location))
        node = ProcessorGraphNode(
            # As in Kafka Streams, a user-given name here does not advance the name counter.
            name=call.name(name) or graph.node_name(prefix),
            location=call.location,
            supplier=supplier,
            store_names=tuple(dict.fromkeys((*(builder.spec.name for builder in brought), *names))),
            # Without it, the optimiser may move a later repartition above the processor, as Kafka
            # Streams does (KAFKA-19668).
            changes_value=True,
        )
        graph.add(node, self._part.node)
        return node
