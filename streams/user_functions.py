"""User functions, adapted at build time to their signatures."""

import inspect
import sys
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Any, Final, TypeGuard, cast

import msgspec

from tidewheel.state_stores.user_code import is_ours, register_program, shown_path, stopped_in
from tidewheel.streams.errors import StreamsError, TopologyError
from tidewheel.tasks.processing.api.coroutines import Awaiting

#: A function of `KafkaStreams.on_start` or `on_stop`.
Hook = Callable[[], Any]


class FunctionKind(StrEnum):
    """Purpose of a function, which decides its parameters."""

    MAPPER = "mapper"
    PREDICATE = "predicate"
    JOINER = "joiner"
    GLOBAL_JOINER = "joiner with a global table"
    INITIALIZER = "initializer"
    AGGREGATOR = "aggregator"
    REDUCER = "reducer"
    MERGER = "merger"
    BATCH_MAPPER = "batch mapper"
    TABLE_MAPPER = "table mapper"


class UserFunction(msgspec.Struct, frozen=True):
    """A user's callable and the parameters that it takes.

    Attributes:
        takes_key: True if the key comes first, as in `call(key, value)` or `call(key, left, right)`.
            Always true for aggregators and mergers, never for initializers and reducers.
        takes_mapped_key: True for `call(key, mapped_key, left, right)` of joiners with a global table.
        awaiting: What `call` waits for, if the callable is a coroutine function.
        original: The user's callable, which `call` may wrap.
    """

    call: Callable[..., Any]
    takes_key: bool
    name: str
    where: str = ""
    takes_mapped_key: bool = False
    awaiting: Awaiting | None = None
    original: Callable[..., Any] | None = None

    @property
    def shown(self) -> str:
        """Return the prefix of messages about the function's results.

        >>> adapt(str.upper, kind="mapper", node="map", location="app.py:3").shown
        'map (app.py:3): str.upper'
        """
        return f"{self.where}: {self.name}" if self.where else self.name


class _Form(msgspec.Struct, frozen=True):
    arguments: int
    takes_key: bool
    text: str
    takes_mapped_key: bool = False


# The first form is used for callables without a readable signature.
_VALUE_FORMS: Final = (_Form(1, False, "(value)"), _Form(2, True, "(key, value)"))
_JOINER_FORMS: Final = (_Form(2, False, "(left, right)"), _Form(3, True, "(key, left, right)"))
_FORMS: Final[dict[FunctionKind, tuple[_Form, ...]]] = {
    FunctionKind.MAPPER: _VALUE_FORMS,
    FunctionKind.PREDICATE: _VALUE_FORMS,
    FunctionKind.JOINER: _JOINER_FORMS,
    FunctionKind.GLOBAL_JOINER: (
        *_JOINER_FORMS,
        _Form(4, True, "(key, mapped_key, left, right)", takes_mapped_key=True),
    ),
    FunctionKind.INITIALIZER: (_Form(0, False, "no parameter"),),
    FunctionKind.AGGREGATOR: (_Form(3, True, "(key, value, aggregate)"),),
    FunctionKind.REDUCER: (_Form(2, False, "(aggregate, value)"),),
    FunctionKind.MERGER: (_Form(3, True, "(key, aggregate1, aggregate2)"),),
    FunctionKind.BATCH_MAPPER: (_Form(1, False, "(values)"),),
    FunctionKind.TABLE_MAPPER: (_Form(1, False, "(table)"),),
}

#: Kinds that may be coroutine functions.
_MAY_WAIT: Final = frozenset(
    {
        FunctionKind.MAPPER,
        FunctionKind.PREDICATE,
        FunctionKind.BATCH_MAPPER,
        FunctionKind.TABLE_MAPPER,
    }
)


class _Signature(msgspec.Struct, frozen=True):
    """Positional parameters of a callable.

    `most` counts all (None: any number), `required` those without default. `keyword_only`
    names a keyword-only parameter without default, which makes the callable unusable.
    """

    required: int
    most: int | None
    keyword_only: str | None
    text: str


def adapt(
    function: object, *, kind: FunctionKind | str, node: str, location: str = ""
) -> UserFunction:
    """Return the function with the parameter form (`_FORMS`) that its signature fits.

    The number of positional parameters without default decides. `*args`, C callables whose
    parameters all have defaults (`float`, `list`) and unreadable signatures get the shortest form.

    Raises:
        TopologyError: It is not callable, its signature fits no form, or it is a coroutine function
            of a kind other than mapper and predicate.

    >>> adapt(lambda value: value + 1, kind="mapper", node="map_values").takes_key
    False
    >>> adapt(lambda key, value: value, kind="mapper", node="map_values").takes_key
    True
    """
    kind = FunctionKind(kind)
    where = f"{node} ({location})" if location else node
    forms = _FORMS[kind]
    forms_text = " or ".join(form.text for form in forms)
    if not callable(function):
        raise TopologyError(
            f"{where}: the {kind} is of type {type(function).__name__}, not a function; give a callable that takes {forms_text}"
        )
    call = cast("Callable[..., Any]", function)
    name = function_name(call)
    awaited, generator = is_async(call), _is_async_generator(call)
    if generator and kind in _MAY_WAIT:
        raise TopologyError(
            f"{where}: {kind} {name!r} is an async generator, whose items are not collected; return a list from an async def"
        )
    if awaited and kind not in _MAY_WAIT:
        raise TopologyError(
            f"{where}: {kind} {name!r} is an async {'generator' if generator else 'function'}; only mappers, "
            "predicates and processors may be coroutine functions, because all else works on a store in between; give a "
            "plain function"
        )
    signature = _signature(call)
    form = forms[0] if signature is None else _matching_form(signature, forms, call)
    if form is None:
        assert signature is not None
        takes = (
            f"needs the keyword-only parameter {signature.keyword_only!r}"
            if signature.keyword_only is not None
            else f"takes {_counted(signature.required)} without a default"
        )
        raise TopologyError(
            f"{where}: {kind} {name}{signature.text} {takes}; it must take {forms_text}"
            " (parameters with defaults do not count)"
        )
    awaiting = Awaiting(call) if awaited else None
    return UserFunction(
        awaiting or call, form.takes_key, name, where, form.takes_mapped_key, awaiting, call
    )


