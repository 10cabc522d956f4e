"""Two programs that can fetch a Java library with all it needs: Maven, and the Ivy inside PySpark.

No registry is named here: each program uses its own defaults and the user's settings (mirrors,
credentials, proxies), and checks what it downloads against the registry's checksums.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tidewheel.streams.broker.broker_errors import FetchError, UnknownVersionError
from tidewheel.streams.broker.java import Java

_KAFKA = ("org.apache.kafka", "kafka_2.13")
# Kafka's own jars come without the bridge from its logging API to log4j, which they do come with;
# without it the broker would log nothing at all.
_LOGGING = ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4")
_DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"

_POLL_SECONDS = 0.1
_LAST_LINES = 15
_NO_NETWORK = re.compile(
    r"Could not transfer|offline mode|Server access error|UnknownHost|Connection refused|"
    r"Connection reset|timed out|Network is unreachable|No route to host"
)
_NO_SUCH_KAFKA = re.compile(
    rf"Could not find artifact {re.escape(':'.join(_KAFKA))}:|"
    rf"{re.escape(':'.join(_KAFKA))}:\S+ was not found in|"
    rf"{re.escape('#'.join(_KAFKA))};\S+: not found"
)
_USER_IN_URL = re.compile(r"(://)[^/@\s]+@")


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """What to fetch and where to put it."""

    version: str
    folder: Path
    """A folder for this fetch alone; the jars end up in its `jars`."""
    private_repository: bool = False
    """Do not use what the program downloaded for others before: that is what turned out broken."""
    timeout_ms: int = 600_000

    @property
    def jars(self) -> Path:
        """Where the fetched jars lie."""
        return self.folder / "jars"

    @property
    def log_file(self) -> Path:
        """What the program printed."""
        return self.folder / "resolver.log"


class Resolver(Protocol):
    """A program that fetches jars."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    def command(self, request: FetchRequest) -> list[str]:
        """Write what the program needs into the request's folder; the command to run."""
        ...

    def environment(self) -> dict[str, str]:
        """The environment to run it in."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Maven:
    """`mvn`, with the user's own settings and local repository."""

    executable: Path
    java: Java
    name: str = "Maven"

    def command(self, request: FetchRequest) -> list[str]:
        """A throw-away project that only has dependencies, and the goal that copies them."""
        project = request.folder / "pom.xml"
        project.write_text(_maven_project(request.version))
        private = [f"-Dmaven.repo.local={request.folder / 'repository'}"]
        return [
            str(self.executable),
            "--batch-mode",
            "--strict-checksums",
            "--file",
            str(project),
            "-Dstyle.color=never",
            *(private if request.private_repository else []),
            f"{_DEPENDENCY_PLUGIN}:copy-dependencies",
            "-DincludeScope=runtime",
            f"-DoutputDirectory={request.jars}",
        ]

    def environment(self) -> dict[str, str]:
        """Ours; Maven finds its Java by JAVA_HOME, which is set if the user has not done so."""
        return {"JAVA_HOME": str(self.java.home), **os.environ}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ivy:
    """The `ivy-*.jar` that PySpark ships; it has a command line of its own."""

    jar: Path
    java: Java
    settings: Path | None = None
    name: str = "Ivy"

    def command(self, request: FetchRequest) -> list[str]:
        """A module that only has dependencies, fetched through a cache of its own."""
        module = request.folder / "ivy.xml"
        module.write_text(_ivy_module(request.version))
        return [
            str(self.java.executable),
            "-jar",
            str(self.jar),
            *(["-settings", str(self.settings)] if self.settings is not None else []),
            "-ivy",
            str(module),
            # Not the user's cache: Spark may be using that one, and here it can be seen to grow.
            "-cache",
            str(request.folder / "ivy-cache"),
            "-confs",
            "default",
            "-retrieve",
            f"{request.jars}/[artifact]-[revision](-[classifier]).[ext]",
            # Several of Kafka's jars are declared as OSGi bundles.
            "-types",
            "jar",
            "bundle",
        ]

    def environment(self) -> dict[str, str]:
        """Ours."""
        return dict(os.environ)


def find_mvn(environment: Mapping[str, str]) -> Path | None:
    """Maven's program, if it is on the PATH."""
    executable = shutil.which("mvn", path=environment.get("PATH", ""))
    return None if executable is None else Path(executable)


