"""One Kafka for all processes of a test run: started on first use, stopped after the run.

A Kafka per process would cost as much as twenty tests: Java starts and compiles each time.
"""

import socket
import tempfile
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from tidewheel.streams.broker import KafkaBroker
from tidewheel.streams.broker.server_config import PATIENT

#: Path of the socket that returns the broker's address.
SOCKET_VARIABLE: Final = "TIDEWHEEL_TEST_SHARED_BROKER"
#: Enough for topics and connections of all tests together.
_HEAP_MB: Final = 1024
_FAILED: Final = "failed: "


@contextmanager
def offered_broker() -> Generator[str]:
    """Yield the socket's path; each connection gets the broker's address."""
    with (
        tempfile.TemporaryDirectory(prefix="tidewheel-tests-") as folder,
        socket.socket(socket.AF_UNIX) as server,
        ExitStack() as running,
    ):
        path = str(Path(folder) / "broker")
        server.bind(path)
        server.listen()
        over = threading.Event()
        thread = threading.Thread(target=_serve, args=(server, running, over), name="shared-broker")
        thread.start()
        try:
            yield path
        finally:
            over.set()
            with socket.socket(socket.AF_UNIX) as last:
                last.connect(path)  # wakes the thread
            thread.join()


def _serve(server: socket.socket, running: ExitStack, over: threading.Event) -> None:
    answer = ""
    while True:
        asking, _ = server.accept()
        with asking:
            if over.is_set():
                return
            if not answer:
                try:
                    broker = running.enter_context(
                        KafkaBroker(heap_mb=_HEAP_MB, properties=PATIENT)
                    )
                except Exception as error:  # noqa: BLE001 - each process that asks fails with it
                    answer = f"{_FAILED}{error}"
                else:
                    answer = broker.bootstrap_servers
            asking.sendall(answer.encode())


def ask_for_broker(path: str) -> str:
    """Return the broker's address; raise `RuntimeError` if it did not start."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        with client.makefile("r", encoding="utf-8") as answers:
            answer = answers.read()
    if not answer or answer.startswith(_FAILED):
        raise RuntimeError(f"the Kafka that all tests share did not start: {answer}")
    return answer
