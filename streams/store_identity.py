"""Identity of the operators behind generated names of stores and repartition topics.

A generated name counts the calls of the program, so a change of the program gives it to another operator, and with it the rows
or records that are there. Commits carry a fingerprint per name; a start compares them (`tasks.offset_origin.check_names`).
"""

import re
import zlib
from collections.abc import Sequence
from enum import Enum
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, Final, TypeAlias, TypeGuard, cast

from streams.sameness import attributes_of
from streams.serdes import Serde
from tasks.commit_facts import NamedOperator
from tasks.processing.operator import OperatorSupplier
from tasks.processing.topology_spec import (
    NodeSpec,
    ProcessorSpec,
    SinkSpec,
    SourceSpec,
    TopologySpec,
)

_Function: TypeAlias = "FunctionType | MethodType | partial[Any]"

#: A name with a number of the program's counting in it.
_GENERATED: Final = re.compile(r"\AK(?:STREAM|TABLE)-.*-\d{10}(?:-.*)?\Z")
_NUMBER: Final = re.compile(r"-?\d{10}")
#: A place in the user's program moves with every edit.
_PLACE: Final = re.compile(r":\d+\)?\Z")
_DEPTH: Final = 8
_PARTS_MAX: Final = 2_000


def named_operators(spec: TopologySpec) -> dict[str, NamedOperator]:
    """Return the operator of each generated name of a store with a changelog or a repartition topic."""
    identities = _Identities(spec)
    found: dict[str, NamedOperator] = {}
    for subtopology in spec.subtopologies:
        generated = {each.name for each in subtopology.stores if _GENERATED.match(each.name)}
        for node in subtopology.nodes:
            names: list[str] = []
            if isinstance(node, ProcessorSpec):
                names = [store for store in node.stores if store in generated]
            elif isinstance(node, SinkSpec) and node.internal and isinstance(node.topic, str):
                names = [node.topic] if _GENERATED.match(node.topic) else []
            for name in names:
                # The first node with a store writes it.
                found.setdefault(
                    name,
                    NamedOperator(fingerprint=identities.of(node), location=node.location),
                )
    return found


class _Identities:
    """Fingerprints of nodes: of what they do, and of what they read from."""

    def __init__(self, spec: TopologySpec) -> None:
        self._nodes = {node.name: node for each in spec.subtopologies for node in each.nodes}
        self._writers: dict[str, list[SinkSpec]] = {}
        for node in self._nodes.values():
            if isinstance(node, SinkSpec) and node.internal and isinstance(node.topic, str):
                self._writers.setdefault(node.topic, []).append(node)
        self._known: dict[str, int] = {}

    def of(self, node: NodeSpec) -> int:
        """Return the fingerprint of a node."""
        if node.name not in self._known:
            self._known[node.name] = 0  # a sub-topology may read what it writes
            self._known[node.name] = zlib.crc32(repr(self._described(node)).encode())
        return self._known[node.name]

    def _described(self, node: NodeSpec) -> object:
        match node:
            case SourceSpec() if node.internal:
                writers = [each for topic in node.topics for each in self._writers.get(topic, ())]
                return ("repartition", [self.of(each) for each in writers])
            case SourceSpec():
                pattern = None if node.pattern is None else node.pattern.pattern
                return ("source", sorted(node.topics), pattern)
            case _:
                parents = [self.of(self._nodes[each]) for each in node.parents]
                return (_without_number(node.name), _work_of(node), parents)


def _work_of(node: ProcessorSpec | SinkSpec) -> object:
    if isinstance(node, SinkSpec):
        return "sink"
    if isinstance(node.supplier, OperatorSupplier):
        return _Parts().of(node.supplier.arguments, _DEPTH)
    return _Parts().of(node.supplier, _DEPTH)


class _Parts:
    """Describes functions and settings in words that every process uses for the same program."""

    def __init__(self) -> None:
        self._left = _PARTS_MAX

    def of(self, value: Any, depth: int) -> object:
        """Return a description of a value."""
        self._left -= 1
        if depth == 0 or self._left < 0:
            return "..."
        if _is_function(value):
            return self._of_function(value, depth - 1)
        if isinstance(value, str) and not isinstance(value, Enum):
            return "" if _PLACE.search(value) else _without_number(value)
        if isinstance(value, type | Serde):
            kind: type = value if isinstance(value, type) else type(cast("object", value))
            return kind.__qualname__
        if value is None or isinstance(value, Enum | int | float | bytes):
            return str(value)
        return self._of_parts(value, depth - 1)

    def _of_function(self, value: "_Function", depth: int) -> object:
        if isinstance(value, MethodType):
            return (value.__func__.__qualname__, self.of(value.__self__, depth))
        if isinstance(value, partial):
            return [self.of(each, depth) for each in (value.func, value.args, value.keywords)]
        cells = [self.of(_content(each), depth) for each in value.__closure__ or ()]
        defaults = self.of(value.__defaults__, depth)
        return (value.__qualname__, _code(value.__code__), defaults, cells)

    def _of_parts(self, value: Any, depth: int) -> object:
        if isinstance(value, tuple | list):
            return [self.of(each, depth) for each in cast("Sequence[object]", value)]
        if isinstance(value, dict):
            items = cast("dict[object, object]", value).items()
            return sorted(
                (str(self.of(key, depth)), str(self.of(each, depth))) for key, each in items
            )
        if isinstance(value, set | frozenset):
            return sorted(str(self.of(each, depth)) for each in cast("frozenset[object]", value))
        parts = [self.of(each, depth) for each in attributes_of(value) or ()]
        return (type(value).__qualname__, parts)


def _is_function(value: object) -> TypeGuard[_Function]:
    return isinstance(value, FunctionType | MethodType | partial)


def _content(cell: CellType) -> object:
    """Return what a closure's cell holds; None for one that is not filled yet."""
    try:
        return cast("object", cell.cell_contents)
    except ValueError:
        return None


def _code(code: CodeType) -> object:
    """Return the names and constants of a function, which are the same in every version of Python."""
    inner = [_code(each) for each in code.co_consts if isinstance(each, CodeType)]
    constants = sorted(
        repr(each) for each in code.co_consts if isinstance(each, str | bytes | int | float)
    )
    return (code.co_names, code.co_varnames[: code.co_argcount], constants, inner)


def _without_number(name: str) -> str:
    return _NUMBER.sub("", name)
