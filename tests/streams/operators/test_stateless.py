from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.operators.run import JSON, driver_of, outputs, run
from tidewheel import ErrorContext, ErrorResponse, RecordFailedError

ROWS = [("a", 1, 10), ("b", 2, 11), (None, 3, 12), ("d", None, 13)]

CASES: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "filter": (lambda s: s.filter(lambda v: v == 2), [("b", 2, 11)]),
    "filter with key": (lambda s: s.filter(lambda k, v: k is None), [(None, 3, 12)]),
    "filter not": (lambda s: s.filter_not(lambda v: v is None), ROWS[:3]),
    "map": (lambda s: s.map(lambda k, v: (v, k)), [(1, "a", 10), (2, "b", 11), (3, None, 12), (None, "d", 13)]),
    "map a list": (lambda s: s.map(lambda k, v: [k, 0]), [("a", 0, 10), ("b", 0, 11), (None, 0, 12), ("d", 0, 13)]),
    "map values": (lambda s: s.map_values(lambda v: v is None), [("a", False, 10), ("b", False, 11), (None, False, 12), ("d", True, 13)]),
    "map values with key": (lambda s: s.map_values(lambda k, v: k), [("a", "a", 10), ("b", "b", 11), (None, None, 12), ("d", "d", 13)]),
    "select key": (lambda s: s.select_key(lambda v: v), [(1, 1, 10), (2, 2, 11), (3, 3, 12), (None, None, 13)]),
    "flat map": (lambda s: s.flat_map(lambda k, v: [(v, i) for i in range(v or 0)]), [(1, 0, 10), (2, 0, 11), (2, 1, 11), (3, 0, 12), (3, 1, 12), (3, 2, 12)]),
    "flat map values": (lambda s: s.flat_map_values(lambda v: (v, v) if v == 1 else ()), [("a", 1, 10), ("a", 1, 10)]),
    "flat map values of a generator": (lambda s: s.flat_map_values(lambda v: (i for i in range(v or 0))), [("a", 0, 10), ("b", 0, 11), ("b", 1, 11), (None, 0, 12), (None, 1, 12), (None, 2, 12)]),
    "peek": (lambda s: s.peek(lambda v: "ignored"), ROWS),
    "merge": (lambda s: s.filter(lambda v: v == 1).merge(s.filter(lambda v: v != 1)), ROWS),
}  # fmt: skip


