"""Cache of Kafka's jars per user: fetched once, checked, and repaired when damaged.

Files are fetched into a temporary folder and moved into place under a lock file: a second program
waits for the first.
"""

import contextlib
import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from tidewheel.streams.broker.broker_errors import FetchError, UnknownVersionError
from tidewheel.streams.broker.file_lock import FileLock
from tidewheel.streams.broker.jar_lock import JarLock, JarProblem
from tidewheel.streams.broker.java import Java
from tidewheel.streams.broker.resolvers import (
    FetchRequest,
    Resolver,
    find_resolvers,
    run_resolver,
)

#: Kafka version whose jar checksums are in this package.
DEFAULT_VERSION = "4.4.0"

_OLDEST_MAJOR = 4
_VERSION = re.compile(r"(\d+)\.\d+\.\d+")
_OWN_LOCK = "jars.sha256"
_DOWNLOADED = re.compile(r"Downloaded from \S+ \S*/([^/\s]+\.jar)")

_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def fetch_progress(
    label: str, total_bytes: int | None, *, show: bool | None = None
) -> Generator[Callable[[int], None]]:
    """Show a progress bar on standard error; yield a function that sets the bytes done."""
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda _done_bytes: None
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    ) as progress:
        task = progress.add_task(label, total=total_bytes)
        yield lambda done_bytes: progress.update(task, completed=done_bytes)
        if total_bytes is not None:
            progress.update(task, completed=total_bytes)


def cache_dir(environment: Mapping[str, str] | None = None) -> Path:
    environment = os.environ if environment is None else environment
    configured = environment.get("TIDEWHEEL_CACHE_DIR")
    if configured:
        return Path(configured).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tidewheel"
    base = environment.get("XDG_CACHE_HOME", "")
    # The XDG specification demands to ignore a relative path.
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "tidewheel"


