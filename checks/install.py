"""Installs groups of the lock file, with a hash check of every file.

    python -m checks.install run test     the packages of these groups
    python -m checks.install --project    this repository, editable, without any download
    python -m checks.install spark        likewise; first prints the download size
    python -m checks.install --broker     missing parts of the development Kafka: a Java, an Ivy

The group `build` comes first: it builds the others from source.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from checks.locked import LOCK, ROOT, LockError, of_groups, parse

SIZES = {
    "java": "a Java runtime as a wheel, about 60 MB",
    "spark": "PySpark, 456 MB to download and 485 MB installed",
}
"""What is large enough to be announced before it is fetched."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m checks.install")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help="groups of the lock")
    parser.add_argument("--project", action="store_true", help="this repository, editable")
    parser.add_argument(
        "--broker", action="store_true", help="missing parts of the development Kafka"
    )
    options = parser.parse_args(arguments)
    groups: list[str] = options.groups
    if options.project:
        return _pip("--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    if options.broker:
        groups = _missing_for_broker()
        for group in groups:
            print(f"The development Kafka needs the group {group}.", flush=True)
    return _install(groups) if groups else 0


def _install(groups: Sequence[str]) -> int:
    try:
        pins = of_groups(parse(LOCK.read_text(encoding="utf-8")), groups)
    except LockError as error:
        print(f"{LOCK.name}: {error}", file=sys.stderr)
        return 1
    for size in filter(None, map(SIZES.get, groups)):
        print(f"This fetches {size}.", flush=True)
    print(f"Installing {len(pins)} packages for {', '.join(groups)} …", flush=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as requirements:
        requirements.writelines(pin.requirement() for pin in pins)
        requirements.flush()
        # No build isolation: an isolated build would fetch build tools without a hash.
        return _pip("--require-hashes", "--no-build-isolation", "--requirement", requirements.name)


def _missing_for_broker() -> list[str]:
    """A new interpreter: its packages are installed by now."""
    asked = [sys.executable, "-m", "tidewheel.streams.broker", "--missing-extras"]
    answer = subprocess.run(asked, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return [extra for extra in answer.stdout.strip().split(",") if extra]


def _pip(*arguments: str) -> int:
    # pip draws its bar on terminals only; its list of satisfied packages is noise.
    quiet = [] if sys.stdout.isatty() else ["--quiet"]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *quiet]
    # A user's constraints would conflict with our pins.
    environment = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
    return subprocess.run([*command, *arguments], check=False, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
