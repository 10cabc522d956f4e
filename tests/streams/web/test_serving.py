"""The HTTP server that `http_port` starts: its address, its errors."""

import logging
import socket
from contextlib import closing
from http.client import HTTPConnection
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from tests.streams.web.processes import TOKEN, streams
from tidewheel import ConfigError, KafkaStreams, RunOptions, StreamsConfig
from tidewheel.streams.web import serving
from tidewheel.streams.web.serving import serve_view


def _get(url: str, path: str) -> int:
    connection = HTTPConnection(url.removeprefix("http://"), timeout=30)
    connection.request("GET", path)
    status = connection.getresponse().status
    connection.close()
    return status


def test_the_server_answers_until_it_is_closed(tmp_path: Path) -> None:
    app = streams(tmp_path, http_port=0)
    server = serve_view(app.view)
    try:
        assert _get(server.url, "/healthz") == 200
        assert app.view.application.endpoint == server.url.removeprefix("http://")
    finally:
        server.close()
    with pytest.raises(ConnectionRefusedError):
        _get(server.url, "/healthz")


def test_a_taken_port_is_an_error_with_the_next_step(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        app = streams(tmp_path, http_port=taken.getsockname()[1])
        with pytest.raises(ConfigError, match="taken"):
            app.start()
    assert app.http_url is None


def test_two_programs_of_a_machine_share_one_setting(tmp_path: Path) -> None:
    port = _free_ports(2)
    first, second = streams(tmp_path, http_port=port), streams(tmp_path, http_port=port)
    with closing(first), closing(second):
        first.start()
        second.start()
        assert [first.http_url, second.http_url] == [
            f"http://127.0.0.1:{port}",
            f"http://127.0.0.1:{port + 1}",
        ]
        assert _get(f"http://127.0.0.1:{port}", "/") == 200


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"http_host": "0.0.0.0"}, "http_token"),  # noqa: S104 - it is refused
        ({"http_host": "no.such.host.invalid"}, "no such address"),
        ({"http_token": "env:TIDEWHEEL_TEST_NO_SUCH_TOKEN"}, "is not set"),
        ({"http_token": "env:TIDEWHEEL_TEST_SHORT_TOKEN"}, "16"),
        ({"http_port": 65_535}, "lower"),
    ],
)
def test_wrong_settings_are_named(
    settings: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEWHEEL_TEST_SHORT_TOKEN", "short")
    app = _worker(tmp_path, 1, **{"http_port": 0, **settings})
    with pytest.raises(ConfigError, match=message):
        serve_view(app.view, 1)


@pytest.mark.parametrize("value", ["short", "0123456789 abcdef", 5, "ä" * 20])
def test_a_bad_token_is_not_shown(value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        StreamsConfig(application_id="shop", http_token=value)
    assert str(value) not in str(caught.value).partition("must be")[0].replace("http_token", "")
    shown = StreamsConfig(application_id="shop", http_token=TOKEN)
    assert TOKEN not in repr(shown)
    assert TOKEN not in "".join(row.value for row in shown.describe())


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = util.find_spec
    monkeypatch.setattr(
        serving, "find_spec", lambda name: None if name == "uvicorn" else found(name)
    )
    with pytest.raises(ConfigError, match=r"uvicorn.*tidewheel\[web\]"):
        streams(tmp_path, http_port=0).start()


@pytest.mark.parametrize(
    ("slot", "settings", "port_added", "announced"),
    [
        (0, {}, 0, "127.0.0.1:{port}"),
        (2, {}, 2, "127.0.0.1:{port}"),
        (2, {"application_server": "shop-3:9000"}, 2, "shop-3:9002"),
    ],
)
def test_each_worker_has_its_own_port_and_announces_it(
    slot: int, settings: dict[str, Any], port_added: int, announced: str, tmp_path: Path
) -> None:
    free = _free_ports(3)
    app = _worker(tmp_path, slot, http_port=free, **settings)
    server = serve_view(app.view, slot)
    server.close()
    port = free + port_added
    assert server.url == f"http://127.0.0.1:{port}"
    assert app.view.application.endpoint == announced.format(port=port)


def test_the_token_is_asked_for(tmp_path: Path) -> None:
    server = serve_view(streams(tmp_path, http_port=0, http_token=TOKEN).view)
    try:
        assert (_get(server.url, "/metrics"), _get(server.url, "/healthz")) == (401, 200)
    finally:
        server.close()


def test_the_log_names_the_address(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tidewheel"):
        server = serve_view(streams(tmp_path, http_port=0).view)
    server.close()
    assert server.url in caplog.text


def _worker(tmp_path: Path, slot: int, **settings: Any) -> KafkaStreams:
    """Return worker `slot` of three."""
    return streams(tmp_path, options=RunOptions(slot=slot, workers=3), **settings)


def _free_ports(count: int) -> int:
    """Return the first of some consecutive free ports."""
    for first in range(20_000, 60_000, count):
        try:
            sockets = [socket.create_server(("127.0.0.1", first + n)) for n in range(count)]
        except OSError:
            continue
        for each in sockets:
            each.close()
        return first
    raise AssertionError("no free ports")
