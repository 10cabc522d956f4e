"""A worker process: `python -m tests.integration.programs.worker`.

It imports everything, reports that, and waits for its orders: one line of JSON on standard input.
So a test can prepare the next worker before a kill. It stops when standard input ends.
"""

import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec

from tests.integration.programs.jobs import JOBS
from tests.integration.programs.probes import STATE_NUMBERS, arm_at_change, count_on, runs_from
from tests.integration.programs.scoreboard import Scoreboard
from tidewheel import KafkaStreams, StreamsConfig
from tidewheel.rebalance.model import TaskId
from tidewheel.state_stores import failpoints
from tidewheel.streams.exit_codes import ExitCode, exit_code_of
from tidewheel.streams.worker.application import wiring
from tidewheel.streams.worker.application.application_state import KafkaStreamsState
from tidewheel.streams.worker.application.run_options import RunOptions


class Orders(msgspec.Struct, kw_only=True):
    """Orders of a worker.

    `board` is the path of the scoreboard. `failpoints` are armed at once, here and in the watchdog,
    or here only, when the commit number `armed_at_change` of those that change state is prepared.
    `runs_from`: restore gaps above this many records are built into sorted runs; None keeps the
    product's limit.
    """

    job: str
    source: str
    sink: str
    config: dict[str, Any]
    board: str
    slot: int | None = None
    workers: int = 1
    fixed: bool = True
    tasks: list[str] | None = None
    failpoints: str = ""
    armed_at_change: int | None = None
    runs_from: int | None = None


def main() -> int:
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s.%(msecs)03d %(name)s %(message)s", stream=sys.stderr
    )
    line = read_line()
    if not line:
        return ExitCode.OK
    orders = msgspec.json.decode(line, type=Orders)
    threading.Thread(target=_stop_when_alone, daemon=True).start()
    board = Scoreboard(Path(orders.board))
    config = StreamsConfig(**orders.config)
    app = KafkaStreams(
        JOBS[orders.job](orders.source, orders.sink).build(config),
        config,
        options=RunOptions(
            slot=orders.slot,
            workers=orders.workers,
            fixed=orders.fixed,
            tasks=None if orders.tasks is None else tuple(map(TaskId.parse, orders.tasks)),
        ),
    )
    app.set_restore_listener(count_on(board))
    if orders.armed_at_change is None:
        failpoints.arm(orders.failpoints)
        os.environ["FAILPOINT"] = orders.failpoints  # for the watchdog
    else:
        arm_at_change(orders.failpoints, orders.armed_at_change)
    if orders.runs_from is not None:
        setattr(wiring, "RunSettings", runs_from(orders.runs_from))  # noqa: B010 - none of the names it offers

    def listen(new: KafkaStreamsState, _: KafkaStreamsState) -> None:
        board["state"] = STATE_NUMBERS[new]

    app.set_state_listener(listen)
    try:
        app.run()
    except BaseException as error:  # noqa: BLE001 - told by the exit code
        logging.getLogger(__name__).info("ended by %s: %s", type(error).__name__, error)
        return exit_code_of(error)
    return ExitCode.OK


def read_line() -> bytes:
    # Not by sys.stdin: its reading thread would hold the lock when the interpreter ends.
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(0, 65_536)
        if not data:
            return b""
        line += data
    return line


def _stop_when_alone() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
