import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from tidewheel.streams.console_log import LogFormat, configure_logging, configured_format


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)


def test_without_a_terminal_each_record_is_a_json_line() -> None:
    out = io.StringIO()
    configure_logging(stream=out)
    logging.getLogger("tidewheel").info("state %s -> %s", "CREATED", "REBALANCING")
    line = json.loads(out.getvalue())
    assert line["message"] == "state CREATED -> REBALANCING"
    assert (line["level"], line["logger"]) == ("info", "tidewheel")
    assert line["time"].endswith("+00:00")
    assert set(line) == {"time", "level", "logger", "message"}


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_helpers_lines_have_the_same_form(log_format: LogFormat) -> None:
    logging.getLogger().handlers[:] = [logging.NullHandler()]
    assert configured_format() is None
    configure_logging(log_format=log_format, stream=io.StringIO())
    assert configured_format() == log_format


def test_a_worker_among_several_logs_its_slot() -> None:
    out = io.StringIO()
    configure_logging(stream=out, slot=2)
    logging.getLogger("x").warning("hello")
    assert json.loads(out.getvalue())["slot"] == 2
    out = io.StringIO()
    configure_logging(log_format="text", stream=out, slot=2)
    logging.getLogger("x").warning("hello")
    assert "[2] x: hello" in out.getvalue()


def test_an_exception_is_logged_completely_in_its_line() -> None:
    out = io.StringIO()
    configure_logging(stream=out)
    try:
        int("boom")
    except ValueError:
        logging.getLogger("x").exception("failed")
    (text,) = out.getvalue().splitlines()
    line = json.loads(text)
    assert line["error"] == "ValueError"
    assert line["trace"].endswith("invalid literal for int() with base 10: 'boom'")


def test_a_record_without_exception_info_has_no_exception() -> None:
    out = io.StringIO()
    configure_logging(stream=out)
    logging.getLogger("x").error("failed", exc_info=False)
    assert json.loads(out.getvalue())["message"] == "failed"


def test_a_terminal_shows_text_with_its_markup_characters() -> None:
    out = _Terminal()
    configure_logging(stream=out)
    logging.getLogger("x").info("bad value [bold]")
    text = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    assert "bad value [bold]" in text


def test_records_below_the_level_are_not_shown() -> None:
    out = io.StringIO()
    configure_logging("warning", stream=out)
    logging.getLogger("x").info("quiet")
    assert out.getvalue() == ""


def test_json_can_be_selected_on_a_terminal() -> None:
    out = _Terminal()
    configure_logging(log_format="json", stream=out)
    logging.getLogger("x").info("hello")
    assert json.loads(out.getvalue())["message"] == "hello"


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_trace_shows_no_password_of_a_url(log_format: LogFormat) -> None:
    out = io.StringIO()
    configure_logging(log_format=log_format, stream=out)
    try:
        int("http://me:canary@registry:8081/x, https://canary@other")
    except ValueError:
        logging.getLogger("x").exception("failed")
    assert "canary" not in out.getvalue()
    assert "http://***@registry:8081/x" in out.getvalue()
    assert "test_console_log.py" in out.getvalue()
