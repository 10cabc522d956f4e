"""Logging of the commands: text on a terminal, JSON lines elsewhere."""

import logging
import re
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple, TextIO, cast, get_args

import orjson

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
LEVELS: Final[tuple[str, ...]] = get_args(LogLevel)

#: Tidewheel's loggers, which libraries' do not follow.
_OURS: Final = "tidewheel"
#: Logger of unreachable brokers; helper processes leave such lines to the workers.
UNREACHABLE_LOGGER: Final = "tidewheel.streams.kafka.brokers"
#: End of messages about an unreachable cluster. While a line about its broker is recent, warnings
#: with this text are dropped: they say the same once more.
UNREACHABLE_ADVICE: Final = (
    "check that the brokers run, that this address is theirs, and security.protocol"
)
_RECENT_S: Final = 120.0
#: Seconds for which an unchanged warning is not logged again.
_REPEAT_S: Final = 60.0
_log = logging.getLogger("tidewheel.worker")

_TEXT: Final = "%(asctime)s %(levelname)-7s %(slot)s%(name)s: %(message)s"
_USER_OF_URL: Final = re.compile(r"://[^\s/@\"']+@")
_RICH_TEXT: Final = "%(slot)s%(message)s"


def configure_logging(
    level: LogLevel = "info",
    log_format: LogFormat | None = None,
    *,
    slot: int | None = None,
    stream: TextIO | None = None,
    levels: Mapping[str, LogLevel] | None = None,
) -> None:
    """Send all log records to standard error, replacing earlier configuration.

    Args:
        level: Lowest level of Tidewheel's loggers. Libraries' loggers stay at WARNING, or follow a
            higher level.
        log_format: `text` or `json`; default: text on a terminal, else JSON lines.
        slot: Worker number, shown on its lines.
        levels: Levels of other loggers by name; `root` is that of all.
    """
    out = sys.stderr if stream is None else stream
    chosen = log_format or ("text" if out.isatty() else "json")
    handler = _handler(out, chosen)
    handler.addFilter(_SlotFilter(slot))
    handler.addFilter(_RepeatFilter())
    least = max(logging.WARNING, _number(level))
    logging.basicConfig(level=least, handlers=[handler], force=True)
    logging.getLogger(_OURS).setLevel(_number(level))
    for name, other in (levels or {}).items():
        logging.getLogger(name).setLevel(_number(other))
    logging.captureWarnings(True)
    _configured.clear()
    _configured.append(_Configured(handler, level, dict(levels or {})))


class _Unreachable:
    """Time at which this process last found a broker unreachable, if ever."""

    def __init__(self) -> None:
        self._seen_s: float | None = None

    def see(self) -> None:
        self._seen_s = time.monotonic()

    def forget(self) -> None:
        self._seen_s = None

    def covers(self, record: logging.LogRecord, text: str) -> bool:
        """Return True for a warning that only repeats that the brokers can't be reached."""
        return (
            self._seen_s is not None
            and time.monotonic() - self._seen_s < _RECENT_S
            and record.levelno == logging.WARNING
            and record.name != UNREACHABLE_LOGGER
            and UNREACHABLE_ADVICE in text
        )


unreachable: Final = _Unreachable()


def parse_log_levels(texts: Sequence[str]) -> tuple[LogLevel, dict[str, LogLevel]]:
    """Return the level of Tidewheel, and other loggers' levels by name; the last of each wins.

    >>> parse_log_levels(["debug", "httpx=info"])
    ('debug', {'httpx': 'info'})

    Raises:
        ValueError: A level is unknown.
    """
    own: LogLevel = "info"
    levels: dict[str, LogLevel] = {}
    for text in texts:
        name, _, level = text.rpartition("=")
        if level.lower() not in LEVELS or text.startswith("="):
            raise ValueError(f"{text!r} is no level; give {', '.join(LEVELS)}, or LOGGER=LEVEL")
        chosen = cast("LogLevel", level.lower())
        if name:
            levels[name] = chosen
        else:
            own = chosen
    return own, levels


def configured_levels() -> dict[str, LogLevel]:
    """Return the `levels` of `configure_logging`, for helper processes."""
    return dict(_configured[0].levels) if _configured else {}


def adopt_program(module: str) -> None:
    """Adapt the logging to a user's program, after its import.

    Its loggers get the level of Tidewheel's. If it has configured logging itself, its handlers
    replace ours where both write to the terminal, and Tidewheel's loggers stay enabled.
    """
    if _configured:
        own = logging.getLogger(module.partition(".")[0])
        if own.level == logging.NOTSET:
            own.setLevel(_number(_configured[0].level))
        _keep_one_console_handler(_configured[0].handler)
    enable_loggers()


def enable_loggers() -> None:
    """Enable Tidewheel's loggers if a program's `dictConfig` has disabled them, with a warning."""
    disabled = [
        logger
        for name, logger in list(logging.root.manager.loggerDict.items())
        if f"{name}.".startswith(f"{_OURS}.")
        and isinstance(logger, logging.Logger)
        and logger.disabled
    ]
    for logger in disabled:
        logger.disabled = False
    if disabled:
        _log.warning(
            "the program's logging configuration had disabled Tidewheel's loggers, which are enabled again; give "
            "dictConfig or fileConfig disable_existing_loggers=False, and set the level of the logger tidewheel"
        )


