"""Stateless `KStream` operators: filters, mappers and side effects.

Mappers and predicates may be coroutine functions. The task's thread awaits one call at a time, on
an event loop of its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import msgspec

from tidewheel.streams.definitions.call import Call
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.graph.logical_graph import ProcessorGraphNode
from tidewheel.streams.graph.parts import StreamPart
from tidewheel.streams.operators import stateless
from tidewheel.streams.user_functions import UserFunction
from tidewheel.tasks.processing.engine.operator import Operator, OperatorSupplier

if TYPE_CHECKING:
    from tidewheel.streams.dsl.kstream import KStream
import os
import sys

K = TypeVar("K")
V = TypeVar("V")
K2 = TypeVar("K2")
V2 = TypeVar("V2")


class KStreamMappings(ABC, Generic[K, V]):
    """`KStream` operators without a store or a second stream."""

    _part: StreamPart

    @abstractmethod
    def _stream(self, part: StreamPart) -> "KStream[Any, Any]":
        """Return a `KStream` of this part."""

    @overload
    def filter(
        self, predicate: Callable[[V], object], *, name: str | None = None
    ) -> "KStream[K, V]": ...
    @overload
    def filter(
        self, predicate: Callable[[K, V], object], *, name: str | None = None
    ) -> "KStream[K, V]": ...
    def filter(
        self, predicate: Callable[..., object], *, name: str | None = None
    ) -> "KStream[K, V]":
        """Keep the records for which `predicate(value)` or `predicate(key, value)` holds.

        >>> from tidewheel import StreamsBuilder
        >>> StreamsBuilder().stream("in", key_serde=str, value_serde=int).filter(lambda n: n > 0)
        <KStream KSTREAM-FILTER-0000000001>
        """
        call = Call.here("filter")
        supplier = OperatorSupplier(stateless.Filter, (call.predicate(predicate), False))
        return self._stream(self._below(call, "KSTREAM-FILTER-", name, supplier))

    @overload
    def filter_not(
        self, predicate: Callable[[V], object], *, name: str | None = None
    ) -> "KStream[K, V]": ...
    @overload
    def filter_not(
        self, predicate: Callable[[K, V], object], *, name: str | None = None
    ) -> "KStream[K, V]": ...
    def filter_not(
        self, predicate: Callable[..., object], *, name: str | None = None
    ) -> "KStream[K, V]":
        """Keep the records for which `predicate(value)` or `predicate(key, value)` does not hold.

        >>> from tidewheel import StreamsBuilder
        >>> StreamsBuilder().stream("in", key_serde=str, value_serde=int).filter_not(lambda n: n > 0)
        <KStream KSTREAM-FILTER-0000000001>
        """
        call = Call.here("filter_not")
        supplier = OperatorSupplier(stateless.Filter, (call.predicate(predicate), True))
        return self._stream(self._below(call, "KSTREAM-FILTER-", name, supplier))

    @overload
    def map(
        self, mapper: Callable[[V], Coroutine[Any, Any, tuple[K2, V2]]], *, name: str | None = None
    ) -> "KStream[K2, V2]": ...
    @overload
    def map(
        self,
        mapper: Callable[[K, V], Coroutine[Any, Any, tuple[K2, V2]]],
        *,
        name: str | None = None,
    ) -> "KStream[K2, V2]": ...
    @overload
    def map(
        self, mapper: Callable[[V], tuple[K2, V2]], *, name: str | None = None
    ) -> "KStream[K2, V2]": ...
    @overload
    def map(
        self, mapper: Callable[[K, V], tuple[K2, V2]], *, name: str | None = None
    ) -> "KStream[K2, V2]": ...
    def map(self, mapper: Callable[..., Any], *, name: str | None = None) -> "KStream[Any, Any]":
        """Replace each record by the `(key, value)` of `mapper(value)` or `mapper(key, value)`.

        The key may change; prefer `map_values` if it does not.

        >>> from tidewheel import StreamsBuilder
        >>> orders = StreamsBuilder().stream("orders", key_serde=str, value_serde=int)
        >>> orders.map(lambda order_id, cents: (order_id.lower(), cents / 100))
        <KStream KSTREAM-MAP-0000000001>
        """
        return self._stream(self._mapped("map", mapper, name, stateless.Map, key=True, value=True))

    @overload
    def map_values(
        self, mapper: Callable[[V], Coroutine[Any, Any, V2]], *, name: str | None = None
    ) -> "KStream[K, V2]": ...
    @overload
    def map_values(
        self, mapper: Callable[[K, V], Coroutine[Any, Any, V2]], *, name: str | None = None
    ) -> "KStream[K, V2]": ...
    @overload
    def map_values(
        self, mapper: Callable[[V], V2], *, name: str | None = None
    ) -> "KStream[K, V2]": ...
    @overload
    def map_values(
        self, mapper: Callable[[K, V], V2], *, name: str | None = None
    ) -> "KStream[K, V2]": ...
    def map_values(
        self, mapper: Callable[..., Any], *, name: str | None = None
    ) -> "KStream[K, Any]":
        """Replace each value by the result of `mapper(value)` or `mapper(key, value)`.

        >>> from tidewheel import StreamsBuilder
        >>> StreamsBuilder().stream("in", key_serde=str, value_serde=str).map_values(len)
        <KStream KSTREAM-MAPVALUES-0000000001>
        """
        return self._stream(
            self._mapped("map_values", mapper, name, stateless.MapValues, value=True)
        )

    @overload
    def select_key(
        self, mapper: Callable[[V], Coroutine[Any, Any, K2]], *, name: str | None = None
    ) -> "KStream[K2, V]": ...
    @overload
    def select_key(
        self, mapper: Callable[[K, V], Coroutine[Any, Any, K2]], *, name: str | None = None
    ) -> "KStream[K2, V]": ...
    @overload
    def select_key(
        self, mapper: Callable[[V], K2], *, name: str | None = None
    ) -> "KStream[K2, V]": ...
    @overload
    def select_key(
        self, mapper: Callable[[K, V], K2], *, name: str | None = None
    ) -> "KStream[K2, V]": ...
    def select_key(
        self, mapper: Callable[..., Any], *, name: str | None = None
    ) -> "KStream[Any, V]":
        """Replace each key by the result of `mapper(value)` or `mapper(key, value)`.

        >>> from tidewheel import StreamsBuilder
        >>> StreamsBuilder().stream("in", key_serde=str, value_serde=str).select_key(lambda v: v[0])
        <KStream KSTREAM-KEY-SELECT-0000000001>
        """
        return self._stream(self._mapped("select_key", mapper, name, stateless.SelectKey, key=True))

    @overload
    def flat_map(
        self,
        mapper: Callable[[V], Coroutine[Any, Any, Iterable[tuple[K2, V2]]]],
        *,
        name: str | None = None,
    ) -> "KStream[K2, V2]": ...
    @overload
    def flat_map(
        self,
        mapper: Callable[[K, V], Coroutine[Any, Any, Iterable[tuple[K2, V2]]]],
        *,
        name: str | None = None,
    ) -> "KStream[K2, V2]": ...
    @overload
    def flat_map(
        self, mapper: Callable[[V], Iterable[tuple[K2, V2]]], *, name: str | None = None
    ) -> "KStream[K2, V2]": ...
    @overload
    def flat_map(
        self, mapper: Callable[[K, V], Iterable[tuple[K2, V2]]], *, name: str | None = None
    ) -> "KStream[K2, V2]": ...
    def flat_map(
        self, mapper: Callable[..., Any], *, name: str | None = None
    ) -> "KStream[Any, Any]":
        """Replace each record by all `(key, value)` of `mapper(value)` or `mapper(key, value)`.

        >>> from tidewheel import StreamsBuilder
        >>> lines = StreamsBuilder().stream("lines", key_serde=str, value_serde=str)
        >>> lines.flat_map(lambda line: [(word, 1) for word in line.split()])
        <KStream KSTREAM-FLATMAP-0000000001>
        """
        operator = stateless.FlatMap
        return self._stream(self._mapped("flat_map", mapper, name, operator, key=True, value=True))

    @overload
    def flat_map_values(
        self, mapper: Callable[[V], Coroutine[Any, Any, Iterable[V2]]], *, name: str | None = None
    ) -> "KStream[K, V2]": ...
    @overload
    def flat_map_values(
        self,
        mapper: Callable[[K, V], Coroutine[Any, Any, Iterable[V2]]],
        *,
        name: str | None = None,
    ) -> "KStream[K, V2]": ...
    @overload
    def flat_map_values(
        self, mapper: Callable[[V], Iterable[V2]], *, name: str | None = None
    ) -> "KStream[K, V2]": ...
    @overload
    def flat_map_values(
        self, mapper: Callable[[K, V], Iterable[V2]], *, name: str | None = None
    ) -> "KStream[K, V2]": ...
    def flat_map_values(
        self, mapper: Callable[..., Any], *, name: str | None = None
    ) -> "KStream[K, Any]":
        """Replace each value by all values that `mapper(value)` or `mapper(key, value)` returns.

        >>> from tidewheel import StreamsBuilder
        >>> lines = StreamsBuilder().stream("lines", key_serde=str, value_serde=str)
        >>> lines.flat_map_values(str.split)
        <KStream KSTREAM-FLATMAPVALUES-0000000001>
        """
        operator = stateless.FlatMapValues
        return self._stream(self._mapped("flat_map_values", mapper, name, operator, value=True))

    @overload
    def peek(
        self, action: Callable[[V], object], *, name: str | None = None
    ) -> "KStream[K, V]": ...
    @overload
    def peek(
        self, action: Callable[[K, V], object], *, name: str | None = None
    ) -> "KStream[K, V]": ...
    def peek(self, action: Callable[..., object], *, name: str | None = None) -> "KStream[K, V]":
        """Call `action(value)` or `action(key, value)` for each record and forward it unchanged.

        >>> from tidewheel import StreamsBuilder
        >>> StreamsBuilder().stream("in", key_serde=str, value_serde=str).peek(print)
        <KStream KSTREAM-PEEK-0000000001>
        """
        call = Call.here("peek")
        supplier = OperatorSupplier(stateless.Peek, (call.mapper(action),))
        return self._stream(self._below(call, "KSTREAM-PEEK-", name, supplier))

    @overload
    def foreach(self, action: Callable[[V], object], *, name: str | None = None) -> None: ...
    @overload
    def foreach(self, action: Callable[[K, V], object], *, name: str | None = None) -> None: ...
    def foreach(self, action: Callable[..., object], *, name: str | None = None) -> None:
        """Call `action(value)` or `action(key, value)` for each record; the stream ends here.

        >>> from tidewheel import StreamsBuilder
        >>> StreamsBuilder().stream("in", key_serde=str, value_serde=str).foreach(print)
        """
        call = Call.here("foreach")
        supplier = OperatorSupplier(stateless.Foreach, (call.mapper(action),))
        self._below(call, "KSTREAM-FOREACH-", name, supplier)

    def print(
        self, label: str = "", to: str | Path | None = None, *, name: str | None = None
    ) -> None:
        """Write each record as "[label]: key, value"; the stream ends here.

        Args:
            label: Text before each record; the node name if empty.
            to: File to append to, created by this call; default: standard output.

        >>> from tidewheel import StreamsBuilder
        >>> StreamsBuilder().stream("in", key_serde=str, value_serde=str).print("seen")
        """
        call = Call.here("print")
        path = None if to is None else printed_file(to, call.context)
        if not isinstance(label, str):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped users
            raise TopologyError(
                f"{call.context}: label is of type {type(label).__name__}; give a str to print before each record"
            )
        printer = Printer(label or self._part.node.name, path)
        function = UserFunction(call=printer, takes_key=True, name="print")
        supplier = OperatorSupplier(stateless.Foreach, (function,))
        self._below(call, "KSTREAM-PRINTER-", name, supplier)

    def _below(
        self, call: Call, prefix: str, name: str | None, supplier: OperatorSupplier
    ) -> StreamPart:
        node = ProcessorGraphNode(
            name=self._part.graph.node_name(prefix, call.name(name)),
            location=call.location,
            supplier=supplier,
        )
        self._part.graph.add(node, self._part.node)
        return msgspec.structs.replace(self._part, node=node)

    def _mapped(
        self,
        operator: str,
        mapper: Callable[..., Any],
        name: str | None,
        operator_class: type[Operator],
        *,
        key: bool = False,
        value: bool = False,
    ) -> StreamPart:
        call = Call.here(operator)
        supplier = OperatorSupplier(operator_class, (call.mapper(mapper),))
        part = self._below(call, _PREFIXES[operator], name, supplier)
        part.node.changes_key, part.node.changes_value = key, value
        return msgspec.structs.replace(
            part,
            key_serde=None if key else part.key_serde,
            value_serde=None if value else part.value_serde,
            rekeyed=key or part.rekeyed,
        )


_PREFIXES = {
    "map": "KSTREAM-MAP-",
    "map_values": "KSTREAM-MAPVALUES-",
    "select_key": "KSTREAM-KEY-SELECT-",
    "flat_map": "KSTREAM-FLATMAP-",
    "flat_map_values": "KSTREAM-FLATMAPVALUES-",
}


def printed_file(to: str | os.PathLike[str], context: str) -> Path:
    """Return a file path that can be appended to; create the file if missing."""
    try:
        path = Path(to)
        with path.open("a", encoding="utf-8"):
            return path
    except (OSError, TypeError, ValueError) as error:
        raise TopologyError(
            f"{context}: can't append to to={to!r}: {error}; give a file that can be written to"
        ) from error


class Printer:
    """Writer of "[label]: key, value" lines, for debugging.

    It opens the file for each line, so forked workers share no handle and may share the file.
    """

    def __init__(self, label: str, path: Path | None) -> None:
        self._label = label
        self._path = path

    def __call__(self, key: Any, value: Any) -> None:
        """Write one record."""
        line = f"[{self._label}]: {key}, {value}\n"
        if self._path is None:
            sys.stdout.write(line)
            return
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line)
