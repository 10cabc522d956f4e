"""Files and directories that only their user can read, independent of the umask."""

import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600


def make_private_directory(path: Path) -> None:
    """Create a directory and missing parents; existing ones keep their mode."""
    if path.is_dir():
        return
    make_private_directory(path.parent)
    path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)


def read_private(path: Path, most: int) -> bytes | None:
    """Return at most `most` bytes of a regular file; None for anything else, without waiting."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return None
    except FileNotFoundError:
        return None
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(most)


def create_private(path: Path) -> BinaryIO:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, FILE_MODE), "wb")
