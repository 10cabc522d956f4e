"""`tidewheel demo`: a stateful topology on real records, in less than a minute."""

import signal
from typing import Annotated

from cyclopts import Parameter

from tidewheel.streams.cli.output import text_console
from tidewheel.streams.console_log import LogLevel, configure_logging
from tidewheel.streams.demo.run import DemoOptions, run_demo
from tidewheel.streams.demo.view import JsonView, TerminalView
from tidewheel.streams.exit_codes import ExitCode

_Flag = Annotated[bool, Parameter(negative=(), show_default=False)]


def demo(
    *,
    bootstrap_servers: str | None = None,
    json: _Flag = False,
    log_level: LogLevel = "error",
) -> int:
    """Run a demo: 336,776 real flights through a stateful topology on a real Kafka, exactly once.

    It fetches the records (8.7 MB) and Kafka (45 MB) once, starts Kafka and loads the records. It
    runs examples/flight_delays.py on them, and compares the results with a direct computation. All
    but the fetched files is deleted at the end.

    Exit codes: 0 all results are right; 1 some are wrong.

    Args:
        bootstrap_servers: Use a running Kafka instead of starting one; the demo's topics are
            deleted at the end.
        json: Print JSON lines instead of text.
        log_level: Lowest level to log.
    """
    configure_logging(log_level)
    # SIGTERM ends the demo as Ctrl-C does, with all clean-up.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    view = JsonView() if json else TerminalView(text_console())
    good = run_demo(DemoOptions(bootstrap_servers=bootstrap_servers), view)
    return ExitCode.OK if good else ExitCode.FAILED
