"""Worker programs for watchdog tests."""

import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tidewheel.rebalance.leader.decision import CoordinatorSettings
from tidewheel.rebalance.protocol.messages import AnyMessage, JoinGroup, SeenTask, decode_message
from tidewheel.streams.processes.watchdog.hello import Hello, encode_hello

ROOT = Path(__file__).parents[4]
PATIENCE_S = 120.0


class Line(NamedTuple):
    """Output line of a worker, with its time (monotonic ns)."""

    at_ns: int
    text: str

    @property
    def order(self) -> dict[str, Any]:
        return json.loads(self.text) if self.text.startswith("{") else {}


class ReceivedMessage(NamedTuple):
    """Message to the group, with its time (monotonic ns)."""

    at_ns: int
    message: AnyMessage


def hello(
    member: str,
    *,
    app: str = "app",
    tasks: int = 2,
    bootstrap_servers: str = "none:1",
    heartbeat_interval_ms: int = 100,
    session_timeout_ms: int = 1_000,
    worker_hang_timeout_ms: int = 30_000,
) -> Hello:
    """Return the Hello of a worker with stateless tasks."""
    return Hello(
        join=JoinGroup(
            app=app,
            member=member,
            incarnation=f"{member}-1",
            transactional_ids=(f"{app}-{member}-1-0",),
            host="h",
            pid=os.getpid(),
            process_id=f"p-{member}",
            tasks=tuple(SeenTask(task=f"0_{each}") for each in range(tasks)),
            session_timeout_ms=session_timeout_ms,
        ),
        bootstrap_servers=bootstrap_servers,
        replication_factor=1,
        heartbeat_interval_ms=heartbeat_interval_ms,
        worker_hang_timeout_ms=worker_hang_timeout_ms,
        coordinator=CoordinatorSettings(
            heartbeat_interval_ms=heartbeat_interval_ms, settling_ms=500
        ),
        import_path=(str(ROOT),),
    )


class WorkerProgram:
    """Process of `tests.streams.processes.watchdog.programs.worker`."""

    def __init__(self, words: Hello, folder: Path, command: Sequence[str]) -> None:
        path = folder / f"{words.join.incarnation}.json"
        path.write_bytes(encode_hello(words))
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.streams.processes.watchdog.programs.worker",
                str(path),
                *command,
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._queue: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        #: Output read so far.
        self.lines: list[Line] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        self.watchdog_pid = int(
            self.wait(lambda line: line.text.startswith("watchdog")).text.split()[1]
        )

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for raw in self.process.stdout:
            at_ns, _, text = raw.decode().rstrip().partition(" ")
            self._queue.put(Line(int(at_ns), text))
        self._queue.put(None)

    def wait(self, wanted: Callable[[Line], bool], timeout_s: float = PATIENCE_S) -> Line:
        deadline_s = time.monotonic() + timeout_s
        while True:
            line = self._queue.get(timeout=max(deadline_s - time.monotonic(), 0.001))
            assert line is not None, f"the worker has ended; it said {self.lines}"
            self.lines.append(line)
            if wanted(line):
                return line

    def wait_for_order(self, kind: str, timeout_s: float = PATIENCE_S, **fields: Any) -> Line:
        return self.wait(
            lambda line: line.order.items() >= {"order": kind, **fields}.items(), timeout_s
        )

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def lease_left_s(self) -> float:
        self.tell("lease")
        return float(self.wait(lambda line: line.text.startswith("lease")).text.split()[1])

    def kill(self) -> int:
        """Kill the process; return the time (monotonic ns)."""
        at_ns = time.monotonic_ns()
        self.process.kill()
        return at_ns

    def close(self) -> None:
        """End it and its watchdog."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self._thread.join()


def is_running(pid: int) -> bool:
    """Return True if a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come true"
        time.sleep(0.005)


def least(measure: Callable[[int], float], wanted: float, tries: int = 5) -> float:
    """Return the first of several measurements below the limit, or the smallest.

    Other load on the machine makes some measurements long; a defect makes all of them long.
    """
    found = math.inf
    for number in range(tries):
        found = min(found, measure(number))
        if found < wanted:
            break
    return found


def heard(path: Path) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        at_ns, _, data = line.partition(b" ")
        message = decode_message(data)
        if message is not None:
            found.append(ReceivedMessage(int(at_ns), message))
    return found


def end_process(pid: int) -> None:
    if is_running(pid):
        os.kill(pid, signal.SIGKILL)