def function_name(function: Callable[..., Any]) -> str:
    """Return a callable's name, without the text of its arguments.

    >>> function_name(str.upper), function_name(partial(int, base=2))
    ('str.upper', 'partial(int)')
    """
    if _is_partial(function):
        return f"partial({function_name(function.func)})"
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) else type(function).__qualname__


def stopped(function: UserFunction) -> RuntimeError:
    """Return the error of a call that raised `StopIteration`, which ends iterations unnoticed."""
    error = RuntimeError("StopIteration was raised; give next() a default")
    error.__cause__ = stopped_in(function.original or function.call)
    return error


def accepts(function: Callable[..., Any], arguments: int) -> bool:
    """Return True if a callable accepts this many arguments, or if its signature is unreadable."""
    signature = _signature(function)
    if signature is None:
        return True
    enough = signature.most is None or arguments <= signature.most
    return signature.keyword_only is None and signature.required <= arguments and enough


def checked_hook(function: Any, call: str) -> Hook:
    """Return a function that can be called without arguments.

    >>> checked_hook(5, "on_start")
    Traceback (most recent call last):
    ...
    tidewheel.state_stores.errors.StreamsError: on_start: 5 is of type int, not a function; give a function or coroutine function without parameters
    """
    if not callable(function):
        problem = f"{function!r} is of type {type(function).__name__}, not a function"
    elif inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        problem = f"{function_name(function)} is a generator, which would not run"
    elif not accepts(function, 0):
        problem = f"{function_name(function)} has parameters without defaults"
    else:
        hook: Hook = function
        return hook
    raise StreamsError(
        f"{call}: {problem}; give a function or coroutine function without parameters"
    )


def caller_location() -> str:
    """Return "file:line" of the innermost frame outside Tidewheel, or ""."""
    frame = inspect.currentframe()
    while frame is not None:
        path = frame.f_code.co_filename
        if not is_ours(path):
            register_program(path)
            return f"{shown_path(path)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _is_partial(function: object) -> TypeGuard[partial[Any]]:
    return isinstance(function, partial)


def _without_partials(function: Callable[..., Any]) -> Callable[..., Any]:
    while _is_partial(function):
        function = function.func
    return function


def is_async(function: Callable[..., Any]) -> bool:
    """Return True if a call, also through partials and wrappers, returns an awaitable."""
    function = inspect.unwrap(_without_partials(function))
    if inspect.isclass(function):
        return False
    # As in a call, `__call__` is looked up on the type.
    candidates = (function, inspect.getattr_static(type(function), "__call__", None))
    return any(inspect.iscoroutinefunction(f) or inspect.isasyncgenfunction(f) for f in candidates)


def _is_async_generator(function: Callable[..., Any]) -> bool:
    function = inspect.unwrap(_without_partials(function))
    candidates = (function, inspect.getattr_static(type(function), "__call__", None))
    return any(map(inspect.isasyncgenfunction, candidates))


def _signature(function: Callable[..., Any]) -> _Signature | None:
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # a C function or class without a signature
        return None
    required = 0
    most: int | None = 0
    keyword_only = None
    for parameter in signature.parameters.values():
        match parameter.kind:
            case inspect.Parameter.POSITIONAL_ONLY | inspect.Parameter.POSITIONAL_OR_KEYWORD:
                required += parameter.default is inspect.Parameter.empty
                most = None if most is None else most + 1
            case inspect.Parameter.VAR_POSITIONAL:
                most = None
            case inspect.Parameter.KEYWORD_ONLY if parameter.default is inspect.Parameter.empty:
                keyword_only = parameter.name
            case _:
                pass
    # Show names of parameters only: default values are user data.
    return _Signature(required, most, keyword_only, f"({', '.join(signature.parameters)})")


def _matching_form(
    signature: _Signature, forms: tuple[_Form, ...], function: Callable[..., Any]
) -> _Form | None:
    if signature.keyword_only is not None:
        return None
    for form in forms:
        if form.arguments == signature.required:
            return form
    # Python versions differ in which C callables (such as `bool`) have a readable signature. A
    # callable without one gets the shortest form, so C callables with default arguments must too.
    flexible = signature.most is None or not _is_written_in_python(function)
    if flexible:
        for form in forms:
            if signature.required < form.arguments and (
                signature.most is None or form.arguments <= signature.most
            ):
                return form
    return None


def _is_written_in_python(function: Callable[..., Any]) -> bool:
    function = _without_partials(function)
    if inspect.isclass(function):
        return function.__module__ not in sys.builtin_module_names
    return not inspect.isbuiltin(function) and not inspect.ismethoddescriptor(function)


def _counted(parameters: int) -> str:
    return f"{parameters} positional parameter{'' if parameters == 1 else 's'}"
