"""Kafka Streams' jars and the compiled peers, kept in the user's cache folder.

The resolvers of the development broker (`tidewheel.streams.broker`) download the jars into a
separate folder; `javac` compiles the peers against exactly those.
"""

import contextlib
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.environment.python_environment import cache_dir
from tidewheel.streams.broker.broker_errors import FetchError, JavaError
from tidewheel.streams.broker.file_lock import FileLock
from tidewheel.streams.broker.jar_lock import JarLock
from tidewheel.streams.broker.java import Java, find_java
from tidewheel.streams.broker.resolvers import FetchRequest, Resolver, find_resolvers, run_resolver

KAFKA_STREAMS_VERSION = "4.4.0"
HEAP = "-Xmx2g"
COMPILE_TIMEOUT_S = 600
_MAKE_TIMEOUT_MS = 600_000
_LOCK = "jars.sha256"
_DEPENDENCIES = (
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
    ("org.apache.kafka", "kafka-streams", KAFKA_STREAMS_VERSION),
    ("org.apache.kafka", "kafka-streams-test-utils", KAFKA_STREAMS_VERSION),
)


@dataclass(frozen=True, slots=True)
class KafkaStreamsResolver:
    """Maven or Ivy of the development broker, with Kafka Streams' dependencies."""

    base: Resolver

    @property
    def name(self) -> str:
        return self.base.name

    def command(self, request: FetchRequest) -> list[str]:
        command = self.base.command(request)
        maven, ivy = request.folder / "pom.xml", request.folder / "ivy.xml"
        if maven.exists():
            maven.write_text(_maven_project())
        elif ivy.exists():
            ivy.write_text(_ivy_module())
        else:
            raise FetchError(f"{self.name} has no list of dependencies in {request.folder}")
        return command

    def environment(self) -> dict[str, str]:
        return self.base.environment()


def kafka_streams_jars() -> tuple[Path, ...]:
    folder = cache_dir() / f"kafka-streams-{KAFKA_STREAMS_VERSION}-with-test-utils"
    # Two test processes may need them at the same time.
    with _made_by_one(folder):
        return _kept_jars(folder) or _fetched_jars(folder)


@contextlib.contextmanager
def _made_by_one(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes that would make it."""
    lock = FileLock(folder.with_name(f"{folder.name}.lock"))
    lock.acquire(timeout_ms=_MAKE_TIMEOUT_MS)
    with lock:
        yield


def _kept_jars(folder: Path) -> tuple[Path, ...]:
    lock = folder / _LOCK
    if not lock.is_file():
        return ()
    jars = JarLock.parse(lock.read_text(), origin=str(lock))
    return () if jars.problems(folder, read_all=False) else jars.paths(folder)


def _fetched_jars(folder: Path) -> tuple[Path, ...]:
    shutil.rmtree(folder, ignore_errors=True)
    failures: list[str] = []
    for resolver in find_resolvers(find_java()):
        print(f"fetching Kafka Streams {KAFKA_STREAMS_VERSION} with {resolver.name} (once)")
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".jars-") as aside:
            request = FetchRequest(version=KAFKA_STREAMS_VERSION, folder=Path(aside))
            try:
                run_resolver(KafkaStreamsResolver(resolver), request)
            except FetchError as failure:
                failures.append(str(failure))
                continue
            (request.jars / _LOCK).write_text(JarLock.of_folder(request.jars).format())
            request.jars.rename(folder)
            return _kept_jars(folder)
    raise FetchError(
        "\n".join(failures)
        or "neither Maven nor an Ivy to fetch Kafka Streams with: install Maven, or PySpark"
    )


def compiled_command(source: Path) -> list[str]:
    java = find_java()
    jars = kafka_streams_jars()
    digest = hashlib.sha256(source.read_bytes())
    digest.update("".join(jar.name for jar in jars).encode() + java.version.encode())
    classes = cache_dir() / f"{source.stem}-{digest.hexdigest()[:12]}"
    class_path = ":".join(str(jar) for jar in jars)
    with _made_by_one(classes):
        if not (classes / f"{source.stem}.class").exists():
            _compile(java, source, class_path, classes)
    return [
        str(java.executable),
        HEAP,
        "-cp",
        f"{classes}:{class_path}",
        source.stem,
    ]


def find_compiler(java: Java) -> str | None:
    beside = java.home / "bin" / "javac"
    return str(beside) if beside.exists() else shutil.which("javac")


def _compile(java: Java, source: Path, class_path: str, classes: Path) -> None:
    found = find_compiler(java)
    if found is None:
        raise JavaError(
            f"no javac to compile {source.name} with: install a JDK {java.major} (Debian and"
            f" Ubuntu: apt-get install openjdk-17-jdk-headless), or leave kafka-streams out with"
            " --systems"
        )
    with tempfile.TemporaryDirectory(dir=cache_dir(), prefix=".classes-") as aside:
        done = subprocess.run(
            [found, "-Werror", "-Xlint:all", "-cp", class_path, "-d", aside, str(source)],
            check=False,
            capture_output=True,
            text=True,
            timeout=COMPILE_TIMEOUT_S,
        )
        if done.returncode:
            raise JavaError(f"{source.name} does not compile:\n{done.stderr[-3000:]}")
        shutil.rmtree(classes, ignore_errors=True)
        shutil.copytree(aside, classes)


def _maven_project() -> str:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version></dependency>"
        for group, artifact, version in _DEPENDENCIES
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>tidewheel</groupId>"
        "<artifactId>benchmarks</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>\n"
    )


def _ivy_module() -> str:
    dependencies = "".join(
        f'<dependency org="{group}" name="{artifact}" rev="{version}"/>'
        for group, artifact, version in _DEPENDENCIES
    )
    return (
        '<ivy-module version="2.0"><info organisation="tidewheel" module="benchmarks"/>'
        f'<dependencies defaultconf="default->default">{dependencies}</dependencies></ivy-module>\n'
    )
