"""Isolates tests from TIDEWHEEL_* variables and settings files of the machine."""

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.upper().startswith("TIDEWHEEL_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