@pytest.mark.parametrize("record_by_record", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_records_are_kept_changed_and_dropped(name: str, record_by_record: bool) -> None:
    use, expected = CASES[name]
    assert run(use, ROWS, record_by_record=record_by_record) == expected


def test_headers_and_input_places_follow_their_records() -> None:
    places: list[Any] = []

    def topic(key: Any, value: Any, context: Any) -> str:
        places.append((context.topic, context.offset, context.headers))
        return "out"

    with driver_of(
        lambda s: (
            s.filter(lambda v: v > 1)
            .flat_map_values(lambda v: [v] * v)
            .select_key(lambda v: v)
            .to(topic, key_serde=JSON, value_serde=JSON)
        )
    ) as driver:
        source = driver.create_input_topic("in", key_serde=JSON, value_serde=JSON)
        for value in (1, 2, 3):
            source.pipe_input("k", value, 5, (("h", b"%d" % value),))
        records = driver.create_output_topic("out", key_serde=JSON, value_serde=JSON).read_records()
    assert [record.headers for record in records] == [(("h", b"2"),)] * 2 + [(("h", b"3"),)] * 3
    assert places == [("in", 1, (("h", b"2"),))] * 2 + [("in", 2, (("h", b"3"),))] * 3


@given(st.lists(st.integers(0, 9)), st.booleans(), st.booleans())
def test_split_sends_each_record_to_the_first_matching_branch(
    values: list[int], default: bool, record_by_record: bool
) -> None:
    asked: list[int] = []

    def big(value: int) -> bool:
        return value > 6

    def odd(value: int) -> bool:
        asked.append(value)
        return value % 2 == 1

    def use(stream: Any) -> None:
        branches = stream.split({"big": big, "odd": odd}, default="rest" if default else None)
        for name, branch in branches.items():
            branch.to(f"to-{name}", key_serde=JSON, value_serde=JSON)

    with driver_of(use, record_by_record=record_by_record) as driver:
        driver.create_input_topic("in", key_serde=JSON, value_serde=JSON).pipe_batch(
            [("k", value, 1) for value in values]
        )
        got = {
            name: [value for _, value, _ in outputs(driver, f"to-{name}")]
            for name in ("big", "odd", *(["rest"] if default else []))
        }
    small = [value for value in values if value <= 6]
    assert asked == small
    assert got == {
        "big": [value for value in values if value > 6],
        "odd": [value for value in small if value % 2],
        **({"rest": [value for value in small if value % 2 == 0]} if default else {}),
    }


# -- failures ---------------------------------------------------------------------------------------------------------


def boom(value: Any) -> Any:
    return 1 // value


def stop(value: Any) -> Any:
    return next(iter([value] * value))


FAILING: dict[str, Callable[..., Any]] = {
    "filter": lambda s, f: s.filter(lambda v: f(v) is not None),
    "filter_not": lambda s, f: s.filter_not(f).merge(s.filter(f)),
    "map": lambda s, f: s.map(lambda k, v: (k, (f(v), v)[1])),
    "map_values": lambda s, f: s.map_values(lambda v: (f(v), v)[1]),
    "flat_map": lambda s, f: s.flat_map(lambda k, v: [(k, (f(v), v)[1])]),
    "flat_map_values": lambda s, f: s.flat_map_values(lambda v: [(f(v), v)[1]]),
    "flat_map_values of a generator": lambda s, f: s.flat_map_values(
        lambda v: (x for x in [v] if f(v) is not None)
    ),
    "select_key": lambda s, f: s.select_key(lambda k, v: (f(v), k)[1]),
    "peek": lambda s, f: s.peek(f),
    "split": lambda s, f: s.split({"never": lambda v: f(v) is None}, default="rest")["rest"],
}


@pytest.mark.parametrize("function", [boom, stop])
@pytest.mark.parametrize("record_by_record", [False, True])
@pytest.mark.parametrize("name", [name for name in FAILING if name != "filter_not"])
def test_only_the_record_whose_function_fails_is_skipped(
    name: str, function: Callable[..., Any], record_by_record: bool
) -> None:
    values = [0, 1, 2, 0, 0, 3, 0]
    got = run(
        lambda s: FAILING[name](s, function).filter(lambda v: True),
        [(f"k{index}", value, index) for index, value in enumerate(values)],
        record_by_record=record_by_record,
        processing_exception_handler="continue",
    )
    expected = [(f"k{index}", value, index) for index, value in enumerate(values) if value]
    assert [(row[1], row[2]) for row in got] == [(row[1], row[2]) for row in expected]
    assert [row[0] for row in got] == [row[0] for row in expected]


@pytest.mark.parametrize("function", [boom, stop])
def test_a_function_is_called_once_per_record(function: Callable[..., Any]) -> None:
    calls: list[int] = []

    def noted(value: int) -> Any:
        calls.append(value)
        return function(value)

    values = [1, 0, 2, 0, 3]
    run(
        lambda s: s.map_values(noted),
        [("k", value, 1) for value in values],
        processing_exception_handler="continue",
    )
    assert calls == values


@pytest.mark.parametrize("function", [boom, stop])
@pytest.mark.parametrize("name", FAILING)
def test_by_default_a_failing_function_stops_the_worker(
    name: str, function: Callable[..., Any]
) -> None:
    with pytest.raises(RecordFailedError, match=r"KSTREAM-.*in-0 offset 2"):
        run(lambda s: FAILING[name](s, function), [("a", 1, 1), ("b", 2, 2), ("c", 0, 3)])


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda s: s.map(lambda k, v: v), r"must return \(key, value\), not int"),
        (lambda s: s.map(lambda k, v: (k, v, v)), r"must return \(key, value\), not tuple"),
        (lambda s: s.map(lambda k, v: None), r"must return \(key, value\), not NoneType"),
        (lambda s: s.flat_map(lambda k, v: [v]), r"must return \(key, value\), not int"),
        (
            lambda s: s.flat_map(lambda k, v: None),
            "must return an iterable of results, not NoneType",
        ),
        (
            lambda s: s.flat_map_values(lambda v: "text"),
            "must return an iterable of results, not str",
        ),
        (
            lambda s: s.flat_map_values(lambda v: 5),
            "must return an iterable of results, not int; return a list",
        ),
    ],
)
def test_results_of_a_wrong_type_fail_like_the_call(use: Any, message: str) -> None:
    with pytest.raises(RecordFailedError, match=message):
        run(use, [("a", 1, 1)])
    assert run(use, [("a", 1, 1)], processing_exception_handler="continue") == []


# -- whole batches ----------------------------------------------------------------------------------------------------


def test_map_values_batch_calls_once_for_a_batch() -> None:
    calls: list[list[Any]] = []

    def double(values: list[Any]) -> list[Any]:
        calls.append(values)
        return [value and value * 2 for value in values]

    expected = [("a", 2, 10), ("b", 4, 11), (None, 6, 12), ("d", None, 13)]
    assert run(lambda s: s.map_values_batch(double), ROWS) == expected
    assert calls == [[1, 2, 3, None]]
    calls.clear()
    assert run(lambda s: s.map_values_batch(double), ROWS, record_by_record=True) == expected
    assert calls == [[1], [2], [3], [None]]


