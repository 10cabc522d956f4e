"""Resolvers of Java libraries with their dependencies: Maven, and PySpark's Ivy.

This module names no registry: each program uses its defaults and the user's settings (such as
mirrors), and checks downloads against the registry's checksums.
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
# Kafka's dependencies lack the bridge from its logging API to log4j, without which it logs nothing.
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
    """A fetch of one version.

    Attributes:
        folder: Empty folder for this fetch; jars go into its `jars`.
        private_repository: Ignore the resolver's earlier downloads, which are broken.
    """

    version: str
    folder: Path
    private_repository: bool = False
    timeout_ms: int = 600_000

    @property
    def jars(self) -> Path:
        return self.folder / "jars"

    @property
    def log_file(self) -> Path:
        return self.folder / "resolver.log"


class Resolver(Protocol):
    @property
    def name(self) -> str: ...

    def command(self, request: FetchRequest) -> list[str]:
        """Write the resolver's input file into the request's folder; return the command."""
        ...

    def environment(self) -> dict[str, str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Maven:
    executable: Path
    java: Java
    name: str = "Maven"

    def command(self, request: FetchRequest) -> list[str]:
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
        """Return this process's environment; sets JAVA_HOME for Maven unless the user has."""
        return {"JAVA_HOME": str(self.java.home), **os.environ}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ivy:
    jar: Path
    java: Java
    settings: Path | None = None
    name: str = "Ivy"

    def command(self, request: FetchRequest) -> list[str]:
        module = request.folder / "ivy.xml"
        module.write_text(_ivy_module(request.version))
        return [
            str(self.java.executable),
            "-jar",
            str(self.jar),
            *(["-settings", str(self.settings)] if self.settings is not None else []),
            "-ivy",
            str(module),
            # Not the user's cache: Spark may be using it, and progress is measured here.
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
        return dict(os.environ)


def find_mvn(environment: Mapping[str, str]) -> Path | None:
    executable = shutil.which("mvn", path=environment.get("PATH", ""))
    return None if executable is None else Path(executable)


def find_ivy_jar(environment: Mapping[str, str]) -> Path | None:
    """Return $TIDEWHEEL_IVY_JAR, else PySpark's jar; raise `FetchError` if the first is no file."""
    configured = environment.get("TIDEWHEEL_IVY_JAR")
    if configured:
        if not Path(configured).is_file():
            raise FetchError(
                f"$TIDEWHEEL_IVY_JAR is {configured}, which is no file; correct or unset it"
            )
        return Path(configured)
    spark = importlib.util.find_spec("pyspark")
    for folder in (spark.submodule_search_locations or []) if spark is not None else []:
        jars = sorted(Path(folder, "jars").glob("ivy-*.jar"))
        if jars:
            return jars[-1]
    return None


def find_resolvers(java: Java, environment: Mapping[str, str] | None = None) -> list[Resolver]:
    """Return the installed resolvers. Maven is first: it is faster and has the user's settings."""
    environment = os.environ if environment is None else environment
    resolvers: list[Resolver] = []
    mvn = find_mvn(environment)
    if mvn is not None:
        resolvers.append(Maven(executable=mvn, java=java))
    jar = find_ivy_jar(environment)
    if jar is not None:
        configured = environment.get("TIDEWHEEL_IVY_SETTINGS")
        usual = Path.home() / ".ivy2" / "ivysettings.xml"
        settings = Path(configured) if configured else usual if usual.is_file() else None
        resolvers.append(Ivy(jar=jar, java=java, settings=settings))
    return resolvers


def run_resolver(
    resolver: Resolver, request: FetchRequest, on_tick: Callable[[], None] = lambda: None
) -> None:
    """Fetch the jars into `request.jars`.

    Args:
        on_tick: Called several times a second, for progress.

    Raises:
        UnknownVersionError: The registry has no such Kafka.
        FetchError: Any other failure; the message has the command and its last lines.
    """
    command = resolver.command(request)
    deadline = time.monotonic() + request.timeout_ms / 1000
    try:
        with (
            request.log_file.open("wb") as log,
            subprocess.Popen(  # noqa: S603 - a program of the user's, no shell
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
    output = _USER_IN_URL.sub(r"\1***@", request.log_file.read_text(errors="replace"))
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    if exit_code is None:
        problem = f"was not done after {request.timeout_ms} ms and was ended; try again"
    elif _NO_NETWORK.search(output):
        # The cause is often far above the last line.
        lines = [line for line in lines if _NO_NETWORK.search(line)] or lines
        problem = (
            "could not reach its registry; check the network, the proxy and the mirror in "
            f"{resolver.name}'s settings, then try again"
        )
    elif _NO_SUCH_KAFKA.search(output):
        return UnknownVersionError(
            f"there is no Kafka {request.version}: {resolver.name} found no "
            f"{':'.join(_KAFKA)}:{request.version} in its registries; name a published version, "
            "such as the default"
        )
    else:
        problem = f"ended with exit code {exit_code}"
    tail = "\n  ".join(line[:400] for line in lines[-_LAST_LINES:]) or "(nothing)"
    return FetchError(
        f"{resolver.name} could not fetch Kafka {request.version}: it {problem}.\n"
        f"Command: {' '.join(command)}\nLast output:\n  {tail}"
    )


def _maven_project(version: str) -> str:
    # The logging bridge comes first: of two equally near versions Maven uses the first, and the
    # bridge needs the log4j that it was made for.
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
