"""Logging of the commands: text on a terminal, JSON lines elsewhere."""

import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO

import orjson

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

_TEXT: Final = "%(asctime)s %(levelname)-7s %(slot)s%(name)s: %(message)s"
_USER_OF_URL: Final = re.compile(r"://[^\s/@\"']+@")
_RICH_TEXT: Final = "%(slot)s%(message)s"


def configure_logging(
    level: LogLevel = "info",
    log_format: LogFormat | None = None,
    *,
    slot: int | None = None,
    stream: TextIO | None = None,
) -> None:
    """Send all log records to standard error, replacing earlier configuration.

    Args:
        log_format: `text` or `json`; default: text on a terminal, else JSON lines.
        slot: Worker number, shown on its lines.
    """
    out = sys.stderr if stream is None else stream
    chosen = log_format or ("text" if out.isatty() else "json")
    handler = _handler(out, chosen)
    handler.addFilter(_SlotFilter(slot))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)


def configured_format() -> LogFormat | None:
    """Return the format that `configure_logging` chose, for helper processes; None before."""
    for handler in logging.getLogger().handlers:
        if any(isinstance(log_filter, _SlotFilter) for log_filter in handler.filters):
            return "json" if isinstance(handler.formatter, JsonFormatter) else "text"
    return None


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
    """Hides passwords of URLs in tracebacks."""

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the base class's name
        """Return the traceback without passwords."""
        return _USER_OF_URL.sub("://***@", super().formatException(ei))


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
