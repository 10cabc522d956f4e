"""Runs the tests: five modules at a time, then alone those that need the machine for themselves (`make test`).

Arguments go to pytest, in both rounds. Five at a time keep two cores busy, because tests with a broker mostly wait for
it, one that all of them share (`checks/shared_broker.py`). Tests marked `alone` measure how a worker behaves under kills and a steady feed; beside all the others on two cores
they would tell how busy the machine is.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from checks.shared_broker import SOCKET_VARIABLE, offered_broker
from checks.spark_classes import archived_spark

#: Modules go out in the order of their tests, which begins with those marked `first`.
_TOGETHER = ("-n", "5", "--dist", "loadscope", "--no-loadscope-reorder", "--alone", "without")
_ALONE = ("-n", "1", "--dist", "loadscope", "--no-loadscope-reorder", "--alone", "only")
#: Brokers of tests don't live long enough for Java's second compiler to pay: without it a start costs half the time.
_JAVA = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}
#: Hundreds of Pythons are started, and where this is set each of them compiles all that it imports, four times even the tests.
_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
_PASSED = 0
_NO_TESTS = 5
_ROOT: Final = Path(__file__).parents[1]
_TESTS: Final = _ROOT / "tests"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both rounds; the first that fails is the last."""
    chosen = list(sys.argv[1:] if arguments is None else arguments)
    codes: list[int] = []
    for name, value in _JAVA.items():
        os.environ.setdefault(name, value)
    os.environ.pop(_NO_BYTECODE, None)
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


def _compile_tests() -> None:
    """Have pytest compile all tests once, as otherwise each of its processes does it for itself: half a minute of processor time."""
    files = sorted(str(each) for each in _TESTS.rglob("test_*.py"))
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:xdist"]
    compiling = [
        subprocess.Popen([*command, *half], stdout=subprocess.DEVNULL)
        for half in (files[::2], files[1::2])
    ]
    for each in compiling:
        each.wait()  # what can't be collected is told by the round


if __name__ == "__main__":
    sys.exit(main())
