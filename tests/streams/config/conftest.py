"""Settings are tested without those of the machine: no TIDEWHEEL_* variables, no settings file."""

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Start each test in an empty folder, without variables of ours."""
    for name in list(os.environ):
        if name.upper().startswith("TIDEWHEEL_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
