"""Functions of `on_start` under `tidewheel run`."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

#: Seconds for a run to start or to end.
_PATIENCE_S = 120.0

_PROGRAM = """
import asyncio
from tidewheel import StreamsBuilder

config = {"application_id": "hooks", "bootstrap_servers": "127.0.0.1:1"}
topology = StreamsBuilder()
topology.stream("in", key_serde=str, value_serde=str).to("out", value_serde=str)

async def on_start():
    print("waits", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        print("cancelled", flush=True)

def on_stop():
    print("stopped", flush=True)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "hooks.py"
    file.write_text(_PROGRAM)
    return file


def _run(file: Path) -> "subprocess.Popen[str]":
    command = ["run", "hooks.py:topology", "--state-dir", str(file.parent / "state")]
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(
        [sys.executable, "-m", "tidewheel", *command],
        cwd=file.parent,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        **options,
    )


def test_a_stop_cancels_a_coroutine_of_the_start_and_calls_those_of_the_stop(
    program: Path,
) -> None:
    with _run(program) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if line.startswith("waits"):
                break
        run.send_signal(signal.SIGINT)
        output, _ = run.communicate(timeout=_PATIENCE_S)
        lines = output.splitlines()
        assert [line for line in lines if line in ("cancelled", "stopped")] == [
            "cancelled",
            "stopped",
        ]
        assert run.returncode == 0, output


def test_a_failed_function_of_the_start_has_one_trace(program: Path) -> None:
    text = program.read_text().replace("await asyncio.Event().wait()", "raise OSError('no route')")
    program.write_text(text)
    with _run(program) as run:
        assert run.stdout is not None
        lines: list[str] = []
        for line in run.stdout:
            lines.append(line)
            if "no route" in line and "supervisor" in line:
                break
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=_PATIENCE_S)
    assert sum("Traceback" in line for line in lines) == 1, lines
    assert "stopped\n" in lines
