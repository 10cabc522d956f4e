"""Unfinished requests and idle viewers keep no connection."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator

import pytest
import uvicorn

from tests.streams.dashboard.polled_groups import polled_group
from tidewheel.streams.dashboard.poller import GroupPoller
from tidewheel.streams.dashboard.web import build_app
from tidewheel.streams.web import connection
from tidewheel.streams.web.http_server import server_config

PATIENCE_S = 30.0
REQUEST_S = 0.5
WHOLE = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(connection, "REQUEST_S", REQUEST_S)
    monkeypatch.setattr(connection, "UNREAD_S", REQUEST_S)
    poller = GroupPoller(polled_group, 0.001)
    server = uvicorn.Server(server_config(build_app("shop", poller)))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        # Unread data waits in the dashboard.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        yield listening.getsockname()[1]
        server.should_exit = True
        poller.end()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@contextlib.contextmanager
def _connected(port: int) -> Generator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:
        yield client


def _is_ended(client: socket.socket) -> bool:
    """Wait until the other end is gone; return true if in time."""
    try:
        while client.recv(65_536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /healthz HTTP/1.1\r\nhost: loc",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\nhalf",
        b"POST /healthz HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhal",
        b"GET /api/events HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\nhalf",
        WHOLE + WHOLE[:20],
    ],
    ids=["nothing", "headers", "body", "chunks", "stream", "second request"],
)
def test_an_unfinished_request_ends_with_a_timeout(port: int, sent: bytes) -> None:
    with _connected(port) as client:
        client.sendall(sent)
        assert _is_ended(client)


def test_a_request_sent_byte_by_byte_has_the_same_timeout(port: int) -> None:
    with _connected(port) as client:
        _wait_until(lambda: _is_reset(client))


def test_a_reading_viewer_has_no_time_limit(port: int) -> None:
    with _connected(port) as client:
        client.sendall(b"GET /api/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
        until_s = time.monotonic() + 4 * REQUEST_S
        while time.monotonic() < until_s:
            assert client.recv(65_536)


def test_a_viewer_that_reads_nothing_is_disconnected(port: int) -> None:
    with _connected(port) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1_024)
        client.sendall(b"GET /api/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
        _wait_until(lambda: _is_reset(client))


def test_connections_above_the_limit_are_closed_before_their_request(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CONNECTIONS_MAX", 2)
    monkeypatch.setattr(connection, "_REFUSED_MAX", 1)
    monkeypatch.setattr(connection, "REQUEST_S", PATIENCE_S)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(_connected(port)) for _ in range(4)]
        assert _is_ended(clients[-1])
        clients[0].sendall(WHOLE)
        assert clients[0].recv(65_536).startswith(b"HTTP/1.1 ")


def _is_reset(client: socket.socket) -> bool:
    """Return true if the other end has closed."""
    try:
        client.sendall(b" ")
    except ConnectionError:
        return True
    return False


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
