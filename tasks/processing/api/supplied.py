"""Checks of users' suppliers and the processors they make."""

import inspect
from collections.abc import Callable
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from types import FunctionType
from typing import Any, Final, cast

from tidewheel.state_stores.errors import StreamsError
from tidewheel.tasks.processing.api.processor import FixedKeyProcessor, Processor
from tidewheel.tasks.processing.api.topology_spec import ProcessorSpec

NOT_KEYED: Final = "it doesn't set `keyed = True`"

AnyProcessor = Processor[Any, Any, Any, Any] | FixedKeyProcessor[Any, Any, Any]

_GENERATOR_STEPS: Final = {
    "process": "call self.context.forward(record) instead of yielding",
    "transform": "return the value instead of yielding",
}


def fault_of(
    supplied: object, base: type[Any], method: str, arguments: tuple[str, ...]
) -> str | None:
    """Return the reason why a user's processor or transformer cannot work; None if it can.

    `method` is called for each record; only `process` may be a coroutine function. `base` is the
    library class to subclass.
    """
    kind: type[Any] = supplied if inspect.isclass(supplied) else type(supplied)
    for name in ("init", "close", method):
        function = _function_of(supplied, name)
        called = f"{kind.__name__}.{name}"
        if isgeneratorfunction(function) or isasyncgenfunction(function):
            step = _GENERATOR_STEPS.get(name, "give a plain function")
            return f"{called} is a generator, which would never run; {step}"
        if iscoroutinefunction(function) and name != "process":
            return f"{called} is an async function; give a plain one"
    wanted = f"{method}({', '.join(arguments)})"
    if kind is not base and _is_of(supplied, method, base):
        return f"{kind.__name__} has no {method} of its own; override {wanted}"
    function = _function_of(supplied, method)
    if function is not None and not accepts_arguments(function, len(arguments)):
        return f"{kind.__name__}.{method} can't be called as {wanted}; make that its parameters"
    return None


def _function_of(supplied: object, name: str) -> Callable[..., Any] | None:
    """Return a method with `self` already bound; None if it can't be determined."""
    if not inspect.isclass(supplied):
        function: Any = getattr(supplied, name, None)
        return function if callable(function) else None
    attribute: Any = inspect.getattr_static(supplied, name, None)
    if isinstance(attribute, FunctionType | staticmethod | classmethod):
        bound: Callable[..., Any] = cast("Any", attribute).__get__(object(), supplied)
        return bound
    return None


def _is_of(supplied: object, method: str, base: type[Any]) -> bool:
    attribute: Any = inspect.getattr_static(supplied, method, None)
    return attribute is inspect.getattr_static(base, method)


def accepts_arguments(function: Callable[..., Any], arguments: int) -> bool:
    """Return True if a callable accepts this number of arguments, or has no signature.

    >>> accepts_arguments(lambda record: None, 1), accepts_arguments(lambda key, value: None, 1)
    (True, False)
    """
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (ValueError, TypeError):
        return True
    try:
        signature.bind(*[None] * arguments)
    except TypeError:
        return False
    return True


def is_keyed(supplier: Callable[[], object]) -> bool:
    """Return True if the supplied class has `keyed = True`; calls a supplier function once more."""
    return getattr(_class_of(supplier), "keyed", False) is True


def makes_a(kind: type[Any], supplier: Callable[[], object]) -> bool:
    return issubclass(_class_of(supplier), kind)


def awaits(supplier: Callable[[], object]) -> bool:
    return iscoroutinefunction(getattr(_class_of(supplier), "process", None))


def _class_of(supplier: Callable[[], object]) -> type[Any]:
    return supplier if inspect.isclass(supplier) else type(supplier())


def checked_processor(supplied: object, spec: ProcessorSpec) -> AnyProcessor:
    where = f"{spec.name} ({spec.location})" if spec.location else spec.name
    if not isinstance(supplied, Processor | FixedKeyProcessor):
        raise StreamsError(
            f"{where}: the supplier made an object of type {type(supplied).__name__}; it must make a Processor"
        )
    processor: AnyProcessor = cast("Any", supplied)
    base = FixedKeyProcessor if isinstance(processor, FixedKeyProcessor) else Processor
    fault = fault_of(processor, base, "process", ("record",))
    if fault is not None:
        raise StreamsError(f"{where}: {fault}")
    return processor


def process_of(processor: AnyProcessor) -> tuple[Callable[[Any], Any], bool]:
    process: Callable[[Any], Any] = processor.process
    return process, iscoroutinefunction(process)
