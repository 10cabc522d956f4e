"""The machine in a result."""

import platform
import sys
import sysconfig

import pytest

from benchmarks.environment.machine import python_build

VERSION = platform.python_version()


def test_a_python_of_the_system_has_the_name_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"PRETTY_NAME": "Some Linux 1"})
    assert python_build() == f"{VERSION} of Some Linux 1"


def test_a_system_without_a_name_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> dict[str, str]:
        raise FileNotFoundError("os-release")

    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setattr(platform, "freedesktop_os_release", missing)
    assert python_build() == VERSION


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("'--enable-optimizations' '--with-lto'", VERSION),
        ("'--enable-shared'", f"{VERSION} built without optimizations"),
        (None, f"{VERSION} built without optimizations"),
    ],
)
def test_a_self_built_python_names_its_build(
    arguments: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "base_prefix", "/opt/python")
    monkeypatch.setattr(sysconfig, "get_config_var", {"CONFIG_ARGS": arguments}.get)
    assert python_build() == said
