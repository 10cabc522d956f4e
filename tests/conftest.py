"""What all tests have in common: random examples are the same in every run.

`HYPOTHESIS_PROFILE=explore` draws new ones, to look for what nobody has thought of yet. `--alone` chooses between the
tests that need the machine for themselves and all others; see `checks/run_tests.py`.
"""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# No deadline for one example: it would tell how busy the machine is. A test that hangs is ended by pytest's timeout.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--alone`."""
    parser.addoption(
        "--alone",
        choices=("only", "without"),
        help="only the tests marked `alone`, or all without them",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Don't import the modules that have no test for `--alone only`."""
    if config.getoption("--alone") != "only" or collection_path.suffix != ".py":
        return None
    return "mark.alone" not in collection_path.read_text(encoding="utf-8") or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes long, and leave out what `--alone` does not choose."""
    items.sort(key=lambda item: item.get_closest_marker("first") is None)
    chosen = config.getoption("--alone")
    if chosen is None:
        return
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        is_alone = item.get_closest_marker("alone") is not None
        (kept if is_alone == (chosen == "only") else left_out).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)
