"""Functions of `on_start` under `tidewheel run`."""

import signal
from pathlib import Path

import pytest

from tests.streams.cli.command_runs import Command

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


def _run(file: Path) -> Command:
    return Command(
        "run", "hooks.py:topology", "--state-dir", str(file.parent / "state"), cwd=file.parent
    )


def test_a_stop_cancels_a_coroutine_of_the_start_and_calls_those_of_the_stop(
    program: Path,
) -> None:
    with _run(program) as run:
        run.until_said("waits")
        run.signal(signal.SIGINT)
        assert run.wait() == 0, run.said
    lines = run.said.splitlines()
    assert [line for line in lines if line in ("cancelled", "stopped")] == ["cancelled", "stopped"]


def test_a_failed_function_of_the_start_has_one_trace(program: Path) -> None:
    text = program.read_text().replace("await asyncio.Event().wait()", "raise OSError('no route')")
    program.write_text(text)
    with _run(program) as run:
        run.until_said(
            "started (process", times=2
        )  # the second life begins: the first has logged all
        first_life = run.said[: run.said.rindex("started (process")]
        run.signal(signal.SIGINT)
        run.wait()
    assert "no route" in first_life
    assert first_life.count("Traceback") == 1, first_life
    assert "stopped\n" in first_life
