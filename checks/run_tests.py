"""Runs the tests for `make test`: five modules in parallel, then those marked `alone`, one by one.

Both rounds pass the arguments to pytest. Five keep two cores busy, because tests with a broker
mostly wait for the one they share (`checks/shared_broker.py`). Tests marked `alone` measure a
worker under kills and load; other tests on the same cores would change the result.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from checks.shared_broker import SOCKET_VARIABLE, offered_broker
from checks.spark_classes import archived_spark

#: Tests marked `first` come first.
_TOGETHER = ("-n", "5", "--dist", "loadscope", "--no-loadscope-reorder", "--alone", "without")
_ALONE = ("-n", "1", "--dist", "loadscope", "--no-loadscope-reorder", "--alone", "only")
#: Test brokers live briefly: without Java's second compiler a start takes half the time.
_JAVA = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}
#: With this set, each of hundreds of Pythons would compile its imports.
_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
_PASSED = 0
_NO_TESTS = 5
_ROOT: Final = Path(__file__).parents[1]
_TESTS: Final = _ROOT / "tests"


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = list(sys.argv[1:] if arguments is None else arguments)
    codes: list[int] = []
    speed_up_starts()
    with archived_spark(_ROOT / ".venv" / "class-archives") as environment:
        if not any(_TESTS.rglob("*-pytest-*.pyc")):
            _compile_tests()
    os.environ.update(environment)
    for options in (_TOGETHER, _ALONE):
        command = [sys.executable, "-m", "pytest", *options, *chosen]
        with offered_broker() as socket:
            asked_at = os.environ | {SOCKET_VARIABLE: socket}
            codes.append(subprocess.run(command, check=False, env=asked_at).returncode)
        if codes[-1] not in (_PASSED, _NO_TESTS):
            return codes[-1]
    return _PASSED if _PASSED in codes else _NO_TESTS


def speed_up_starts() -> None:
    """Set the environment for tests that start many processes."""
    for name, value in _JAVA.items():
        os.environ.setdefault(name, value)
    os.environ.pop(_NO_BYTECODE, None)


def _compile_tests() -> None:
    """Otherwise each pytest process compiles all tests, for 30 s of processor time."""
    files = sorted(str(path) for path in _TESTS.rglob("test_*.py"))
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:xdist"]
    compiling = [
        subprocess.Popen([*command, *half], stdout=subprocess.DEVNULL)
        for half in (files[::2], files[1::2])
    ]
    for process in compiling:
        process.wait()  # the round reports collection errors


if __name__ == "__main__":
    sys.exit(main())
