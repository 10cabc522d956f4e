"""Commands whose standard streams are full or closed, and settings that are not UTF-8."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tidewheel.streams.exit_codes import ExitCode

_ROOT: Final = Path(__file__).parents[3]
_WORD_COUNT: Final = "examples/word_count.py:topology"
_TIMEOUT_S: Final = 300
#: Bytes that are not UTF-8, in arguments and variables.
_FOREIGN: Final = b"/tmp/\xff"

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


def _run(
    line: str, *arguments: bytes | str, environment: Mapping[str, str | bytes] | None = None
) -> tuple[int, str, str]:
    """Run a command line of a shell, where `$T` is `tidewheel`; return its code and outputs."""
    settings = {"TIDEWHEEL_APPLICATION_ID": "shop", "T": f"{sys.executable} -m tidewheel"}
    ended = subprocess.run(
        ["/bin/sh", "-c", line, "sh", *arguments],
        cwd=_ROOT,
        env={**os.environ, **settings, **(environment or {})},
        capture_output=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    return ended.returncode, ended.stdout.decode(), ended.stderr.decode()


@pytest.mark.parametrize(
    "command",
    ["config show", "config show --json", f"describe {_WORD_COUNT}", "--help", "--version"],
)
@pytest.mark.parametrize("redirection", [">/dev/full", ">&-"])
def test_an_output_that_cant_be_written_is_one_clear_line(command: str, redirection: str) -> None:
    code, _, errors = _run(f"$T {command} {redirection}")
    assert (code, errors.count("\n")) == (ExitCode.FAILED, 1), errors
    assert errors.startswith("error: standard output can't be written: ")


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_a_lost_standard_error_keeps_the_exit_code(redirection: str) -> None:
    assert _run(f"$T config show --set nonsense=1 {redirection}") == (ExitCode.USAGE, "", "")
    code, output, _ = _run(f"$T config show --json {redirection}")
    assert code == ExitCode.OK
    assert "commit_interval_ms" in output


@pytest.mark.parametrize("command", ["config show", "config show --json", "new shop", "--help"])
def test_a_reader_that_leaves_early_is_no_error(command: str, tmp_path: Path) -> None:
    """The pipe is closed before the command prints."""
    directory = f" --directory {tmp_path}/shop" if command == "new shop" else ""
    line = f"($T {command}{directory}; echo $? >{tmp_path}/code) | true"
    code, _, errors = _run(line)
    assert (code, errors) == (0, "")
    assert (tmp_path / "code").read_text() == "0\n"


def test_a_closed_descriptor_is_given_to_no_file() -> None:
    """A socket or database with the number of standard output would get its text."""
    program = (
        "import os; from tidewheel.streams.cli.output import prepare_streams; prepare_streams();"
        "print(os.open('README.md', os.O_RDONLY), file=__import__('sys').stderr)"
    )
    code, _, errors = _run(f'{sys.executable} -c "{program}" <&- >&-')
    assert (code, errors) == (0, "3\n")


def test_characters_that_the_encoding_lacks_are_escaped() -> None:
    environment = {"PYTHONIOENCODING": "ascii", "TIDEWHEEL_APPLICATION_ID": "shop"}
    code, _, errors = _run(f"$T describe {_WORD_COUNT} --mermaid", environment=environment)
    assert (code, errors) == (0, "")
    code, output, errors = _run("$T --help", environment=environment)
    assert (code, errors) == (0, "")
    assert "\\u2502" in output or output.isascii()


@pytest.mark.parametrize(
    ("line", "arguments", "variable", "named"),
    [
        ('$T config show --state-dir "$1"', [_FOREIGN], "", "argument 4"),
        ('$T config show --set "$1"', [b"kafka.sasl.password=\xff"], "", "kafka.sasl.password"),
        ('$T describe "$1"', [b"\xff.py:topology"], "", "argument 2"),
        ("$T config show", [], "TIDEWHEEL_STATE_DIR", "TIDEWHEEL_STATE_DIR"),
        ("$T config show", [], "TIDEWHEEL_CONFIG_FILE", "TIDEWHEEL_CONFIG_FILE"),
        ("$T config show", [], "TIDEWHEEL_KAFKA__SASL_PASSWORD", "TIDEWHEEL_KAFKA__SASL_PASSWORD"),
        ("$T config show", [], "XDG_STATE_HOME", "set state_dir"),
        (
            "$T topics --set kafka.sasl.password=env:SHOP_PASSWORD",
            [],
            "SHOP_PASSWORD",
            "'SHOP_PASSWORD' is not UTF-8",
        ),
    ],
)
def test_settings_that_are_not_utf8_are_clear_errors(
    line: str, arguments: list[bytes], variable: str, named: str
) -> None:
    environment = {variable: _FOREIGN} if variable else {}
    code, output, errors = _run(line, *arguments, environment=environment)
    assert (code, output) == (ExitCode.USAGE, ""), errors
    assert named in errors
    assert "UTF-8" in errors
    assert "Traceback" not in errors
    assert "\\xff" not in errors.partition("password")[2]  # it may be a secret


def test_a_folder_that_is_not_utf8_is_a_clear_error(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(folder)  # noqa: PTH102 - a path of bytes
    code, _, errors = _run(
        'cd "$1" && $T config show --state-dir state',
        folder,
        environment={"PYTHONPATH": str(_ROOT)},
    )
    assert code == ExitCode.USAGE
    assert "state_dir" in errors
    assert "Traceback" not in errors


def test_a_closed_standard_input_is_a_clear_error() -> None:
    program = (
        "import sys; from tidewheel.streams.cli.output import prepare_streams; prepare_streams();"
        "from tidewheel.streams.cli.commands.records.produce import _decoded;"
        "from tidewheel.streams.errors import StreamsError\n"
        "try: list(_decoded(sys.stdin))\n"
        "except StreamsError as error: print(error)"
    )
    code, output, errors = _run(f'{sys.executable} -c "{program}" <&-')
    assert (code, errors) == (0, "")
    assert output.startswith("standard input can't be read")
