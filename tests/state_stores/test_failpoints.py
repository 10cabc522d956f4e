"""Failpoints strike at their time only, and a wrong spelling is an error."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tidewheel.state_stores import failpoints
from tidewheel.state_stores.errors import StreamsError
from tidewheel.state_stores.failpoints import FailpointError, arm, reach

_PROGRAM = """
from tidewheel.state_stores.failpoints import failpoint
for number in range(3):
    failpoint("before_commit")
    failpoint("sent", "TASK", "GRANT")
    print(number, flush=True)
input()
"""


@pytest.fixture(autouse=True)
def _none_stays_armed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "_armed", {})
    monkeypatch.setattr(failpoints, "failpoint", reach)


def _process(armed: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        env={**os.environ, "FAILPOINT": armed},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("armed", "passed", "code"),
    [
        ("", [0, 1, 2], 0),
        ("before_commit:2:kill9", [0], -signal.SIGKILL),
        ("before_commit:3:kill9=0.01", [0, 1, 2], -signal.SIGKILL),
        ("sent_GRANT:3:kill9", [0, 1], -signal.SIGKILL),
        ("after_commit:1:kill9,sent_TASK:1:raise", [], 1),
        ("before_commit:4:kill9", [0, 1, 2], 0),
    ],
)
def test_process_ends_at_the_armed_point(armed: str, passed: list[int], code: int) -> None:
    process = _process(armed)
    if code == -signal.SIGKILL and "=" in armed:
        assert process.wait(300) == code  # its input would end it too
    output, _ = process.communicate("\n", timeout=300)
    assert ([int(line) for line in output.split()], process.returncode) == (passed, code)


def test_stopped_process_continues_where_it_was() -> None:
    process = _process("before_commit:2:stop")
    pid, status = os.waitpid(process.pid, os.WUNTRACED)
    assert pid == process.pid
    assert os.WSTOPSIG(status) == signal.SIGSTOP
    process.send_signal(signal.SIGCONT)
    output, _ = process.communicate("\n", timeout=300)
    assert output.split() == ["0", "1", "2"]


def test_raise_and_sleep() -> None:
    arm("before_apply:1:sleep=0.05,after_apply:2:raise")
    begun_s = time.monotonic()
    reach("before_apply")
    assert time.monotonic() - begun_s >= 0.05
    reach("after_apply")
    with pytest.raises(FailpointError, match="after_apply"):
        reach("after_apply")


@pytest.mark.parametrize(
    "text",
    [
        "before_comit:1:kill9",
        "before_commit",
        "before_commit:1",
        "before_commit:0:kill9",
        "before_commit:x:kill9",
        "before_commit:1:kill",
        "before_commit:1:sleep",
        "before_commit:1:sleep=x",
        "before_commit:1:sleep=-1",
        "before_commit:1:sleep=nan",
        "before_commit:1:sleep=inf",
        "before_commit:1:raise:2",
    ],
)
def test_wrong_spelling_is_an_error(text: str) -> None:
    with pytest.raises(StreamsError, match="FAILPOINT="):
        arm(text)
    reach("before_commit")


def test_unset_it_is_no_python_function() -> None:
    """Its calls cost no frame. A failpoint armed too late is an error, and not ignored."""
    code = (
        "import types; from tidewheel.state_stores import failpoints;"
        "assert not isinstance(failpoints.failpoint, types.FunctionType);"
        "failpoints.failpoint('sent', 'TASK'); failpoints.arm('before_commit:1:raise')"
    )
    environment = {name: value for name, value in os.environ.items() if name != "FAILPOINT"}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert "StreamsError: set FAILPOINT" in ended.stderr


def test_a_foreign_value_is_an_error_of_the_start_and_not_of_the_import() -> None:
    code = """
import tidewheel
config = tidewheel.StreamsConfig(application_id="a")
builder = tidewheel.StreamsBuilder()
builder.stream("in", key_serde=str, value_serde=str).to("out")
try:
    tidewheel.KafkaStreams(builder.build(), config)
except tidewheel.ConfigError as error:
    print(error)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "FAILPOINT": "github.com/other/tool=panic"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "environment variable FAILPOINT" in ended.stdout
    assert "unset" in ended.stdout
