"""Break guarded places on purpose: `python -m tests.faults.mutants [--list] [NAME...]`.

Each mutant is one patch in a copy of the repository, and a test that must fail there. First the
tests must pass in an unchanged copy.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from checks.repository_files import ROOT
from checks.shared_broker import SOCKET_VARIABLE, offered_broker
from tests.faults.mutants.table import MUTANTS, Mutant

#: Seconds for one run of pytest, which ends each test after a few minutes.
_RUN_S: Final = 1_800
_PASSED, _FAILED = 0, 1
#: Heading of pytest's list of failed and skipped tests.
_SUMMARY: Final = "short test summary info"
_SHOWN_CHARACTERS: Final = 3_000


class TestRun:
    """One run of pytest in a copy of the repository."""

    def __init__(self, tree: Path, tests: Sequence[str]) -> None:
        options = ("-q", "-rfEs", "-p", "no:cacheprovider", "-p", "no:xdist")
        environment = os.environ | {"PYTHONPATH": str(tree), "TIDEWHEEL_FAULTS": "1"}
        began_s = time.monotonic()
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=tree,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_RUN_S,
            check=False,
        )
        self.seconds = time.monotonic() - began_s
        self.code = ended.returncode
        self.output = ended.stdout

    @property
    def has_passed(self) -> bool:
        """Return True if all tests ran and passed: a skipped one can catch nothing."""
        return self.code == _PASSED and not self._listed("SKIPPED")

    @property
    def has_failed(self) -> bool:
        """Return True if a test failed; an error of a fixture or an import is no failure."""
        return self.code == _FAILED and self._listed("FAILED")

    def _listed(self, outcome: str) -> bool:
        _, _, summary = self.output.rpartition(_SUMMARY)
        return any(line.startswith(f"{outcome} ") for line in summary.splitlines())


def copy_repository(target: Path) -> None:
    """Copy all files that git tracks or would add; links stay links."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_symlink() or (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)


def run_mutant(original: Path, mutant: Mutant) -> TestRun:
    """Run the mutant's test in a patched copy of the copy, which has compiled modules."""
    text = mutant.patched(original)
    tree = original.with_name(mutant.name)
    shutil.copytree(original, tree, symlinks=True)
    patched = tree / mutant.file
    patched.write_text(text, encoding="utf-8")
    # Python takes compiled code as current if the size and the second of the change are the same.
    for compiled in patched.parent.glob(f"__pycache__/{patched.stem}.*.pyc"):
        compiled.unlink()
    try:
        return TestRun(tree, [mutant.test])
    finally:
        shutil.rmtree(tree, ignore_errors=True)


def run_mutants(original: Path, mutants: Sequence[Mutant]) -> int:
    unchanged = TestRun(original, list(dict.fromkeys(mutant.test for mutant in mutants)))
    if not unchanged.has_passed:
        _print(f"{unchanged.output}\nnot all tests pass without a mutant: repair them first")
        return 1
    width = max(len(mutant.name) for mutant in mutants)
    _print(f"{'unchanged':{width}}  passes all tests, {unchanged.seconds:.0f} s")
    survivors: list[str] = []
    for mutant in mutants:
        run = run_mutant(original, mutant)
        if run.has_failed:
            _print(f"{mutant.name:{width}}  caught by {mutant.test}, {run.seconds:.0f} s")
        else:
            survivors.append(mutant.name)
            _print(
                f"{run.output[-_SHOWN_CHARACTERS:]}\n{mutant.name:{width}}  SURVIVES {mutant.test}"
            )
    _print(f"{len(mutants) - len(survivors)} of {len(mutants)} mutants were caught")
    return 1 if survivors else 0


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.mutants")
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to run; default: all")
    parser.add_argument("--list", action="store_true", help="list the mutants and their rules")
    chosen = parser.parse_args(arguments)
    unknown = sorted(set(chosen.names) - {mutant.name for mutant in MUTANTS})
    if unknown:
        parser.error(f"no mutant is named {', '.join(unknown)}; --list shows all names")
    mutants = [mutant for mutant in MUTANTS if not chosen.names or mutant.name in chosen.names]
    if chosen.list:
        for mutant in mutants:
            _print(f"{mutant.name}: {mutant.rule}\n    {mutant.file}\n    {mutant.test}")
        return 0
    with (
        tempfile.TemporaryDirectory(prefix="tidewheel-mutants-") as folder,
        offered_broker() as socket,
    ):
        os.environ.setdefault(SOCKET_VARIABLE, socket)
        original = Path(folder) / "unchanged"
        copy_repository(original)
        return run_mutants(original, mutants)


if __name__ == "__main__":
    sys.exit(main())