class JarCache:
    """The jars of one Kafka version.

    Args:
        version: A published version, 4.0.0 or newer.
        root: Cache folder of all versions; default: the user's.
    """

    def __init__(
        self,
        version: str = DEFAULT_VERSION,
        *,
        root: Path | None = None,
        lock: JarLock | None = None,
    ) -> None:
        match = _VERSION.fullmatch(version)
        if match is None:
            raise UnknownVersionError(
                f"{version!r} is no Kafka version; give three numbers, such as {DEFAULT_VERSION}"
            )
        if int(match[1]) < _OLDEST_MAJOR:
            raise UnknownVersionError(
                f"Kafka {version} is too old: the development broker runs {_OLDEST_MAJOR}.0.0 and "
                f"newer (without ZooKeeper); leave the version out for {DEFAULT_VERSION}"
            )
        self.version = version
        self._base = (cache_dir() if root is None else root) / "kafka"
        self.folder = self._base / version
        self._pinned = JarLock.pinned(version) if lock is None else lock

    @property
    def archives(self) -> Path:
        return self._base / "class-archives"

    def complete(self, *, read_all: bool = False) -> bool:
        lock = self._lock()
        return lock is not None and not lock.problems(self.folder, read_all=read_all)

    def ensure(
        self,
        find_java: Callable[[], Java],
        *,
        verify: bool = False,
        show_progress: bool | None = None,
        timeout_ms: int = 600_000,
    ) -> tuple[Path, ...]:
        """Return the jars for Kafka's class path; fetch or repair them first.

        Args:
            find_java: Called only before a fetch, because Maven and Ivy run on Java.
            verify: Compare all SHA-256, not only sizes.
            show_progress: Draw a progress bar; None: if standard error is a terminal.
            timeout_ms: Limit of each fetch, and of the wait while another process fetches.

        Raises:
            FetchError: The jars could not be fetched, or have wrong contents.
            UnknownVersionError: There is no such version.
        """
        if not self.complete(read_all=verify):
            self._base.mkdir(parents=True, exist_ok=True)
            lock_file = FileLock(self._base / f"{self.version}.lock")
            lock_file.acquire(timeout_ms=timeout_ms)
            with lock_file:
                # Another process may have fetched them during the wait.
                if not self.complete(read_all=verify):
                    self._fill(find_java(), show_progress=show_progress, timeout_ms=timeout_ms)
        lock = self._lock()
        assert lock is not None, "a filled cache has a list of its jars"
        return lock.paths(self.folder)

    def _lock(self) -> JarLock | None:
        if self._pinned is not None:
            return self._pinned
        lock_file = self.folder / _OWN_LOCK
        return (
            JarLock.parse(lock_file.read_text(), origin=str(lock_file))
            if lock_file.is_file()
            else None
        )

    def _fill(self, java: Java, *, show_progress: bool | None, timeout_ms: int) -> None:
        lock = self._lock()
        broken = lock.problems(self.folder, read_all=True) if lock and self.folder.exists() else ()
        for problem in broken:
            _logger.warning("%s: %s; fetching it again", self.folder, problem)
        for leftover in self._base.glob(f".{self.version}-*"):  # left by a killed process
            shutil.rmtree(leftover, ignore_errors=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{self.version}-", dir=self._base))
        try:
            fetched = self._fetch(java, aside, show_progress=show_progress, timeout_ms=timeout_ms)
            if not self.folder.exists():
                fetched.rename(self.folder)
                return
            for problem in broken:
                (fetched / problem.name).replace(self.folder / problem.name)
            if lock is None:
                shutil.rmtree(self.folder)
                fetched.rename(self.folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def _fetch(
        self, java: Java, aside: Path, *, show_progress: bool | None, timeout_ms: int
    ) -> Path:
        resolvers = find_resolvers(java)
        if not resolvers:
            raise FetchError(
                f"Kafka {self.version} has to be fetched once (45 MB), but there is neither Maven "
                "(`mvn` on the PATH) nor the Ivy that PySpark ships. Install Maven, or run: pip "
                "install 'tidewheel[spark]' (about 485 MB installed), or name an Ivy with "
                "$TIDEWHEEL_IVY_JAR. `make demo` and `make test` do this by themselves"
            )
        failures: list[FetchError] = []
        for number, resolver in enumerate(resolvers):
            folder = aside / str(number)
            folder.mkdir()
            request = FetchRequest(version=self.version, folder=folder, timeout_ms=timeout_ms)
            try:
                self._fetch_checked(resolver, request, show_progress=show_progress)
            except FetchError as failure:
                failures.append(failure)
            else:
                return request.jars
        raise FetchError("\n".join(str(failure) for failure in failures))

    def _fetch_checked(
        self, resolver: Resolver, request: FetchRequest, *, show_progress: bool | None
    ) -> None:
        self._run(resolver, request, show_progress=show_progress)
        problems = self._check(request)
        if problems:
            for problem in problems:
                _logger.warning(
                    "fetched by %s: %s; fetching past its local repository", resolver.name, problem
                )
            again = FetchRequest(
                version=request.version,
                folder=request.folder / "again",
                private_repository=True,
                timeout_ms=request.timeout_ms,
            )
            again.folder.mkdir()
            self._run(resolver, again, show_progress=show_progress)
            problems = self._check(again)
            if problems:
                raise FetchError(
                    f"Kafka {self.version} was fetched by {resolver.name}, twice, but "
                    f"{'; '.join(str(problem) for problem in problems)}. Do not run it: the "
                    "registry or a mirror in between serves other files than the published ones"
                )
            shutil.rmtree(request.jars)
            again.jars.rename(request.jars)
        if self._pinned is None:
            (request.jars / _OWN_LOCK).write_text(JarLock.of_folder(request.jars).format())

    def _check(self, request: FetchRequest) -> tuple[JarProblem, ...]:
        lock = self._lock()
        return () if lock is None else lock.problems(request.jars, read_all=True)

    def _run(
        self, resolver: Resolver, request: FetchRequest, *, show_progress: bool | None
    ) -> None:
        lock = self._lock()
        total_bytes = None if lock is None else lock.total_bytes
        _logger.info("fetching Kafka %s with %s into %s", self.version, resolver.name, self.folder)
        label = f"Kafka {self.version} ({resolver.name})"
        with fetch_progress(label, total_bytes, show=show_progress) as advance:
            run_resolver(resolver, request, lambda: advance(fetched_bytes(request, lock)))


def fetched_bytes(request: FetchRequest, lock: JarLock | None) -> int:
    """Return the bytes of jars that have arrived; a jar and its copy in Ivy's cache count once.

    Maven downloads into its own repository, so jars that its log lists count too.
    """
    expected_sizes = None if lock is None else {jar.name: jar.size_bytes for jar in lock.jars}
    sizes: dict[str, int] = {}
    for path in request.folder.rglob("*.jar*"):
        name = path.name.removesuffix(".part")
        if name.endswith(".jar") and (expected_sizes is None or name in expected_sizes):
            try:
                sizes[name] = max(sizes.get(name, 0), path.stat().st_size)
            except FileNotFoundError:  # renamed after the listing
                continue
    if expected_sizes is not None and request.log_file.is_file():
        for name in _DOWNLOADED.findall(request.log_file.read_text(errors="replace")):
            if name in expected_sizes:
                sizes[name] = expected_sizes[name]
    return sum(sizes.values())
