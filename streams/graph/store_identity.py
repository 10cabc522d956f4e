"""Fingerprints of the operators behind generated store and repartition topic names.

A changed program may give a generated name, with its existing rows, to another operator. Commits
store two fingerprints per name, and a start compares them
(`tidewheel.tasks.restore.offset_origin.check_names`). The first covers names and constants of
functions, as in earlier versions. The second also covers their operations.
"""

import re
import sys
import zlib
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from types import (
    BuiltinFunctionType,
    CellType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, Final, TypeAlias, TypeGuard, cast

from tidewheel.state_stores.spec import StoreSpec
from tidewheel.streams.definitions.sameness import attributes_of
from tidewheel.streams.graph.function_source import FunctionSources
from tidewheel.streams.serdes import Serde
from tidewheel.tasks.commit_facts import NamedOperator
from tidewheel.tasks.processing.api.topology_spec import (
    ExternalSinkSpec,
    NodeSpec,
    ProcessorSpec,
    SinkSpec,
    SourceSpec,
    TopologySpec,
)
from tidewheel.tasks.processing.engine.operator import OperatorSupplier

_Function: TypeAlias = "FunctionType | MethodType | partial[Any]"

#: Generated name of a store or repartition topic, with its ten-digit counter.
_GENERATED: Final = re.compile(r"\A(?:COGROUP)?K(?:STREAM|TABLE)-.*-\d{10}(?:-.*)?\Z")
_NUMBER: Final = re.compile(r"-?\d{10}")
#: End of a text such as `file.py:12`. Fingerprints omit such texts: edits change line numbers.
_PLACE: Final = re.compile(r":\d+\)?\Z")
#: Memory address in an object's `repr`, which differs in each process.
_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+", re.IGNORECASE)
#: Start of a generated name. A text that contains one is compared without its numbers.
_COUNTED: Final = re.compile(r"K(?:STREAM|TABLE)-")
_STABLE_MODULES: Final = sys.stdlib_module_names | {"tidewheel"}
_BUILTINS: Final = (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    MethodDescriptorType,
    MethodWrapperType,
    WrapperDescriptorType,
)
#: A function's fingerprint includes the values of global variables of these types. Others may
#: change at run time, so it includes only their type.
_FIXED: Final = (
    *_BUILTINS, FunctionType, MethodType, ModuleType, partial, type,
    Enum, str, bytes, int, float, complex, tuple, frozenset, type(None),
)  # fmt: skip
_CONTAINERS: Final = (tuple, list, dict, set, frozenset)
_DEPTH: Final = 8
_PARTS_MAX: Final = 2_000
_DETAILS_MAX: Final = 20_000


def named_operators(spec: TopologySpec) -> dict[str, NamedOperator]:
    identities, details = _Identities(spec, _Parts), _Identities(spec, _details(spec))
    operators: dict[str, NamedOperator] = {}
    for subtopology in spec.subtopologies:
        for store in subtopology.stores:
            writers = [node for node in subtopology.nodes if _writes(node, store.name)]
            if writers and _GENERATED.match(store.name):
                operators[store.name] = NamedOperator(
                    fingerprint=identities.of(writers[0]),
                    details=details.of_store(store, writers),
                    location=writers[0].location,
                )
        for node in subtopology.nodes:
            if isinstance(node, SinkSpec) and node.internal and isinstance(node.topic, str):
                if not _GENERATED.match(node.topic):
                    continue
                operators[node.topic] = NamedOperator(
                    fingerprint=identities.of(node),
                    details=details.of(node),
                    location=node.location,
                )
    return operators


def program_fingerprint(spec: TopologySpec, *others: object) -> int:
    """Return a fingerprint of a topology's functions and settings, and of other functions.

    It is equal in every process for the same program, and covers functions that those call.
    """
    details, describe = _Identities(spec, _details(spec)), _details(spec)
    nodes = [node for subtopology in spec.subtopologies for node in subtopology.nodes]
    sources = [
        (node.key_serde, node.value_serde, node.timestamp_extractor)
        for node in nodes
        if isinstance(node, SourceSpec)
    ]
    stores = [store for subtopology in spec.subtopologies for store in subtopology.stores]
    parts = [describe().of(part, _DEPTH) for part in (*sources, *stores, *others)]
    return zlib.crc32(repr(([details.of(node) for node in nodes], parts)).encode())


def _writes(node: NodeSpec, store: str) -> bool:
    return isinstance(node, ProcessorSpec) and store in node.stores and store not in node.reads


class _Identities:
    """Fingerprints of nodes, including their inputs."""

    def __init__(self, spec: TopologySpec, describe: "Callable[[], _Parts]") -> None:
        self._describe = describe
        self._nodes = {
            node.name: node for subtopology in spec.subtopologies for node in subtopology.nodes
        }
        self._writers: dict[str, list[SinkSpec]] = {}
        for node in self._nodes.values():
            if isinstance(node, SinkSpec) and node.internal and isinstance(node.topic, str):
                self._writers.setdefault(node.topic, []).append(node)
        self._checksums: dict[str, int] = {}

    def of(self, node: NodeSpec) -> int:
        if node.name not in self._checksums:
            self._checksums[node.name] = 0  # breaks cycles: a sub-topology may read its own output
            self._checksums[node.name] = zlib.crc32(repr(self._described(node)).encode())
        return self._checksums[node.name]

    def of_store(self, store: StoreSpec, writers: Sequence[NodeSpec]) -> int:
        described = (self._describe().of(store, _DEPTH), [self.of(writer) for writer in writers])
        return zlib.crc32(repr(described).encode())

    def _described(self, node: NodeSpec) -> object:
        match node:
            case SourceSpec() if node.internal:
                writers = [
                    writer for topic in node.topics for writer in self._writers.get(topic, ())
                ]
                return ("repartition", [self.of(writer) for writer in writers])
            case SourceSpec():
                pattern = None if node.pattern is None else node.pattern.pattern
                return ("source", sorted(node.topics), pattern)
            case _:
                parents = [self.of(self._nodes[parent]) for parent in node.parents]
                return (_without_number(node.name), self._describe().of_work(node), parents)


class _Parts:
    """Descriptions of functions and settings, equal in every process for the same program."""

    def __init__(self) -> None:
        self._left = _PARTS_MAX

    def of_work(self, node: ProcessorSpec | SinkSpec | ExternalSinkSpec) -> object:
        if isinstance(node, SinkSpec | ExternalSinkSpec):
            return "sink"
        if isinstance(node.supplier, OperatorSupplier):
            return self.of(node.supplier.arguments, _DEPTH)
        return self.of(node.supplier, _DEPTH)

    def of(self, value: Any, depth: int) -> object:
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
            return [self.of(part, depth) for part in (value.func, value.args, value.keywords)]
        cells = [self.of(_content(cell), depth) for cell in value.__closure__ or ()]
        defaults = self.of(value.__defaults__, depth)
        return (value.__qualname__, _code(value.__code__), defaults, cells)

    def _of_parts(self, value: Any, depth: int) -> object:
        if isinstance(value, tuple | list):
            return [self.of(item, depth) for item in cast("Sequence[object]", value)]
        if isinstance(value, dict):
            items = cast("dict[object, object]", value).items()
            return sorted(
                (str(self.of(key, depth)), str(self.of(part, depth))) for key, part in items
            )
        if isinstance(value, set | frozenset):
            return sorted(str(self.of(item, depth)) for item in cast("frozenset[object]", value))
        parts = [self.of(attribute, depth) for attribute in attributes_of(value) or ()]
        return (type(value).__qualname__, parts)


class _Details(_Parts):
    """Descriptions that include operations of functions, builtins and class methods.

    A changed description alone is harmless. A start fails only if an operator's description from
    the last commit now has another generated name: the operator would get another's rows.
    """

    def __init__(self, sources: FunctionSources, locations: frozenset[str]) -> None:
        super().__init__()
        self._left = _DETAILS_MAX
        self._ways: tuple[tuple[Any, Callable[[Any, int], object]], ...] = (
            (Enum, lambda value, _: (type(value).__qualname__, value.name)),
            (str, self._of_text),
            ((bool, int, float, complex, bytes, type(None)), lambda value, _: repr(value)),
            (ModuleType, lambda value, _: _module(value.__name__)),
            (Serde, lambda value, _: (type(value).__qualname__, getattr(value, "name", ""))),
            (type, self._of_class),
            (CodeType, self._of_code),
            ((FunctionType, MethodType, partial), self._of_function),
            (_BUILTINS, self._of_builtin),
        )
        self._sources = sources
        self._locations = locations
        self._visited: set[int] = set()

    def of_work(self, node: ProcessorSpec | SinkSpec | ExternalSinkSpec) -> object:
        if isinstance(node, ExternalSinkSpec):
            return "sink"
        if isinstance(node, SinkSpec):
            return ("sink", self.of(node.partitioner, _DEPTH))
        kind = node.supplier.operator if isinstance(node.supplier, OperatorSupplier) else None
        return (None if kind is None else kind.__qualname__, super().of_work(node))

    def of(self, value: Any, depth: int) -> object:
        self._left -= 1
        if depth == 0 or self._left < 0:
            return "..."
        for kinds, describe in self._ways:
            if isinstance(value, kinds):
                return describe(value, depth - 1)
        return self._of_parts(value, depth - 1)

    def _of_text(self, text: str, _: int) -> object:
        if any(text.endswith((location, f"{location})")) for location in self._locations):
            return ""
        return repr(_without_number(text) if _COUNTED.search(text) else text)

    def _of_class(self, kind: type, depth: int) -> object:
        methods: list[object] = []
        if not _is_known(kind.__module__) and id(kind) not in self._visited:
            self._visited.add(id(kind))
            functions = {
                name: getattr(attribute, "__func__", attribute)
                for name, attribute in vars(kind).items()
            }
            methods = [
                (name, self._of_code(attribute.__code__, depth))
                for name, attribute in sorted(functions.items())
                if isinstance(attribute, FunctionType)
            ]
        return (kind.__qualname__, methods)

    def _of_function(self, value: _Function, depth: int) -> object:
        if isinstance(value, MethodType):
            return [self.of(part, depth) for part in (value.__func__, value.__self__)]
        if isinstance(value, partial):
            return super()._of_function(value, depth)
        code = value.__code__
        cells = {
            name: self.of(_content(cell), depth)
            for name, cell in zip(code.co_freevars, value.__closure__ or (), strict=True)
        }
        defaults = [self.of(part, depth) for part in (value.__defaults__, value.__kwdefaults__)]
        if _is_known(value.__module__):
            return (_module(value.__module__), value.__qualname__, defaults, sorted(cells.items()))
        if id(value) in self._visited:
            return "seen"
        self._visited.add(id(value))
        work = self._sources.of(value)
        if work is None:
            work = self._of_code(code, depth)
        global_values = {
            name: value.__globals__[name] for name in _names(code) & value.__globals__.keys()
        }
        globals_ = [
            (name, self.of(part, depth) if isinstance(part, _FIXED) else type(part).__qualname__)
            for name, part in sorted(global_values.items())
        ]
        return (work, defaults, sorted(cells.items()), globals_)

    def _of_builtin(self, value: Any, depth: int) -> object:
        owner = getattr(value, "__self__", None)
        return (
            _module(getattr(value, "__module__", None)),
            value.__qualname__,
            self.of(owner, depth),
        )

    def _of_code(self, code: CodeType, depth: int) -> object:
        constants = [self.of(constant, depth) for constant in code.co_consts]
        return (code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, constants)

    def _of_parts(self, value: Any, depth: int) -> object:
        if isinstance(value, _CONTAINERS) or attributes_of(value) is not None:
            kind: type = type(cast("object", value))
            return (self.of(kind, depth), super()._of_parts(value, depth))
        # An object of C code, such as operator.itemgetter, may show its parts in `repr` only.
        text = repr(cast("object", value))
        return (type(value).__qualname__, "" if _ADDRESS.search(text) else text)


def _details(spec: TopologySpec) -> Callable[[], _Parts]:
    nodes = [node for subtopology in spec.subtopologies for node in subtopology.nodes]
    locations = frozenset(node.location for node in nodes if node.location)
    return partial(_Details, FunctionSources(), locations)


def _module(name: str | None) -> str | None:
    """Return the module name, shortened to "tidewheel": moving a module keeps fingerprints."""
    return "tidewheel" if name is not None and name.partition(".")[0] == "tidewheel" else name


def _is_known(module: str | None) -> bool:
    """Return True for modules of Python and Tidewheel.

    Their functions are compared by name: their code changes between versions.
    """
    return (module or "").partition(".")[0] in _STABLE_MODULES


def _names(code: CodeType) -> set[str]:
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)


def _is_function(value: object) -> TypeGuard[_Function]:
    return isinstance(value, FunctionType | MethodType | partial)


def _content(cell: CellType) -> object:
    try:
        return cast("object", cell.cell_contents)
    except ValueError:
        return None


def _code(code: CodeType) -> object:
    """Return the names and constants of a function, equal in every Python version."""
    inner = [_code(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    constants = sorted(
        repr(constant)
        for constant in code.co_consts
        if isinstance(constant, str | bytes | int | float)
    )
    return (code.co_names, code.co_varnames[: code.co_argcount], constants, inner)


def _without_number(name: str) -> str:
    return _NUMBER.sub("", name)