def _keep_one_console_handler(ours: logging.Handler) -> None:
    root, own = logging.getLogger(), logging.getLogger(_OURS)
    others = [handler for handler in (*root.handlers, *own.handlers) if handler is not ours]
    if any(map(_writes_to_console, others)):
        root.removeHandler(ours)
    elif ours not in root.handlers:
        # The program logs elsewhere, such as to a file: it keeps its lines, and we ours.
        own.addHandler(ours)


def _writes_to_console(handler: logging.Handler) -> bool:
    stream = getattr(handler, "stream", None)
    if stream is not None:
        return stream in (sys.stderr, sys.stdout, sys.__stderr__, sys.__stdout__)
    return getattr(handler, "console", None) is not None  # a RichHandler


def _number(level: LogLevel) -> int:
    return logging.getLevelNamesMapping()[level.upper()]


def configured_format() -> LogFormat | None:
    """Return the format that `configure_logging` chose, for helper processes; None before."""
    for handler in logging.getLogger().handlers:
        if any(isinstance(log_filter, _SlotFilter) for log_filter in handler.filters):
            return "json" if isinstance(handler.formatter, JsonFormatter) else "text"
    return None


def forward_logs(level: LogLevel, handler: logging.Handler, levels: Mapping[str, LogLevel]) -> None:
    """Send all log records to a handler; the levels are those of `configure_logging`."""
    logging.basicConfig(level=max(logging.WARNING, _number(level)), handlers=[handler], force=True)
    logging.getLogger(_OURS).setLevel(_number(level))
    for name, other in levels.items():
        logging.getLogger(name).setLevel(_number(other))


def show_slot(slot: int) -> None:
    """Show another slot on the lines of this process."""
    for handler in logging.getLogger().handlers:
        for log_filter in handler.filters:
            if isinstance(log_filter, _SlotFilter):
                log_filter.show(slot)


def _handler(out: TextIO, log_format: LogFormat) -> logging.Handler:
    handler: logging.Handler
    if log_format == "json":
        handler = logging.StreamHandler(out)
        handler.setFormatter(JsonFormatter())
    elif out.isatty():
        # Imported only for terminals: workers and watchdogs rarely have one, so they start faster.
        from rich.console import Console  # noqa: PLC0415 - costs 40 ms of CPU
        from rich.logging import RichHandler  # noqa: PLC0415 - likewise

        handler = RichHandler(
            console=Console(file=out),
            show_path=False,
            log_time_format="%H:%M:%S",
            # Messages quote user text, which may contain markup.
            markup=False,
        )
        handler.setFormatter(TextFormatter(_RICH_TEXT))
    else:
        handler = logging.StreamHandler(out)
        handler.setFormatter(TextFormatter(_TEXT))
    return handler


#: Fields of log calls (`extra=`) that JSON lines include: topic, partition and offset of a skipped
#: Kafka record, its processor node, and the application's new state.
_EXTRA = ("topic", "partition", "offset", "node", "state")


class TextFormatter(logging.Formatter):
    """Indents further lines of a message, and hides passwords of URLs in tracebacks."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base class's name
        """Return the message's line; an error's text may have more, which are indented."""
        return "\n    ".join(super().formatMessage(record).splitlines())

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the base class's name
        """Return the traceback without passwords, and without what UTF-8 can't encode."""
        text = _USER_OF_URL.sub("://***@", super().formatException(ei))
        return text.encode(errors="backslashreplace").decode()


class JsonFormatter(TextFormatter):
    """One JSON object per line: time, level, logger, message; optional slot, error, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, without line end."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        slot = getattr(record, "worker", None)
        if slot is not None:
            line["slot"] = slot
        line |= {name: record.__dict__[name] for name in _EXTRA if name in record.__dict__}
        # Callers may pass `exc_info=CONDITION`, so it may be False.
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
            line["trace"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


class _RepeatFilter(logging.Filter):
    """Drops warnings of Tidewheel that say nothing new.

    Their text is that of the last one, a minute ago at most, or they repeat that brokers are away.
    """

    def __init__(self) -> None:
        super().__init__()
        #: By logger and template: last text, its time, and the number dropped since.
        self._last: dict[tuple[str, str], tuple[str, float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or not record.name.startswith(_OURS):
            return True
        text, kind = record.getMessage(), (record.name, str(record.msg))
        if unreachable.covers(record, text):
            return False
        last, logged_s, dropped = self._last.get(kind, ("", 0.0, 0))
        if text == last and record.created - logged_s < _REPEAT_S:
            self._last[kind] = (text, logged_s, dropped + 1)
            return False
        self._last[kind] = (text, record.created, 0)
        if text == last and dropped:
            record.msg, record.args = f"{text} ({dropped} more like this)", None
        return True


class _Configured(NamedTuple):
    handler: logging.Handler
    level: LogLevel
    levels: dict[str, LogLevel]


#: The last configuration of `configure_logging`, if any.
_configured: Final[list[_Configured]] = []


class _SlotFilter(logging.Filter):
    def __init__(self, slot: int | None) -> None:
        super().__init__()
        self.show(slot)

    def show(self, slot: int | None) -> None:
        self._slot = slot
        self._prefix = "" if slot is None else f"[{slot}] "

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the worker's slot to a log record, unless the record names another worker."""
        worker: int | None = record.__dict__.setdefault("worker", self._slot)
        record.slot = self._prefix if worker == self._slot else f"[{worker}] "
        return True
