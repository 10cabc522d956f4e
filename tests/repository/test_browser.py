"""Search for a Chromium: a missing one is an error in continuous integration only."""

from pathlib import Path

import pytest

from checks import browser


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(browser, "_PATHS", ())
    for name in ("CI", browser.VARIABLE):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("variable", "code"), [("", 0), ("true", 1)])
def test_a_missing_browser_is_an_error_in_continuous_integration(
    variable: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CI", variable)
    assert browser.main(["--stamp", str(tmp_path / "stamp")]) == code
    assert browser.VARIABLE in capsys.readouterr().err
    assert not (tmp_path / "stamp").exists()


def test_a_browser_on_the_path_or_in_the_variable_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "chromium-browser"
    program.touch(mode=0o755)
    assert browser.main(["--stamp", str(tmp_path / "stamp")]) == 0
    assert (tmp_path / "stamp").exists()
    other = tmp_path / "my-chrome"
    other.touch(mode=0o755)
    monkeypatch.setenv(browser.VARIABLE, str(other))
    assert browser.find_chromium() == str(other)
    monkeypatch.setenv(browser.VARIABLE, str(tmp_path / "none"))
    assert browser.find_chromium() is None
