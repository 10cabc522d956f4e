"""The PostgreSQL of tests: found, or named as missing."""

from pathlib import Path

import pytest

from checks.postgres import VARIABLE, find_postgres
from tests.integration import postgres_server


def test_missing_postgres_skips_tests_and_fails_them_in_ci(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(postgres_server, "find_postgres", lambda: None)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install postgresql"):
        postgres_server.programs()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install postgresql"):
        postgres_server.programs()


def test_named_folder_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert find_postgres() != tmp_path, "it has no programs"
    for name in ("initdb", "postgres"):
        (tmp_path / name).touch()
    assert find_postgres() == tmp_path
