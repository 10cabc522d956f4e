"""Fake worker program: executes the steps of its target, without Kafka.

The target is a list of steps separated by commas; arguments follow equal signs: `ready`, `run`,
`count=FILE` (appends a byte), `crash=CODE`, `record=OFFSET` (a crash on t-1), `hang`, `ignore-stop`,
`exit=CODE` and `kill=SIGNAL` (both without a report), `hold=OFFSET` (of t-1, in careful mode; none
without an offset), `serve` (until stopped or without supervisor), `mark=FILE` (writes its end),
`watchdog=FILE` (writes the watchdog's answer).
"""

import argparse
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

from tidewheel.streams.processes.watchdog.watchdog_process import connect_worker


def main() -> int:  # noqa: C901, PLR0912, PLR0915 - one case a step
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parser = argparse.ArgumentParser()
    parser.add_argument("--reports", type=int)
    parser.add_argument("--watchdog", type=int)
    given = parser.parse_args()
    reports = given.reports

    def say(**message: object) -> None:
        os.write(reports, json.dumps(message).encode() + b"\n")

    orders = sys.stdin.buffer
    start = json.loads(orders.readline())
    end = "itself"
    for step in start["target"].split(","):
        word, _, argument = step.partition("=")
        match word:
            case "ready":
                say(type="ready", application_id="app", drain_timeout_ms=int(argument or 5_000))
            case "slot":
                if start["next_free"]:
                    say(type="slot", slot=int(argument))
            case "run":
                say(type="state", new="RUNNING", old="REBALANCING")
            case "echo":
                Path(argument).with_suffix(f".{start['slot']}").write_text(json.dumps(start))
            case "count":
                with Path(argument).open("a", encoding="ascii") as file:
                    file.write("x")
            case "pid":
                Path(argument).write_text(str(os.getpid()), encoding="ascii")
            case "watchdog":
                with connect_worker(socket.socket(fileno=given.watchdog)) as line:
                    line.sendall(b"who?")
                    Path(argument).write_text(line.recv(100).decode(), encoding="ascii")
            case "crash":
                say(type="crash", message="Boom: it broke", exit_code=int(argument))
                return int(argument)
            case "record":
                say(
                    type="crash", message="RecordFailedError: bad record", exit_code=3,
                    topic="t", partition=1, offset=int(argument),
                )  # fmt: skip
                return 3
            case "exit":
                return int(argument)
            case "kill":
                os.kill(os.getpid(), int(argument))
            case "hold":
                # Like a worker, it reports records in careful mode only; "" is none.
                if start["careful"]:
                    place = {"topic": "t", "partition": 1, "offset": int(argument or 0)}
                    say(type="record", **(place if argument else {}))
            case "hang":
                time.sleep(60)
            case "serve":
                order = orders.readline()
                end = json.loads(order)["type"] if order else "lost"
            case "mark":
                Path(argument).write_text(end, encoding="ascii")
            case _:
                raise ValueError(word)
    say(type="stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
