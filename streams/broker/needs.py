"""What is still missing before a broker can start, for Makefiles and the curious."""

import os
from dataclasses import dataclass
from pathlib import Path

from tidewheel.streams.broker.broker_errors import JavaError
from tidewheel.streams.broker.jars import DEFAULT_VERSION, JarCache
from tidewheel.streams.broker.java import Java, find_java
from tidewheel.streams.broker.resolvers import find_ivy_jar, find_mvn


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Where Java and Kafka's jars would come from."""

    version: str
    java: Java | None
    java_problem: str
    jars_from: str | None
    """`cache`, `Maven` or `Ivy`; None if there is no way to get them."""
    jars_folder: Path

    @property
    def missing_extras(self) -> tuple[str, ...]:
        """The extras of `pip install 'tidewheel[...]'` that would fill the gaps."""
        java = () if self.java is not None else ("java",)
        return java if self.jars_from is not None else (*java, "spark")


def find_needs(version: str = DEFAULT_VERSION) -> Needs:
    """Look around without fetching or starting anything but `java -version`.

    Raises:
        UnknownVersionError: `version` is none that the broker can run.
    """
    java: Java | None = None
    problem = ""
    try:
        java = find_java()
    except JavaError as error:
        problem = str(error)
    cache = JarCache(version)
    return Needs(
        version=version,
        java=java,
        java_problem=problem,
        jars_from=_jars_from(cache),
        jars_folder=cache.folder,
    )


def _jars_from(cache: JarCache) -> str | None:
    if cache.complete():
        return "cache"
    if find_mvn(os.environ) is not None:
        return "Maven"
    return None if find_ivy_jar(os.environ) is None else "Ivy"
