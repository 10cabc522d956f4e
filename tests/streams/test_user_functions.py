import asyncio
import functools
import inspect
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tidewheel.streams import user_functions as functions
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.user_functions import (
    FunctionKind,
    accepts,
    adapt,
    caller_location,
    function_name,
)
from tidewheel.tasks.processing.api.coroutines import close_loop


def value_only(value: Any) -> Any:
    return value


def key_and_value(key: Any, value: Any) -> Any:
    return key, value


def with_default(value: Any, factor: int = 2) -> Any:
    return value * factor


def two_and_a_default(key: Any, value: Any, factor: int = 2) -> Any:
    return key, value * factor


def any_number(*values: Any) -> Any:
    return values


def one_and_more(value: Any, *rest: Any, **options: Any) -> Any:
    return value, rest, options


@functools.wraps(key_and_value)
def wrapped(*args: Any, **kwargs: Any) -> Any:
    return key_and_value(*args, **kwargs)


class Model:
    def method(self, value: Any) -> Any:
        return value

    def keyed(self, key: Any, value: Any) -> Any:
        return key, value

    @staticmethod
    def static(key: Any, value: Any) -> Any:
        return key, value

    @classmethod
    def build(cls, value: Any) -> Any:
        return cls, value

    def __call__(self, key: Any, value: Any) -> Any:
        return key, value


@dataclass
class Order:
    amount: int
    currency: str = "EUR"


VALUE = [
    value_only, with_default, any_number, one_and_more, lambda value: value, Model().method, Model.build, Order,
    functools.partial(key_and_value, "k"), functools.partial(with_default, factor=3),
    str, int, float, bool, list, dict, len, print, str.upper, operator.itemgetter(0), abs, round, repr,
]  # fmt: skip
KEY_AND_VALUE = [
    key_and_value, two_and_a_default, wrapped, lambda key, value: value, Model().keyed, Model.static, Model(),
    functools.partial(lambda a, key, value: value, 1), operator.add,
]  # fmt: skip


@pytest.mark.parametrize("function", VALUE, ids=function_name)
@pytest.mark.parametrize("kind", ["mapper", "predicate"])
def test_one_parameter_receives_the_value(function: Callable[..., Any], kind: str) -> None:
    adapted = adapt(function, kind=kind, node="map_values")

    assert adapted.call is function
    assert not adapted.takes_key


@pytest.mark.parametrize("function", KEY_AND_VALUE, ids=function_name)
def test_two_parameters_receive_key_and_value(function: Callable[..., Any]) -> None:
    assert adapt(function, kind="mapper", node="map_values").takes_key


@pytest.mark.parametrize(
    ("kind", "function", "takes_key"),
    [
        ("joiner", lambda left, right: (left, right), False),
        ("joiner", lambda key, left, right: (key, left, right), True),
        ("joiner", lambda left, right, separator="-": (left, right, separator), False),
        ("joiner", any_number, False),
        ("joiner", max, False),
        ("aggregator", lambda key, value, aggregate: (key, value, aggregate), True),
        ("aggregator", any_number, True),
        ("initializer", lambda: 0, False),
        ("initializer", int, False),
        ("initializer", list, False),
        ("initializer", dict, False),
        ("initializer", lambda start=5: start, False),
        ("reducer", lambda aggregate, value: aggregate + value, False),
        ("reducer", operator.add, False),
        ("reducer", max, False),
        ("merger", lambda key, first, second: (key, first, second), True),
    ],
)
def test_functions_of_other_kinds_may_receive_the_key(
    kind: str, function: Callable[..., Any], *, takes_key: bool
) -> None:
    assert adapt(function, kind=kind, node="x").takes_key is takes_key


def positional_only(value: Any, /) -> Any:
    return value


def test_positional_only_parameters_count() -> None:
    assert not adapt(positional_only, kind="mapper", node="map").takes_key


def nothing() -> None: ...


def three(a: Any, b: Any, c: Any) -> Any:
    return a, b, c


def only_defaults(value: Any = None) -> Any:
    return value


def keyword_only(value: Any, *, unit: str) -> Any:
    return value, unit


