"""Installs Debian packages that tests need, where this may be done: as root, with apt-get."""

import os
import shutil
import subprocess


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
