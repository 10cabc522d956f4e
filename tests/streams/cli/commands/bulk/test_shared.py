"""Shared parts of the bulk commands."""

import signal

import pytest

from tidewheel.streams.cli.app import main
from tidewheel.streams.cli.commands.bulk.shared import names_of, shown_progress
from tidewheel.streams.errors import ConfigError
from tidewheel.streams.exit_codes import ExitCode


@pytest.mark.parametrize("text", ["", " ", " , "])
def test_a_list_of_stores_without_a_name_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=f"--stores '{text}' names nothing"):
        names_of(text)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_job_ended_by_a_signal_restores_the_signal_handler(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), shown_progress(as_json=True):
        signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_a_negative_limit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["state", "scan", "app.py:topology", "counts", "--limit", "-3"]) == ExitCode.USAGE
    assert "--limit -3: give 1 or more" in capsys.readouterr().err