def find_ivy_jar(environment: Mapping[str, str]) -> Path | None:
    """The file in $TIDEWHEEL_IVY_JAR, or the one of an installed PySpark, which is not imported.

    Raises:
        FetchError: $TIDEWHEEL_IVY_JAR names no file.
    """
    told = environment.get("TIDEWHEEL_IVY_JAR")
    if told:
        if not Path(told).is_file():
            raise FetchError(f"$TIDEWHEEL_IVY_JAR is {told}, which is no file; correct or unset it")
        return Path(told)
    spark = importlib.util.find_spec("pyspark")
    for folder in (spark.submodule_search_locations or []) if spark is not None else []:
        jars = sorted(Path(folder, "jars").glob("ivy-*.jar"))
        if jars:
            return jars[-1]
    return None


def find_resolvers(java: Java, environment: Mapping[str, str] | None = None) -> list[Resolver]:
    """The programs at hand, the better one first: Maven is faster and knows the user's settings."""
    environment = os.environ if environment is None else environment
    found: list[Resolver] = []
    mvn = find_mvn(environment)
    if mvn is not None:
        found.append(Maven(executable=mvn, java=java))
    jar = find_ivy_jar(environment)
    if jar is not None:
        told = environment.get("TIDEWHEEL_IVY_SETTINGS")
        usual = Path.home() / ".ivy2" / "ivysettings.xml"
        settings = Path(told) if told else usual if usual.is_file() else None
        found.append(Ivy(jar=jar, java=java, settings=settings))
    return found


def run_resolver(
    resolver: Resolver, request: FetchRequest, on_tick: Callable[[], None] = lambda: None
) -> None:
    """Have the jars fetched into `request.jars`.

    Args:
        resolver: The program to use.
        request: What to fetch.
        on_tick: Called several times a second meanwhile, to show progress.

    Raises:
        UnknownVersionError: The registry has no such Kafka.
        FetchError: Anything else; says what ran and its last lines.
    """
    command = resolver.command(request)
    deadline = time.monotonic() + request.timeout_ms / 1000
    try:
        with (
            request.log_file.open("wb") as log,
            subprocess.Popen(  # noqa: S603  # a program of the user's, no shell
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=resolver.environment(),
                cwd=request.folder,
            ) as process,
        ):
            try:
                while process.poll() is None and time.monotonic() < deadline:
                    on_tick()
                    time.sleep(_POLL_SECONDS)
            finally:
                late = process.poll() is None
                if late:
                    process.kill()
    except OSError as error:
        raise FetchError(
            f"{resolver.name} can't be started: {command[0]}: {error.strerror}"
        ) from error
    on_tick()
    if late or process.returncode != 0 or not request.jars.is_dir():
        raise _failure(resolver, request, command, None if late else process.returncode)


def _failure(
    resolver: Resolver, request: FetchRequest, command: list[str], exit_code: int | None
) -> FetchError | UnknownVersionError:
    said = _USER_IN_URL.sub(r"\1***@", request.log_file.read_text(errors="replace"))
    lines = [line.rstrip() for line in said.splitlines() if line.strip()]
    if exit_code is None:
        what = f"was not done after {request.timeout_ms} ms and was ended; try again"
    elif _NO_NETWORK.search(said):
        # What matters is said once, often far above the last line.
        lines = [line for line in lines if _NO_NETWORK.search(line)] or lines
        what = (
            "could not reach its registry; check the network, the proxy and the mirror in "
            f"{resolver.name}'s settings, then try again"
        )
    elif _NO_SUCH_KAFKA.search(said):
        return UnknownVersionError(
            f"there is no Kafka {request.version}: {resolver.name} found no "
            f"{':'.join(_KAFKA)}:{request.version} in its registries; name a published version, "
            "such as the default"
        )
    else:
        what = f"ended with exit code {exit_code}"
    tail = "\n  ".join(line[:400] for line in lines[-_LAST_LINES:]) or "(nothing)"
    return FetchError(
        f"{resolver.name} could not fetch Kafka {request.version}: it {what}.\n"
        f"What ran: {' '.join(command)}\nWhat it said last:\n  {tail}"
    )


def _maven_project(version: str) -> str:
    # The logging bridge first: of two equally near versions Maven takes the first one's, and the
    # bridge has to meet the log4j it was made for.
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{revision}</version></dependency>"
        for group, artifact, revision in (_LOGGING, (*_KAFKA, version))
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>tidewheel</groupId>"
        "<artifactId>development-broker</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>\n"
    )


def _ivy_module(version: str) -> str:
    dependencies = "".join(
        f'<dependency org="{group}" name="{artifact}" rev="{revision}"/>'
        for group, artifact, revision in (_LOGGING, (*_KAFKA, version))
    )
    return (
        '<ivy-module version="2.0"><info organisation="tidewheel" module="development-broker"/>'
        f'<dependencies defaultconf="default->default">{dependencies}</dependencies></ivy-module>\n'
    )
