"""HttpPost on a server in this process: requests, refusals, and answers that are tried again."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tidewheel import ConfigError
from tidewheel.sinks import HttpPost, RowsRefused, SinkBatch, SinkTaskInfo, TopicPartition
from tidewheel.streams.sinks.http_post import HttpAnswerError

AT = TopicPartition("orders", 0)
INFO = SinkTaskInfo(application_id="shop", sink="s", task_id="0_0", start={AT: 0})


class Endpoint:
    """Keeps accepted bodies; `answer(body)` returns a status, and headers."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.answer: Callable[[bytes], tuple[int, dict[str, str]]] = lambda _: (200, {})
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, headers = endpoint.answer(body)
                endpoint.requests.append((dict(self.headers), body))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/orders"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def post(endpoint: Endpoint) -> Iterator[Callable[..., HttpPost]]:
    sinks: list[HttpPost] = []

    def make(**options: Any) -> HttpPost:
        sinks.append(HttpPost(endpoint.url, **options))
        sinks[-1].open(INFO)
        return sinks[-1]

    yield make
    for sink in sinks:
        sink.close()


def batch(first: int, values: list[Any]) -> SinkBatch:
    offsets = range(first, first + len(values))
    return SinkBatch("orders", 0, offsets, [f"k{n}" for n in offsets], values, [0] * len(values))


def test_rows_of_a_flush_are_one_array(endpoint: Endpoint, post: Callable[..., HttpPost]) -> None:
    sink = post(headers=lambda: {"Authorization": "Bearer t"})
    sink.write(batch(3, [1]))
    sink.write(batch(4, [None]))
    sink.flush({AT: 5})
    ((headers, body),) = endpoint.requests
    assert json.loads(body) == [{"key": "k3", "value": 1}, {"key": "k4", "value": None}]
    assert headers["Idempotency-Key"] == "shop-orders-0-3-4"
    assert headers["Authorization"] == "Bearer t"


def test_rows_as_lines_by_a_function(endpoint: Endpoint, post: Callable[..., HttpPost]) -> None:
    sink = post(format="lines", to_body=lambda _, value: value)
    sink.write(batch(0, [1, [2]]))
    sink.flush({AT: 2})
    assert [body for _, body in endpoint.requests] == [b"1\n[2]\n"]


def test_refused_rows_are_found(endpoint: Endpoint, post: Callable[..., HttpPost]) -> None:
    endpoint.answer = lambda body: (422 if b"bad" in body else 200, {})
    sink = post(to_body=lambda _, value: value)
    sink.write(batch(0, [1, "bad", 3, 4, "bad", object()]))
    with pytest.raises(RowsRefused) as refused:
        sink.flush({AT: 6})
    assert sorted(row.row for row in refused.value.rows) == [1, 4, 5]


def test_other_answers_are_errors_with_the_pause_that_the_server_asks_for(
    endpoint: Endpoint, post: Callable[..., HttpPost]
) -> None:
    sink = post()
    sink.write(batch(0, [1]))
    for status in (401, 404, 429, 503):
        endpoint.answer = lambda _, status=status: (status, {"Retry-After": "7"})  # type: ignore[misc]
        with pytest.raises(HttpAnswerError, match=str(status)) as failed:
            sink.flush({AT: 1})
        assert failed.value.retry_after_s == 7
    endpoint.answer = lambda _: (204, {})
    sink.flush({AT: 1})


def test_wrong_arguments_are_rejected() -> None:
    with pytest.raises(ConfigError, match="http"):
        HttpPost("ftp://host")
    with pytest.raises(ConfigError, match="address"):
        HttpPost("https://")
    with pytest.raises(ConfigError, match="timeout_s"):
        HttpPost("https://host", timeout_s=0)
    with pytest.raises(ConfigError, match="batch_rows"):
        HttpPost("http://host", batch_rows=0)
