import io
import json
import logging
import logging.config
import re
import sys
from collections.abc import Iterator

import pytest

from tidewheel.streams import console_log
from tidewheel.streams.console_log import (
    UNREACHABLE_ADVICE,
    UNREACHABLE_LOGGER,
    LogFormat,
    LogLevel,
    adopt_program,
    configure_logging,
    configured_format,
    enable_loggers,
    parse_log_levels,
    unreachable,
)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in (None, "tidewheel", "library", "shop")]
    before = [(list(logger.handlers), logger.level) for logger in loggers]
    yield
    logging.captureWarnings(False)
    for logger, (handlers, level) in zip(loggers, before, strict=True):
        logger.handlers[:] = handlers
        logger.setLevel(level)
    for known in logging.root.manager.loggerDict.values():
        if isinstance(known, logging.Logger):
            known.disabled = False
    console_log._configured.clear()
    unreachable.forget()


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
    logging.getLogger("tidewheel.x").info("bad value [bold]")
    text = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    assert "bad value [bold]" in text


def test_records_below_the_level_are_not_shown() -> None:
    out = io.StringIO()
    configure_logging("warning", stream=out)
    logging.getLogger("tidewheel.x").info("quiet")
    assert out.getvalue() == ""


def messages(out: io.StringIO) -> list[str]:
    return [json.loads(line)["message"] for line in out.getvalue().splitlines()]


def log_everywhere() -> None:
    for name in ("tidewheel.tasks", "library.http", "shop.orders"):
        logging.getLogger(name).info("%s", name)
        logging.getLogger(name).debug("%s debug", name)


@pytest.mark.parametrize(
    ("level", "levels", "expected"),
    [
        ("info", {}, ["tidewheel.tasks", "shop.orders"]),
        (
            "debug",
            {},
            ["tidewheel.tasks", "tidewheel.tasks debug", "shop.orders", "shop.orders debug"],
        ),
        ("error", {"library": "info"}, ["library.http"]),
        (
            "info",
            {"tidewheel.tasks": "warning", "shop": "debug"},
            ["shop.orders", "shop.orders debug"],
        ),
    ],
)
def test_libraries_stay_at_warning_unless_named(
    level: LogLevel, levels: dict[str, LogLevel], expected: list[str]
) -> None:
    out = io.StringIO()
    configure_logging(level, stream=out, levels=levels)
    adopt_program("shop.app")
    log_everywhere()
    logging.getLogger("tidewheel.tasks").setLevel(logging.NOTSET)
    assert messages(out) == expected
    logging.getLogger("library").error("broken")
    assert messages(out)[-1] == "broken"


def test_levels_are_parsed_and_unknown_ones_refused() -> None:
    assert parse_log_levels(()) == ("info", {})
    assert parse_log_levels(["a=debug", "Warning", "b.c=ERROR"]) == (
        "warning",
        {"a": "debug", "b.c": "error"},
    )
    for wrong in ("loud", "a=loud", "=info", "a="):
        with pytest.raises(ValueError, match="is no level"):
            parse_log_levels([wrong])


def test_a_dict_config_silences_no_logger_of_tidewheel() -> None:
    """A program configures logging at its import, and disables all existing loggers by default."""
    out, its = io.StringIO(), io.StringIO()
    own = logging.getLogger("tidewheel.tasks")
    configure_logging(stream=out)
    sink = {"class": "logging.StreamHandler", "stream": its}
    logging.config.dictConfig(
        {"version": 1, "handlers": {"its": sink}, "root": {"handlers": ["its"], "level": "INFO"}}
    )
    assert own.disabled
    adopt_program("shop")
    own.info("state")
    assert messages(out)[-1] == "state"
    assert "disable_existing_loggers=False" in messages(out)[0]
    assert its.getvalue().splitlines()[-1] == "state"
    logging.getLogger("shop").info("an order")
    assert "an order" not in out.getvalue()
    out.truncate(0)
    enable_loggers()
    assert out.getvalue() == ""


def test_a_programs_own_console_handler_replaces_ours(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging()
    logging.getLogger().addHandler(logging.StreamHandler(sys.stderr))
    adopt_program("shop")
    logging.getLogger("tidewheel").info("state")
    assert capsys.readouterr().err == "state\n"


def test_a_warning_is_not_repeated_without_change(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    configure_logging(stream=out)
    now_s = 1_000.0
    monkeypatch.setattr("time.time", lambda: now_s)
    monkeypatch.setattr("time.time_ns", lambda: int(now_s * 1e9))  # read by Python 3.13's logging
    own = logging.getLogger("tidewheel.tasks")
    for reason in ("busy", "busy", "gone", "gone", "busy"):
        own.warning("trying again: %s", reason)
        own.info("an event")
        logging.getLogger("library").warning("its warning")
    assert [text for text in messages(out) if "again" in text] == [
        "trying again: busy",
        "trying again: gone",
        "trying again: busy",
    ]
    assert messages(out).count("an event") == messages(out).count("its warning") == 5
    own.warning("trying again: %s", "busy")
    now_s += 61
    own.warning("trying again: %s", "busy")
    assert messages(out)[-1] == "trying again: busy (1 more like this)"


def test_what_only_repeats_that_brokers_are_away_is_left_to_their_own_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An outage would else be a line of each component, every ten seconds."""
    out, now_s = io.StringIO(), 1_000.0
    configure_logging(stream=out)
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    own = logging.getLogger("tidewheel.group")

    def fail() -> None:
        own.warning("describe topics: timed out; %s", UNREACHABLE_ADVICE)
        own.error("the worker ended; %s", UNREACHABLE_ADVICE)
        own.warning("no longer leader")

    unreachable.see()
    logging.getLogger(UNREACHABLE_LOGGER).warning("a:1 is away; %s", UNREACHABLE_ADVICE)
    fail()
    assert [text.partition(";")[0] for text in messages(out)] == [
        "a:1 is away",
        "the worker ended",
        "no longer leader",
    ]
    now_s += 200
    fail()
    assert any("timed out" in text for text in messages(out)), "no broker has a recent line"


def test_configuring_twice_doubles_no_line() -> None:
    out = io.StringIO()
    configure_logging(stream=out)
    configure_logging(stream=out)
    adopt_program("shop")
    logging.getLogger("tidewheel").info("state")
    assert messages(out) == ["state"]


def test_json_can_be_selected_on_a_terminal() -> None:
    out = _Terminal()
    configure_logging(log_format="json", stream=out)
    logging.getLogger("tidewheel.x").info("hello")
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


def test_further_lines_of_a_message_are_indented() -> None:
    out = io.StringIO()
    configure_logging("info", "text", stream=out)
    logging.getLogger("tidewheel.x").error("failed: %s", "one\ntwo\r\n\nthree")
    lines = out.getvalue().splitlines()
    assert lines[0].endswith("failed: one")
    assert lines[1:] == ["    two", "    ", "    three"]
