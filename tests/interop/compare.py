"""Compares random programs with Kafka Streams:

`python -m tests.interop.compare --programs 20000 --seed 7`.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.environment.java import compiled_command
from tests.interop.draws import Drawn, draws
from tests.interop.programs import answer
from tests.interop.shapes import excluded, refused, rewired

_SOURCE = Path(__file__).with_name("Programs.java")
_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dorg.apache.logging.log4j.level=OFF")
_BATCH = 50
DECLARED = "declared: "


class Reference:
    def __init__(self) -> None:
        java, *rest = compiled_command(_SOURCE)
        fast = Path("/dev/shm")  # noqa: S108 - its stores live for one program
        self._folder = tempfile.TemporaryDirectory(
            prefix="programs-", dir=fast if fast.is_dir() else None
        )
        self._process = subprocess.Popen(
            [java, f"-Djava.io.tmpdir={self._folder.name}", *_OPTIONS, *rest],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, programs: Iterable[Drawn]) -> Iterator[dict[str, Any]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        lines = [json.dumps(program) for program in programs]
        # Both pipes are small: writing must not wait for reading.
        threading.Thread(target=self._send, args=(lines,), daemon=True).start()
        answered = 0
        while answered < len(lines):
            line = self._process.stdout.readline()
            if not line:
                raise RuntimeError(f"Kafka Streams' process ended with {self._process.wait()}")
            if line.startswith("{"):
                answered += 1
                yield json.loads(line)

    def _send(self, lines: list[str]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n".join(lines) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._folder.cleanup()


def difference(program: Drawn, theirs: dict[str, Any], ours: dict[str, Any]) -> str | None:
    """Return the first difference or None; a declared one of a whole topology begins with `DECLARED`."""
    if "error" in theirs or "error" in ours:
        return _difference_of_errors(theirs, ours)
    if theirs["describe"] != ours["describe"]:
        declared = rewired(program)
        return "describe" if declared is None else f"{DECLARED}{declared}"
    left_out = excluded(program, ours["describe"])
    for name in sorted({*theirs["outputs"], *ours["outputs"]} - left_out.keys()):
        if theirs["outputs"].get(name) != ours["outputs"].get(name):
            return "outputs"
    return None


def _difference_of_errors(theirs: dict[str, Any], ours: dict[str, Any]) -> str | None:
    if "error" not in theirs:
        return f"only ours fails: {ours['phase']}"
    if "error" not in ours:
        declared = refused(theirs["error"])
        return (
            f"only theirs fails: {theirs['phase']}" if declared is None else f"{DECLARED}{declared}"
        )
    return None if theirs["phase"] == ours["phase"] else "phase of the error"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--nice", type=int, default=10)
    parser.add_argument("--found", type=Path, default=None, help="where differences are written")
    options = parser.parse_args(arguments)
    os.nice(options.nice)
    logging.disable(logging.WARNING)
    counts: Counter[str] = Counter()
    inputs = 0
    reference = Reference()
    began_s = time.monotonic()
    last = options.first + options.programs
    for start in range(options.first, last, _BATCH):
        programs = list(draws(options.seed, range(start, min(start + _BATCH, last))))
        for program, theirs in zip(programs, reference.ask(programs), strict=True):
            ours = answer(program)
            inputs += len(program["inputs"])
            found = difference(program, theirs, ours)
            counts[found or ("both fail" if "error" in theirs else "equal")] += 1
            if found and not found.startswith(DECLARED) and options.found is not None:
                with options.found.open("a") as file:
                    line = {"what": found, "program": program, "theirs": theirs, "ours": ours}
                    file.write(json.dumps(line) + "\n")
        spent_s = time.monotonic() - began_s
        sys.stdout.write(f"{start + len(programs):>7} {spent_s:6.0f} s {dict(counts)}\n")
        sys.stdout.flush()
    reference.close()
    sys.stdout.write(
        f"seed {options.seed}: {options.programs} programs, {inputs} inputs: {dict(counts)}\n"
    )
    return int(
        any(name not in ("equal", "both fail") and not name.startswith(DECLARED) for name in counts)
    )


if __name__ == "__main__":
    sys.exit(main())
