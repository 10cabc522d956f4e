"""Java's archive of loaded classes: halves the processor time of a start of Kafka."""

import contextlib
import hashlib
import logging
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tidewheel.streams.broker.java import Java

#: No log lines about an unusable archive: Java then reads the jars.
_QUIET: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
#: Exit codes of a clean end: by itself, or by SIGTERM.
_CLEAN: Final = (0, 143)
#: Age in seconds at which the unfinished archive of a killed broker is deleted.
_ABANDONED_S: Final = 3_600.0

_logger = logging.getLogger(__name__)


class ClassArchive:
    """Archive (JEP 350) of loaded classes, for one Java and one set of Kafka jars.

    The first broker that exits cleanly writes it. Without it, later brokers start slower, so no
    method raises.
    """

    def __init__(self, folder: Path, java: Java, jars: Sequence[Path]) -> None:
        made_of = "\n".join((str(java.home), java.version, *map(str, jars)))
        name = hashlib.sha256(made_of.encode()).hexdigest()[:16]
        self.file = folder / f"{name}.jsa"
        self._part = folder / f"{name}.{secrets.token_hex(4)}.part"

    def options(self) -> tuple[str, ...]:
        return (f"-XX:SharedArchiveFile={self.file}", *_QUIET) if self.file.exists() else ()

    def making_options(self) -> tuple[str, ...]:
        """Return Java's options to use the archive, or to write it when Java exits."""
        if self.file.exists():
            return self.options()
        with contextlib.suppress(OSError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self._clean_up()
        if not (self.file.parent.is_dir() and os.access(self.file.parent, os.W_OK)):
            return ()
        return (f"-XX:ArchiveClassesAtExit={self._part}", *_QUIET)

    def keep(self, exit_code: int | None) -> None:
        try:
            if exit_code in _CLEAN and self._part.exists():
                self._part.replace(self.file)
            else:
                self._part.unlink(missing_ok=True)
        except OSError as error:
            _logger.info("%s: the archive of classes is not kept: %s", self.file, error)

    def _clean_up(self) -> None:
        for part in self.file.parent.glob("*.part"):
            now_s = time.time()  # noqa: TID251 - file times have no other clock
            if now_s - part.stat().st_mtime > _ABANDONED_S:
                part.unlink(missing_ok=True)
