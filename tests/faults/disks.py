"""Disks for a worker's state that are small or slow; tests that can't have them are skipped."""

import os
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

_PIECE: Final = b"x" * (1 << 20)
_PAUSE_S: Final = 0.02
#: Control groups of version 1; the root group's limits hold for all processes.
_LIMITS: Final = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device")


class SmallDisk:
    """A mounted tmpfs.

    `fill` keeps it full until `free`, also where others delete files; or it leaves a bit, once.
    """

    def __init__(self, path: Path, megabytes: int) -> None:
        self.path = path
        self._ballast = path / "ballast"
        self._is_full = threading.Event()
        self._freed = threading.Event()
        self._thread: threading.Thread | None = None
        self._leaving_bytes = 0
        path.mkdir(exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "tmpfs", str(path))

    @property
    def free_bytes(self) -> int:
        facts = os.statvfs(self.path)
        return facts.f_bavail * facts.f_frsize

    def fill(self, *, leaving_bytes: int = 0) -> None:
        self._leaving_bytes = leaving_bytes
        self._freed.clear()
        self._is_full.clear()
        self._thread = threading.Thread(target=self._keep_full, daemon=True)
        self._thread.start()
        assert self._is_full.wait(300), "the disk is full"

    def _keep_full(self) -> None:
        with self._ballast.open("ab", buffering=0) as ballast:
            while not self._freed.wait(_PAUSE_S if self._is_full.is_set() else 0):
                spare = self.free_bytes - self._leaving_bytes
                try:
                    ballast.write(_PIECE[: max(spare, 0)])
                except OSError:
                    spare = 0
                if spare <= 0:
                    self._is_full.set()
                    if self._leaving_bytes:
                        return

    def free(self) -> None:
        if self._thread is not None:
            self._freed.set()
            self._thread.join()
            self._thread = None
            self._ballast.unlink()

    def unmount(self) -> None:
        with suppress(FileNotFoundError):
            self.free()
        _run("umount", "-l", str(self.path))


class SlowDisk:
    """A file system in a file, whose writes the kernel slows down."""

    def __init__(self, path: Path, megabytes: int) -> None:
        self.path = path
        path.mkdir(exist_ok=True)
        image = path.with_suffix(".image")
        with image.open("wb") as file:
            file.truncate(megabytes << 20)
        _run("mkfs.ext4", "-q", str(image))
        _run("mount", "-o", "loop", str(image), str(path))
        device = path.stat().st_dev
        self._device = f"{os.major(device)}:{os.minor(device)}"

    def limit(self, bytes_per_s: int) -> None:
        """Limit writes; 0 removes the limit."""
        try:
            _LIMITS.write_text(f"{self._device} {bytes_per_s}\n", encoding="ascii")
        except OSError as error:
            pytest.skip(f"the kernel can't slow down a disk here: {error}")

    def write_s(self, size: int) -> float:
        """Return the seconds until so many bytes are on the disk."""
        path = self.path / "measured"
        begun_s = time.monotonic()
        with path.open("wb", buffering=0) as file:
            file.write(bytes(size))
            os.fsync(file.fileno())
        elapsed_s = time.monotonic() - begun_s
        path.unlink()
        return elapsed_s

    def unmount(self) -> None:
        with suppress(OSError):
            _LIMITS.write_text(f"{self._device} 0\n", encoding="ascii")
        _run("umount", "-l", str(self.path))


def _run(*command: str) -> None:
    try:
        subprocess.run(command, capture_output=True, text=True, check=True)
    except OSError as error:
        pytest.skip(f"{command[0]} is missing: {error}")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{' '.join(command)} needs root: {error.stderr}")
