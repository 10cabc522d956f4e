"""Installs Debian packages that tests need, where this may be done: as root, with apt-get."""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path


def may_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(*packages: str, size_mb: int) -> None:
    print(f"Installing {' and '.join(packages)}, about {size_mb} MB to download …", flush=True)
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ("apt-get", "--quiet=2", "update"),
        ("apt-get", "--quiet=2", "install", "--yes", "--no-install-recommends", *packages),
    ):
        subprocess.run(command, check=False, env=quiet, stdout=subprocess.DEVNULL)


def provide(
    module: str,
    arguments: Sequence[str] | None,
    *,
    find: Callable[[], object],
    packages: Sequence[str],
    size_mb: int,
    advice: str,
) -> int:
    """Run a module's command: install its packages if `find` returns None; return the exit code.

    A missing program is an error in continuous integration only (`CI` is set).
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--stamp", type=Path, help="file to touch once the program is there")
    stamp: Path | None = parser.parse_args(arguments).stamp
    if find() is None and may_install():
        install(*packages, size_mb=size_mb)
    if find() is None:
        print(advice, file=sys.stderr)
        return 1 if os.environ.get("CI") else 0
    if stamp is not None:
        stamp.touch()
    return 0
