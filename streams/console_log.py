"""Sets up logging for commands: for people on a terminal, JSON lines for machines.

Libraries only log; programs decide what becomes of it. The commands of `tidewheel` call `configure_logging` once, users'
own programs set up logging as they like.
"""

import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO

import orjson

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

_TEXT: Final = "%(asctime)s %(levelname)-7s %(slot)s%(name)s: %(message)s"
#: User and password in front of a URL's host.
_USER_OF_URL: Final = re.compile(r"://[^\s/@\"']+@")
_RICH_TEXT: Final = "%(slot)s%(message)s"


def configure_logging(
    level: LogLevel = "info",
    log_format: LogFormat | None = None,
    *,
    slot: int | None = None,
    stream: TextIO | None = None,
) -> None:
    """Send all log records to standard error, replacing what was set up before.

    Args:
        level: The least level that is shown.
        log_format: `text` or `json`; by default text on a terminal, JSON lines elsewhere.
        slot: Number of the worker, to tell its lines from those of others.
        stream: Where to write instead of standard error.
    """
    out = sys.stderr if stream is None else stream
    chosen = log_format or ("text" if out.isatty() else "json")
    handler = _handler(out, chosen)
    handler.addFilter(_SlotFilter(slot))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)


def configured_format() -> LogFormat | None:
    """Return what form `configure_logging` gave this process's lines, for a helper's lines among them; None without it."""
    for handler in logging.getLogger().handlers:
        if any(isinstance(each, _SlotFilter) for each in handler.filters):
            return "json" if isinstance(handler.formatter, JsonFormatter) else "text"
    return None


def _handler(out: TextIO, log_format: LogFormat) -> logging.Handler:
    handler: logging.Handler
    if log_format == "json":
        handler = logging.StreamHandler(out)
        handler.setFormatter(JsonFormatter())
    elif out.isatty():
        # Workers and watchdogs, which start beside running tasks, hardly ever have a terminal.
        from rich.console import Console  # noqa: PLC0415 - costs 40 ms of CPU
        from rich.logging import RichHandler  # noqa: PLC0415 - likewise

        handler = RichHandler(
            console=Console(file=out),
            show_path=False,
            log_time_format="%H:%M:%S",
            # Messages quote what users wrote, which may look like markup.
            markup=False,
        )
        handler.setFormatter(TextFormatter(_RICH_TEXT))
    else:
        handler = logging.StreamHandler(out)
        handler.setFormatter(TextFormatter(_TEXT))
    return handler


#: What log calls pass beside the message: where a record stands, and states.
_EXTRA = ("topic", "partition", "offset", "node", "state")


class TextFormatter(logging.Formatter):
    """A formatter whose traces show no password: they quote lines of the program, which may have a URL."""

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the base class's name
        """Return the trace of an error, with the user and password of URLs hidden."""
        return _USER_OF_URL.sub("://***@", super().formatException(ei))


class JsonFormatter(TextFormatter):
    """One JSON object a line: time, level, logger, message; slot, error and trace where there are any."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, without its line end."""
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
        # False where a caller wrote `exc_info=<condition>`.
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
            line["trace"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


class _SlotFilter(logging.Filter):
    """Gives every record the worker's number; text formats show it in front."""

    def __init__(self, slot: int | None) -> None:
        super().__init__()
        self._slot = slot
        self._prefix = "" if slot is None else f"[{slot}] "

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the number and let the record pass. A record about another worker brings its own number."""
        worker: int | None = record.__dict__.setdefault("worker", self._slot)
        record.slot = self._prefix if worker == self._slot else f"[{worker}] "
        return True
