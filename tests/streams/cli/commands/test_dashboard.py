"""`tidewheel dashboard`: address, refusals and exit."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.rebalance.leader.group_logs import two_members
from tests.streams.group.fake_group import FakeGroup, use
from tidewheel.streams.cli.app import main
from tidewheel.streams.dashboard.poller import GroupPoller
from tidewheel.streams.exit_codes import ExitCode

ROOT = Path(__file__).parents[4]

_SERVED = """
import sys
import pytest
from tidewheel.streams.cli.app import main
from tests.rebalance.leader.group_logs import two_members
from tests.streams.group.fake_group import FakeGroup, use

assert "starlette" not in sys.modules, "the command line is quick without it"
book = two_members()
group = FakeGroup()
group.write(book)
group.beats(book.now_ms, "a", "b")
with pytest.MonkeyPatch.context() as patch:
    use(patch, group, book.now_ms)
    code = main(["dashboard", "shop", "--port", "0", "--token", "env:SECRET", "--set", "consumer.sasl.password=hunter2", "--json"])
assert [each.closed for each in group.connections] == [True]
raise SystemExit(code)
"""
_TOKEN = "correct-horse-battery"  # noqa: S105 - of this test


@pytest.mark.slow
def test_the_dashboard_serves_the_group_until_a_signal() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVED],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SECRET": _TOKEN},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert (ready["event"], ready["application_id"]) == ("ready", "shop")
        assert ready["url"].startswith("http://127.0.0.1:")
        asked = urllib.request.Request(  # noqa: S310 - an address of this machine
            f"{ready['url']}api/events", headers={"Authorization": f"Bearer {_TOKEN}"}
        )
        with urllib.request.urlopen(asked, timeout=60) as stream:  # noqa: S310 - likewise
            seen = b""
            for line in stream:
                seen += line
                if b'"status"' in line:
                    break
            process.send_signal(signal.SIGTERM)
            seen += stream.read()
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, json.loads(out), err) == (ExitCode.OK, {"event": "stopped"}, "")
    assert b'"application_id":"shop"' in seen
    assert seen.endswith(b"event: end\ndata: {}\n\n")
    assert b"target 1: a and b joined" in seen  # of the history
    assert b"hunter2" not in seen
    assert _TOKEN.encode() not in seen


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> FakeGroup:
    """A settled group, without a server."""
    book = two_members()
    group = FakeGroup()
    group.write(book)
    use(monkeypatch, group, book.now_ms)
    monkeypatch.setenv("SHORT", "0123456789")
    monkeypatch.setattr("tidewheel.streams.cli.commands.dashboard._serve", lambda *_, **__: None)
    return group


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--interval", "0"], "--interval 0: at least 0.1 s"),
        (["--interval", "nan"], "--interval nan: at least 0.1 s"),
        (["--port", "65536"], "--port 65536: a port is"),
        (["--host", "0.0.0.0"], "--host 0.0.0.0: other machines could read"),  # noqa: S104 - refused
        (["--host", "::"], "--host ::: other machines could read"),
        (["--host", "no such host"], "--host no such host: no such address"),
        (["--token", "hunter2-hunter2-hunter2"], "--token: give env:NAME or file:/path"),
        (["--token", "env:NOT_SET_HERE"], "'NOT_SET_HERE' is not set"),
        (["--token", "env:SHORT"], "--token env:SHORT: a token is at least 16 characters"),
    ],
)
def test_unsafe_and_invalid_arguments_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dashboard", "shop", *arguments]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert message in said
    assert "hunter2" not in said
    assert "0123456789" not in said


@pytest.mark.usefixtures("group")
def test_other_addresses_are_served_with_a_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("0123456789abcdef\n")
    arguments = ["--host", "0.0.0.0", "--port", "0", "--token", f"file:{tmp_path / 'token'}"]  # noqa: S104 - that is tested
    assert main(["dashboard", "shop", *arguments, "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out.splitlines()[0])["event"] == "ready"


@pytest.mark.usefixtures("group")
def test_the_dashboard_ends_immediately_if_brokers_do_not_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def serve(_: socket.socket, name: str, poller: GroupPoller, **__: object) -> None:
        assert name == "shop"
        poller.hangs = True

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr("tidewheel.streams.cli.commands.dashboard._serve", serve)
    monkeypatch.setattr("os._exit", leave)
    with pytest.raises(SystemExit, match="0"):
        main(["dashboard", "shop", "--port", "0", "--json"])
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"event": "stopped"}


@pytest.mark.usefixtures("group")
def test_a_port_in_use_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["dashboard", "shop", "--port", str(port)]) == ExitCode.REFUSED
    assert f"port {port} of 127.0.0.1 is taken by another program" in capsys.readouterr().err


def test_a_missing_group_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, FakeGroup(topics=False), 0)
    assert main(["dashboard", "shop", "--port", "0"]) == ExitCode.FAILED
    assert "application shop has no group" in capsys.readouterr().err


def test_the_error_of_a_missing_extra_explains_the_installation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tidewheel.streams.cli.commands.dashboard.find_spec", lambda name: None)
    assert main(["dashboard", "shop"]) == ExitCode.USAGE
    assert "starlette, uvicorn, prometheus_client: pip install 'tidewheel[web]'" in (
        capsys.readouterr().err
    )