@pytest.mark.parametrize(
    ("kind", "function", "problem"),
    [
        ("mapper", nothing, r"mapper nothing\(\) takes 0 positional parameters .* \(value\) or \(key, value\)"),
        ("mapper", three, r"mapper three\(a, b, c\) takes 3 positional parameters"),
        ("mapper", only_defaults, r"takes 0 positional parameters without a default"),
        ("mapper", keyword_only, r"needs the keyword-only parameter 'unit'"),
        ("mapper", functools.partial(three), r"partial\(three\)"),
        ("mapper", Model.keyed, r"Model.keyed\(self, key, value\) takes 3"),
        ("predicate", "amount > 3", r"the predicate is of type str, not a function"),
        ("joiner", value_only, r"takes 1 positional parameter without .* \(left, right\) or \(key, left, right\)"),
        ("aggregator", key_and_value, r"it must take \(key, value, aggregate\)"),
        ("initializer", value_only, r"it must take no parameter"),
        ("initializer", 0, r"the initializer is of type int, not a function"),
        ("reducer", three, r"it must take \(aggregate, value\)"),
        ("merger", key_and_value, r"it must take \(key, aggregate1, aggregate2\)"),
    ],
)  # fmt: skip
def test_invalid_signatures_are_refused(kind: str, function: Any, problem: str) -> None:
    with pytest.raises(TopologyError, match=r"^filter \(app\.py:12\): .*" + problem):
        adapt(function, kind=kind, node="filter", location="app.py:12")


def test_defaults_are_not_quoted() -> None:
    with pytest.raises(TopologyError) as caught:
        adapt(lambda password="hunter2": password, kind="mapper", node="map")

    assert "hunter2" not in str(caught.value)


async def waits(value: Any) -> Any:
    return value


async def yields(value: Any) -> Any:
    yield value


class Waiter:
    async def __call__(self, value: Any) -> Any:
        return value

    async def method(self, value: Any) -> Any:
        return value


@functools.wraps(waits)
def wrapped_waits(*args: Any) -> Any:
    return waits(*args)


@pytest.mark.parametrize("kind", ["mapper", "predicate", "batch mapper"])
@pytest.mark.parametrize(
    "function",
    [waits, Waiter(), Waiter().method, functools.partial(waits), wrapped_waits],
    ids=function_name,
)
def test_coroutine_functions_are_awaited(kind: str, function: Callable[..., Any]) -> None:
    adapted = adapt(function, kind=kind, node="map_values")
    assert adapted.call("value") == "value"
    assert (adapted.takes_key, adapted.name) == (False, function_name(function))
    close_loop()


def test_a_wrapper_that_awaits_is_not_awaited_again() -> None:
    @functools.wraps(waits)
    def waited(value: Any) -> Any:
        return asyncio.run(waits(value))

    assert adapt(waited, kind="mapper", node="map_values").call(7) == 7


@pytest.mark.parametrize(
    ("function", "kind", "what"),
    [
        (yields, "joiner", "an async generator"),
        (waits, "initializer", "an async function"),
        (waits, "reducer", "an async function"),
        (waits, "aggregator", "an async function"),
        (waits, "joiner", "an async function"),
        (waits, "merger", "an async function"),
    ],
)
def test_coroutine_functions_are_refused_in_other_places(
    function: Callable[..., Any], kind: str, what: str
) -> None:
    with pytest.raises(TopologyError, match=rf"is {what}; only mappers, predicates"):
        adapt(function, kind=kind, node="map_values")


def test_a_class_with_an_async_call_is_a_plain_constructor() -> None:
    assert adapt(Waiter, kind="initializer", node="aggregate").call is Waiter


@pytest.mark.parametrize(
    ("kind", "function", "name"),
    [
        ("mapper", value_only, "value_only"),
        ("mapper", Model().method, "Model.method"),
        ("mapper", Model(), "Model"),
        ("mapper", Order, "Order"),
        ("mapper", functools.partial(value_only), "partial(value_only)"),
        ("initializer", dict, "dict"),
    ],
)
def test_names_for_messages(kind: str, function: Callable[..., Any], name: str) -> None:
    assert adapt(function, kind=kind, node="map").name == function_name(function) == name


@pytest.mark.parametrize(
    ("function", "arguments", "expected"),
    [
        (value_only, 1, True), (value_only, 2, False), (with_default, 2, True), (any_number, 9, True),
        (keyword_only, 1, False), (nothing, 0, True), (max, 2, True),
    ],
)  # fmt: skip
def test_accepts(function: Callable[..., Any], arguments: int, *, expected: bool) -> None:
    assert accepts(function, arguments) is expected


def test_kind_is_an_enumeration_and_its_text() -> None:
    assert adapt(value_only, kind=FunctionKind.MAPPER, node="map") == adapt(
        value_only, kind="mapper", node="map"
    )


def test_caller_location_is_the_users_line() -> None:
    frame = inspect.currentframe()
    assert frame is not None
    here = frame.f_lineno + 1
    path, _, line = caller_location().rpartition(":")

    assert line == str(here)
    assert path.endswith("tests/streams/test_user_functions.py")


def test_caller_location_skips_frames_of_the_package() -> None:
    code = compile(
        "def build(ask):\n    return inner(ask)\ndef inner(ask):\n    return ask()\n",
        functions.__file__,
        "exec",
    )
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - compiled above, to stand for a frame of the package

    assert "test_user_functions.py" in names["build"](caller_location)
