"""Runs the tests: four modules at a time, then those that need the machine for themselves (`make test`).

Arguments go to pytest, in both rounds. Four at a time keep two cores busy, because tests with a broker mostly wait for
it. Tests marked `alone` measure how a worker behaves under kills and a steady feed; beside all the others on two cores
they would tell how busy the machine is.
"""

import os
import subprocess
import sys
from collections.abc import Sequence

#: Modules go out in the order of their tests, which begins with those marked `first`.
_TOGETHER = ("-n", "4", "--dist", "loadscope", "--no-loadscope-reorder", "--alone", "without")
_ALONE = ("-n", "2", "--dist", "loadscope", "--no-loadscope-reorder", "--alone", "only")
#: Brokers of tests don't live long enough for Java's second compiler to pay: without it a start costs half the time.
_JAVA = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}
_PASSED = 0
_NO_TESTS = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both rounds; the first that fails is the last."""
    chosen = list(sys.argv[1:] if arguments is None else arguments)
    codes: list[int] = []
    for options in (_TOGETHER, _ALONE):
        command = [sys.executable, "-m", "pytest", *options, *chosen]
        codes.append(subprocess.run(command, check=False, env=_JAVA | os.environ).returncode)
        if codes[-1] not in (_PASSED, _NO_TESTS):
            return codes[-1]
    return _PASSED if _PASSED in codes else _NO_TESTS


if __name__ == "__main__":
    sys.exit(main())
