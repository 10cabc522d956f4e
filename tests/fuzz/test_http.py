"""Requests to the dashboard: any bytes get an answer below 500, or none; it answers the next one."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Final

import psutil
import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.damage import NOISE, bounded, damaged
from tests.streams.dashboard.polled_groups import polled_group
from tidewheel.streams.dashboard.poller import GroupPoller
from tidewheel.streams.dashboard.web import build_app
from tidewheel.streams.web.http_server import server_config

pytestmark = pytest.mark.fault("DOORS")

_PATIENCE_S: Final = 30.0
#: Connections that send without an end, and how much each tries to send.
_ENDLESS: Final = 30
_MIB_SENT: Final = 20
_RSS_MAX: Final = 64 * 1024 * 1024
_TOKEN: Final = "a-token"  # noqa: S105 - of this test
_WHOLE: Final = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    poller = GroupPoller(polled_group, 60.0)
    server = uvicorn.Server(server_config(build_app("shop", poller, token=_TOKEN)))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        # Until its first poll has ended, the dashboard answers 503.
        deadline_s = time.monotonic() + _PATIENCE_S
        while poller.last is None and time.monotonic() < deadline_s:
            time.sleep(0.01)
        yield listening.getsockname()[1]
        server.should_exit = True
        poller.end()
        thread.join(_PATIENCE_S)
        assert not thread.is_alive()


def _answer(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), _PATIENCE_S) as client:
        answer = b""
        with contextlib.suppress(ConnectionError):
            client.sendall(request)
            with contextlib.suppress(OSError):  # the answer may be complete already
                client.shutdown(socket.SHUT_WR)
            while data := client.recv(65_536):
                answer += data
        return answer


def _text(most: int = 30) -> st.SearchStrategy[bytes]:
    return st.text(max_size=most).map(str.encode) | NOISE


@st.composite
def _requests(draw: st.DrawFn) -> bytes:
    method = draw(st.sampled_from([b"GET", b"HEAD", b"POST", b"PUT", b"OPTIONS", b"x" * 9_000]))
    path = draw(
        st.sampled_from(
            [b"/", b"/healthz", b"/api/status", b"/metrics", b"/page.js", b"//", b"*", b"/%2e%2e/x"]
        )
    )
    path += draw(
        st.just(b"") | _text() | st.sampled_from([b"?a=%ff", b"?" + b"a=1&" * 9_000, b"%00"])
    )
    names = st.sampled_from(
        [
            *(b"host", b"authorization", b"sec-fetch-site", b"content-length"),
            *(b"transfer-encoding", b"connection", b"upgrade", b"expect", b"range", b"x" * 70_000),
        ]
    )
    values = _text() | st.sampled_from(
        [
            *(b"localhost", b"[::1", b"localhost:99999999999", b"Bearer a-token", b"Bearer \xff"),
            *(b"chunked", b"-1", b"1" * 400, b"100-continue", b"bytes=0-", b"websocket"),
        ]
    )
    headers = draw(st.lists(st.tuples(names, values), max_size=4))
    lines = [b"host: localhost", *(name + b": " + value for name, value in headers)]
    return b"%b %b HTTP/1.1\r\n%b\r\n\r\n" % (method, path, b"\r\n".join(lines)) + draw(_text())


@given(_requests() | damaged(_WHOLE) | NOISE)
def test_any_request_leaves_the_dashboard_working(port: int, request_bytes: bytes) -> None:
    with bounded(time.process_time):
        answer = _answer(port, request_bytes)
    if answer:
        version, status, *_ = answer.split(b" ", 2)
        assert version == b"HTTP/1.1"
        assert 200 <= int(status[:3]) < 500, answer[:200]
    assert _answer(port, _WHOLE).startswith(b"HTTP/1.1 200 ")


_HEAD: Final = b"POST / HTTP/1.1\r\nhost: localhost\r\n"


@pytest.mark.parametrize(
    "endless",
    [
        pytest.param(b"", id="request line"),
        pytest.param(_HEAD + b"x: ", id="header"),
        pytest.param(_HEAD + b"content-length: 999999999999\r\n\r\n", id="body"),
        pytest.param(_HEAD + b"transfer-encoding: chunked\r\n\r\n7fffffff\r\n", id="chunk"),
    ],
)
def test_endless_requests_at_once_use_little_memory(port: int, endless: bytes) -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    with contextlib.ExitStack() as stack, bounded(time.process_time):
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), _PATIENCE_S))
            for _ in range(_ENDLESS)
        ]
        for client in clients:
            client.settimeout(0.1)
            with contextlib.suppress(OSError):  # closed, or read no further
                client.sendall(endless)
                for _ in range(_MIB_SENT):
                    client.sendall(b"x" * 2**20)
        assert _answer(port, _WHOLE).startswith(b"HTTP/1.1 200 ")
        assert process.memory_info().rss - before < _RSS_MAX


@given(
    st.lists(_text() | st.sampled_from([b"Bearer", b"Bearer \xe9", b"basic a-token"]), max_size=2)
)
def test_no_authorization_but_the_token_shows_the_group(port: int, shown: list[bytes]) -> None:
    lines = b"".join(b"authorization: %b\r\n" % each for each in shown)
    answer = _answer(port, b"GET /api/status HTTP/1.1\r\nhost: localhost\r\n" + lines + b"\r\n")
    assert not answer.startswith(b"HTTP/1.1 2")
    right = b"GET /api/status HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer a-token\r\n\r\n"
    assert _answer(port, right).startswith(b"HTTP/1.1 200 ")
