"""Makes the lock file: `make lock`, or `python -m checks.lock [--upgrade]`.

uv resolves the project's, extras' and groups' requirements together, for every supported platform
and Python version. Without `--upgrade`, present versions stay where they fit.
"""

import argparse
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from checks.locked import LOCK, ROOT, Pin, parse, render

OLDEST_PYTHON = "3.11"
RUN = "run"
"""The group of the project's own dependencies."""
EXTRAS = (
    "arrow", "avro", "files", "http", "iceberg", "java", "jsonschema", "opentelemetry", "postgres", "protobuf", "spark",
    "web",
)  # fmt: skip
"""The extras that the Makefile installs: for the tests, or where they are missing."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m checks.lock")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    upgrade: bool = parser.parse_args(arguments).upgrade
    groups = requirements_by_group((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    kept = () if upgrade or not LOCK.exists() else parse(LOCK.read_text(encoding="utf-8"))
    pins = lock(groups, kept)
    LOCK.write_text(render(pins), encoding="utf-8")
    print(f"{LOCK.name}: {len(pins)} packages for {', '.join(groups)}")
    return 0


def requirements_by_group(pyproject: str) -> dict[str, list[str]]:
    data = tomllib.loads(pyproject)
    extras = data["project"]["optional-dependencies"]
    return {
        RUN: list(data["project"]["dependencies"]),
        **{extra: list(extras[extra]) for extra in EXTRAS},
        **{name: list(lines) for name, lines in data["dependency-groups"].items()},
    }


def lock(groups: Mapping[str, Sequence[str]], kept: Sequence[Pin]) -> tuple[Pin, ...]:
    """Resolve all groups together, then find the pins that each group needs."""
    everything = sorted({line for lines in groups.values() for line in lines})
    pins = _compile(everything, preferred=kept)
    needed = {
        group: {(pin.name, pin.version) for pin in _compile(lines, constraints=pins)}
        for group, lines in groups.items()
    }
    return tuple(
        replace(
            pin,
            groups=frozenset(
                group for group, names in needed.items() if (pin.name, pin.version) in names
            ),
        )
        for pin in pins
    )


def _compile(
    requirements: Sequence[str], *, preferred: Sequence[Pin] = (), constraints: Sequence[Pin] = ()
) -> tuple[Pin, ...]:
    with tempfile.TemporaryDirectory() as folder:
        wanted, output, limits = (Path(folder) / name for name in ("in.txt", "out.txt", "c.txt"))
        wanted.write_text("\n".join(requirements) + "\n", encoding="utf-8")
        output.write_text("".join(pin.requirement() for pin in preferred), encoding="utf-8")
        limits.write_text("".join(_bare(pin) for pin in constraints), encoding="utf-8")
        command = [sys.executable, "-m", "uv", "pip", "compile", str(wanted), "--quiet"]
        command += ["--output-file", str(output), "--constraints", str(limits)]
        command += ["--universal", "--python-version", OLDEST_PYTHON, "--generate-hashes"]
        command += ["--no-header", "--no-annotate"]
        subprocess.run(command, check=True, cwd=folder)
        text = output.read_text(encoding="utf-8")
    return parse(_with_group_lines(text))


def _bare(pin: Pin) -> str:
    return replace(pin, hashes=()).requirement()


def _with_group_lines(compiled: str) -> str:
    lines = compiled.splitlines()
    following = [*lines[1:], ""]
    out: list[str] = []
    for line, after in zip(lines, following, strict=True):
        out.append(line)
        if line.startswith(" ") and not after.startswith(" "):
            out.append("    # for: nothing yet")
    return "\n".join(out)


if __name__ == "__main__":
    sys.exit(main())
