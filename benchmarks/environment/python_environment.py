"""Virtual environments of Python peers: one each, made once."""

import hashlib
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from tidewheel.streams.broker import jars

INSTALL_TIMEOUT_S = 600


class PeerEnvironmentError(Exception):
    """A peer's environment could not be made; the text has the manual steps."""


def cache_dir() -> Path:
    folder = jars.cache_dir() / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def prepared_python(name: str, requirements: Path) -> Path:
    """Return the interpreter of an environment with these requirements; make it if missing.

    The folder's name has a hash of the requirements and of the running Python, whose builds differ
    in speed. So a changed pin or another Python makes a new environment.
    """
    pinned = requirements.read_bytes() + f"{sys.version}{sys.base_prefix}".encode()
    digest = hashlib.sha256(pinned).hexdigest()[:12]
    folder = cache_dir() / f"{name}-{digest}"
    python = folder / "bin" / "python"
    if python.exists():
        if (folder / "complete").exists():
            return python
        shutil.rmtree(folder)  # an interrupted installation
    print(f"making the environment for {name} (once): {folder}", flush=True)
    venv.create(folder, with_pip=True)
    done = subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", "--requirement", str(requirements)],
        check=False,
        capture_output=True,
        text=True,
        timeout=INSTALL_TIMEOUT_S,
    )
    if done.returncode:
        raise PeerEnvironmentError(
            f"pip could not install {requirements.name} for {name}:\n{done.stderr[-2000:]}\n"
            f"Install it by hand with: {python} -m pip install -r {requirements}"
        )
    (folder / "complete").touch()
    return python


def installed_versions(python: Path, packages: tuple[str, ...]) -> dict[str, str]:
    code = (
        "import importlib.metadata as m, sys\n"
        "for name in sys.argv[1:]:\n"
        "    try: print(name, m.version(name))\n"
        "    except m.PackageNotFoundError: pass\n"
    )
    done = subprocess.run(
        [str(python), "-c", code, *packages],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return {
        name: version
        for name, _, version in (line.partition(" ") for line in done.stdout.splitlines())
    }
