"""Places and texts of errors, by the files that their frames come from."""

import json
import logging
import sysconfig
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest

from tidewheel import StreamsError
from tidewheel.state_stores import user_code
from tidewheel.state_stores.errors import SerdeError

OURS = f"{Path(user_code.__file__).parent}/loop.py"
pa: Any = import_module("pyarrow")
SITE = sysconfig.get_path("purelib")


def compiled(path: str, source: str, **names: Any) -> dict[str, Any]:
    exec(compile(source, path, "exec"), names)  # noqa: S102 - code of a file that does not exist
    return names


def caller(path: str, callee: Callable[[], object], name: str = "call") -> Callable[[], object]:
    names = compiled(path, f"def {name}():\n    return callee()\n", callee=callee)
    return cast("Callable[[], object]", names[name])


def fail() -> None:
    raise LookupError("no city")


def raised_by(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - the error is the result
        trace = error.__traceback__
        return error.with_traceback(None if trace is None else trace.tb_next)
    raise AssertionError


def frames(error: BaseException) -> list[str]:
    trace = user_code.user_trace(error)
    assert trace is not None
    text = logging.Formatter().formatException(trace)
    return [line.rpartition("in ")[2] for line in text.splitlines() if line.startswith("  File")]


def test_a_librarys_error_is_placed_at_the_users_line_that_called_it() -> None:
    def parse() -> object:
        return json.loads("{")

    error = raised_by(caller(OURS, parse))
    line = parse.__code__.co_firstlineno + 1
    assert user_code.place_of(error) == f"in parse() ({user_code.shown_path(__file__)}:{line})"
    assert frames(error)[0] == "parse"
    assert frames(error)[-1] == "raw_decode"


def test_frames_of_tidewheel_between_the_users_are_left_out() -> None:
    error = raised_by(caller("/app/shop.py", caller(OURS, fail), "outer"))
    assert frames(error) == ["outer", "fail"]


def test_an_unexpected_error_of_tidewheel_is_logged_with_all_its_frames() -> None:
    def fails_in_ours() -> object:
        return compiled(OURS, "def call():\n    raise LookupError\n")["call"]()

    error = raised_by(fails_in_ours)
    assert "fails_in_ours" in user_code.place_of(error)
    assert user_code.log_trace(error) == (LookupError, error, error.__traceback__)
    own = StreamsError("expected")
    assert user_code.log_trace(own) is None


def test_a_program_that_is_installed_as_a_package_is_user_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(user_code, "_programs", set())
    source = "def inner():\n    raise LookupError\n"
    inner = compiled(f"{SITE}/library/core.py", source)["inner"]
    error = raised_by(caller(OURS, caller(f"{SITE}/shop/prices.py", inner, "price")))
    assert user_code.user_trace(error) is None
    user_code.register_program(f"{SITE}/shop/app.py")
    assert (
        user_code.place_of(error) == f"in price() ({user_code.shown_path(SITE)}/shop/prices.py:2)"
    )
    assert frames(error) == ["price", "inner"]


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_each_folder_of_installed_libraries_is_no_user_code(folder: str) -> None:
    inner = compiled(f"/opt/python/lib/{folder}/http9.py", "def inner():\n    raise OSError\n")[
        "inner"
    ]
    error = raised_by(caller("/app/shop.py", inner, "ask"))
    assert user_code.place_of(error) == "in ask() (/app/shop.py:2)"


@pytest.mark.parametrize(
    ("file", "place"),
    [
        (f"{SITE}/pyarrow/lib.so", "in ask() (/app/shop.py:2)"),
        ("/app/fast.so", "in inner() (fast.pyx:2)"),
    ],
)
def test_compiled_code_belongs_to_its_modules_file(file: str, place: str) -> None:
    """Cython's frames have a relative path and the globals of their module."""
    source = "def inner():\n    raise OSError\n"
    inner = compiled("fast.pyx", source, __file__=file)["inner"]
    assert user_code.place_of(raised_by(caller("/app/shop.py", inner, "ask"))) == place


@pytest.mark.parametrize(
    "call",
    [lambda: pa.table({"a": [1]})["nope"], lambda: pa.array([1, "x"])],
    ids=["column", "types"],
)
def test_errors_of_pyarrow_are_placed_at_the_users_line(call: Callable[[], object]) -> None:
    line = call.__code__.co_firstlineno
    place = f"in a lambda ({user_code.shown_path(__file__)}:{line})"
    assert user_code.place_of(raised_by(caller(OURS, call))) == place


def test_causes_and_contexts_are_logged_without_frames_of_tidewheel() -> None:
    def handler() -> None:
        try:
            caller(OURS, fail)()
        except LookupError:
            try:
                raised_in_ours()
            except StreamsError as error:
                error.add_note("a hint")
                raise ValueError("worse") from error

    raised_in_ours = compiled(
        OURS, "def call():\n    raise StreamsError('ours')\n", StreamsError=StreamsError
    )["call"]
    error = raised_by(caller(OURS, caller("/app/shop.py", handler, "outer")))
    trace = user_code.log_trace(error)
    assert trace is not None
    text = logging.Formatter().formatException(trace)
    assert OURS not in text
    assert "StreamsError: ours\na hint\n" in text  # it has the user's frame that called Tidewheel
    assert "LookupError: no city\n" in text
    assert text.splitlines()[-1] == "ValueError: worse"
    assert frames(error) == ["handler", "fail", "handler", "outer", "handler"]


def test_causes_below_an_error_of_a_serde_are_logged_without_their_texts() -> None:
    def read(data: bytes) -> None:
        try:
            refuse(data)
        except ValueError as error:
            raise SerdeError("can't read") from error

    def refuse(data: bytes) -> None:
        raise ValueError(f"no name in {data!r}")

    def outer() -> None:
        try:
            caller(OURS, partial(read, b"sec" + b"ret"))()
        except SerdeError as error:
            raise OSError("no page") from error

    trace = user_code.user_trace(raised_by(outer))
    text = logging.Formatter().formatException(trace) if trace else ""
    assert "OSError: no page" in text
    assert "can't read" in text
    assert "in refuse" in text
    assert "secret" not in text


def test_parts_of_a_group_are_logged_without_frames_of_tidewheel() -> None:
    def both() -> None:
        raise BaseExceptionGroup("two", [raised_by(caller(OURS, caller(OURS, fail)))])

    trace = user_code.user_trace(raised_by(both))
    text = logging.Formatter().formatException(trace) if trace else ""
    assert OURS not in text
    assert "LookupError: no city" in text


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyError("cents"), "KeyError: 'cents'"),
        (TimeoutError(), "TimeoutError"),
        (ValueError("  "), "ValueError"),
        (StreamsError("no"), "StreamsError: no"),
        (json.JSONDecodeError("bad", "", 0), "json.decoder.JSONDecodeError: bad: line 1 column 1"),
        (ExceptionGroup("two", [OSError("busy"), KeyError()]), "ExceptionGroup: two (2 sub-exc"),
        (ValueError("\ud83d"), "ValueError: \\ud83d"),
    ],
)
def test_the_text_of_an_error_has_its_class(error: Exception, text: str) -> None:
    assert user_code.error_text(error).startswith(text)
    assert user_code.place_of(error) == ""


def test_an_error_in_a_serde_is_shown_without_its_text() -> None:
    from tidewheel import Serde  # noqa: PLC0415 - this package is below it

    def read(_topic: str, data: bytes) -> str:
        raise ValueError(f"no name in {data!r}")

    serde = Serde[str](lambda _topic, value: value.encode(), read)
    data = b"sec" + b"ret"
    error = raised_by(partial(serde.deserialize, "orders", data))
    assert "read() (" in str(error)
    trace = user_code.user_trace(error)
    text = logging.Formatter().formatException(trace) if trace else ""
    assert "in read" in text
    assert text.splitlines()[-1] == "ValueError"
    assert "secret" not in str(error) + text


def test_a_missing_working_directory_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert user_code.shown_path(f"{tmp_path}/a.py") == f"{tmp_path}/a.py"
