"""`tidewheel demo`: the whole at work on real records, in under a minute."""

import signal
from typing import Annotated

from cyclopts import Parameter

from tidewheel.streams.cli.output import wants_json
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
    """See it all at work: 336,776 real flights through a stateful topology on a real Kafka, exactly once.

    Fetches the records (8.7 MB) and Kafka (45 MB) once, starts Kafka, loads the records, runs
    examples/flight_delays.py on them, and compares what comes out with the same computed directly. Everything but what
    was fetched is gone afterwards. Ends with 0 if all results are right, with 1 if not.

    Args:
        bootstrap_servers: Use a Kafka that runs instead of starting one; the demo's topics are deleted at the end.
        json: Print JSON lines on a terminal too.
        log_level: The least level that is logged.
    """
    configure_logging(log_level)
    # Ends as Ctrl-C does, through everything that tidies up.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    view = JsonView() if wants_json(asked=json) else TerminalView()
    good = run_demo(DemoOptions(bootstrap_servers=bootstrap_servers), view)
    return ExitCode.OK if good else ExitCode.FAILED
