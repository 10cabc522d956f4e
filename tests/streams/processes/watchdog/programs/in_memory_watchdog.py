"""Watchdog with control topics in its memory: `python -m ... HEARD --intake FD`.

It writes each inbox message to the file HEARD: monotonic nanoseconds, a space, the message.
"""

import secrets
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fakes.group_log import FakeControlTopics, FakeGroupAdmin, FakeGroupLog
from tidewheel.rebalance.protocol.messages import AnyMessage, encode_message
from tidewheel.rebalance.runtime.leadership import Executors, LeaderPorts
from tidewheel.rebalance.runtime.runtime import GroupRuntime, RuntimeSettings
from tidewheel.streams.processes.watchdog import __main__, watchdog
from tidewheel.streams.processes.watchdog.assignor_process import Assignors
from tidewheel.streams.processes.watchdog.hello import Hello
from tidewheel.streams.processes.watchdog.watchdog import SystemMonotonicClock


class _OverheardLog(FakeGroupLog):
    def __init__(self, topics: FakeControlTopics, heard: Path) -> None:
        super().__init__(topics)
        self._heard = heard

    def send(self, messages: Sequence[AnyMessage]) -> None:
        super().send(messages)
        with self._heard.open("ab") as file:
            for message in messages:
                file.write(b"%d %s\n" % (time.monotonic_ns(), encode_message(message)))


def main() -> int:
    heard = Path(sys.argv[1])
    topics = FakeControlTopics()
    admin = FakeGroupAdmin()

    def make_runtime(hello: Hello) -> GroupRuntime:
        return GroupRuntime(
            lambda: _OverheardLog(topics, heard),
            ports=LeaderPorts(
                fencer=admin,
                ends=admin,
                assign=Assignors(hello.join.assignor, 10.0, hello.import_path).assign,
                executors=Executors(
                    leader=ThreadPoolExecutor(1),
                    fences=ThreadPoolExecutor(2),
                    asks=ThreadPoolExecutor(1),
                ),
            ),
            settings=RuntimeSettings(
                app=hello.join.app,
                process_id=secrets.token_hex(4),
                heartbeat_interval_ms=hello.heartbeat_interval_ms,
                session_timeout_ms=hello.join.session_timeout_ms,
                coordinator=hello.coordinator,
            ),
            clock=SystemMonotonicClock(),
            was_used=admin.was_used,
        )

    watchdog.make_runtime = make_runtime
    return __main__.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
