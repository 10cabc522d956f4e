"""All tests of faults, also nightly ones: `python -m tests.faults [pytest's arguments]`.

The results become the tables of docs/reliability.md.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from checks import generated_parts
from checks.reliability_page import RESULTS
from checks.run_tests import speed_up_starts

_PYTEST: Final = (
    *(sys.executable, "-m", "pytest", "-p", "tests.faults.recorder", "-p", "no:xdist"),
    *("--fault-results", str(RESULTS), "-m", "fault"),
)


def main(arguments: Sequence[str]) -> int:
    speed_up_starts()
    nightly = {"HYPOTHESIS_PROFILE": "nightly"} | os.environ | {"TIDEWHEEL_FAULTS": "1"}
    code = subprocess.run([*_PYTEST, *arguments], check=False, env=nightly).returncode
    generated_parts.main(["--write"])
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
