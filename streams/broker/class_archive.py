"""Java's archive of the classes that a program loads: with it a start of Kafka costs half the processor time."""

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

#: Java tells of an archive that it can't use. It then reads the jars as ever, so nobody has to know.
_QUIET: Final = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
#: How Java ends when it was asked to: by itself, or by SIGTERM.
_CLEAN: Final = (0, 143)
#: What is left of a broker that was killed while it wrote its archive is deleted after this long.
_ABANDONED_S: Final = 3_600.0

_logger = logging.getLogger(__name__)


class ClassArchive:
    """One start's view of the archive (JEP 350): made by the first one that ends in order, used by all after it.

    Java itself refuses an archive that was made by another Java or of other jars. Whatever goes wrong here costs time
    and nothing else, so nothing is raised.

    Args:
        folder: Where archives are kept.
        java: Whose classes they are.
        jars: The class path.
    """

    def __init__(self, folder: Path, java: Java, jars: Sequence[Path]) -> None:
        made_of = "\n".join((str(java.home), java.version, *map(str, jars)))
        name = hashlib.sha256(made_of.encode()).hexdigest()[:16]
        self.file = folder / f"{name}.jsa"
        self._part = folder / f"{name}.{secrets.token_hex(4)}.part"

    def options(self) -> tuple[str, ...]:
        """Return options for a Java that uses the archive; none if there is no archive yet."""
        return (f"-XX:SharedArchiveFile={self.file}", *_QUIET) if self.file.exists() else ()

    def making_options(self) -> tuple[str, ...]:
        """Return options for a Java that uses the archive, or makes it when it ends in order."""
        if self.file.exists():
            return self.options()
        with contextlib.suppress(OSError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self._clean_up()
        if not (self.file.parent.is_dir() and os.access(self.file.parent, os.W_OK)):
            return ()
        return (f"-XX:ArchiveClassesAtExit={self._part}", *_QUIET)

    def keep(self, exit_code: int | None) -> None:
        """Keep what a broker has made if it ended in order, else delete it. Harmless when it made nothing."""
        try:
            if exit_code in _CLEAN and self._part.exists():
                self._part.replace(self.file)
            else:
                self._part.unlink(missing_ok=True)
        except OSError as error:
            _logger.info("%s: the archive of classes is not kept: %s", self.file, error)

    def _clean_up(self) -> None:
        for part in self.file.parent.glob("*.part"):
            now_s = time.time()  # noqa: TID251 - the ages of files know no other clock
            if now_s - part.stat().st_mtime > _ABANDONED_S:
                part.unlink(missing_ok=True)