async def _answer(value: Any) -> bool:
    return value is None


@pytest.mark.parametrize(
    "operator",
    [
        "filter", "filter_not", "flat_map", "flat_map_values", "foreach", "map", "map_values", "peek", "select_key",
        "split",
    ],
)  # fmt: skip
def test_a_coroutine_that_is_not_awaited_fails_its_record(operator: str) -> None:
    def use(stream: Any) -> Any:
        function: Any = lambda value: _answer(value)  # noqa: E731, PLW0108 - as users write it
        if operator == "split":
            return stream.split({"yes": function})["yes"]
        return getattr(stream, operator)(function) or stream

    with pytest.raises(RecordFailedError, match=r"give the coroutine function itself"):
        run(use, ROWS)


def test_only_the_records_whose_result_is_a_coroutine_fail() -> None:
    def some(value: Any) -> Any:
        if value == 1:
            raise ValueError(value)
        return _answer(value) if value == 2 else [value]

    got = run(lambda s: s.map_values(some), ROWS, processing_exception_handler="continue")
    assert got == [(key, [value], time) for key, value, time in ROWS[2:]]


@pytest.mark.parametrize(
    "make", [tuple, iter, lambda values: (each for each in values), dict.fromkeys]
)
def test_map_values_batch_accepts_any_iterable_of_equal_length(make: Callable[..., Any]) -> None:
    assert run(lambda s: s.map_values_batch(make), ROWS) == ROWS


@pytest.mark.parametrize(
    ("mapper", "error"),
    [
        (lambda values: values[1:], r"ValueError: .* returned 3 values for 4; return one for each"),
        (lambda values: [*values, 5], r"returned 5 values for 4"),
        (lambda values: None, r"<lambda> returned no values but NoneType; return a list"),
        (lambda values: 1 // 0, "ZeroDivisionError"),
        (lambda values: (1 // value for value in [1, 0, 1, 1]), "ZeroDivisionError"),
    ],
)
def test_a_failing_batch_is_passed_to_the_handler_record_by_record(
    mapper: Callable[..., Any], error: str
) -> None:
    told: list[int | None] = []

    def skip(context: ErrorContext, record: Any, raised: Exception) -> ErrorResponse:
        told.append(context.offset)
        return ErrorResponse(action="continue")

    assert run(lambda s: s.map_values_batch(mapper), ROWS, processing_exception_handler=skip) == []
    assert told == [0, 1, 2, 3]
    with pytest.raises(RecordFailedError, match=error):
        run(lambda s: s.map_values_batch(mapper), ROWS)


def test_a_failed_batch_does_not_affect_the_next_one() -> None:
    calls: list[list[Any]] = []

    def picky(values: list[Any]) -> list[Any]:
        calls.append(values)
        if 2 in values:
            raise ValueError("as told")
        return values

    use = lambda s: s.map_values_batch(picky)  # noqa: E731 - used twice
    with driver_of(use, processing_exception_handler="continue") as driver:
        source = driver.create_input_topic("in", key_serde=JSON, value_serde=JSON)
        source.pipe_batch(ROWS)
        source.pipe_batch([("e", 5, 20)])
        assert outputs(driver) == [("e", 5, 20)]
    assert calls == [[1, 2, 3, None], [5]]


def test_print_writes_label_key_and_value(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Kafka Streams: Printed."""

    def pipe(use: Callable[..., Any], rows: list[Any]) -> None:
        with driver_of(use) as driver:
            driver.create_input_topic("in", key_serde=JSON, value_serde=JSON).pipe_batch(rows)

    pipe(lambda s: s.print("seen"), ROWS[:2])
    pipe(lambda s: s.print(), ROWS[:1])
    assert (
        capsys.readouterr().out == "[seen]: a, 1\n[seen]: b, 2\n[KSTREAM-SOURCE-0000000000]: a, 1\n"
    )
    path = tmp_path / "printed.txt"
    for _ in range(2):
        pipe(lambda s: s.print("seen", path), ROWS[:1])
    assert path.read_text() == "[seen]: a, 1\n" * 2


def test_merge_of_many_keeps_the_order_of_each() -> None:
    def use(stream: Any) -> Any:
        parts = [stream.filter(lambda v, n=n: v is not None and v % 3 == n) for n in range(3)]
        return parts[0].merge(*parts[1:])

    assert run(use, ROWS) == ROWS[:3]
    assert run(use, ROWS, record_by_record=True) == ROWS[:3]
