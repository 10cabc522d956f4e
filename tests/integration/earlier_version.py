"""The last version without shards, from the repository's own history."""

import io
import subprocess
import tarfile
from pathlib import Path
from typing import Final

import pytest

from tests.integration.forked import ROOT

#: The first commit with this option in this file began shards.
_OPTION: Final = "partition_shards"
_OPTIONS_FILE: Final = "streams/config/streams_config.py"


def unpack_version_before_shards(folder: Path) -> Path:
    """Return the tree of that version; skip the test where the history does not reach so far."""
    try:
        found = _git("log", "--format=%H", f"-S{_OPTION}", "--", _OPTIONS_FILE).decode().split()
        archive = _git("archive", "--format=tar", f"{found[-1]}^")
    except (OSError, subprocess.CalledProcessError, IndexError) as error:
        pytest.skip(f"needs the repository's whole history ({error})")
    with tarfile.open(fileobj=io.BytesIO(archive)) as tree:
        tree.extractall(folder, filter="data")
    return folder


def _git(*arguments: str) -> bytes:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
