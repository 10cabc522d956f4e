"""Java and Kafka's jars, which a broker start needs: found or missing."""

import os
from dataclasses import dataclass
from pathlib import Path

from tidewheel.streams.broker.broker_errors import JavaError
from tidewheel.streams.broker.jars import DEFAULT_VERSION, JarCache
from tidewheel.streams.broker.java import Java, find_java
from tidewheel.streams.broker.resolvers import find_ivy_jar, find_mvn


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The sources of Java and Kafka's jars.

    Attributes:
        jars_from: `cache`, `Maven` or `Ivy`; None if there is no source.
    """

    version: str
    java: Java | None
    java_problem: str
    jars_from: str | None
    jars_folder: Path

    @property
    def missing_extras(self) -> tuple[str, ...]:
        java = () if self.java is not None else ("java",)
        return java if self.jars_from is not None else (*java, "spark")


def find_needs(version: str = DEFAULT_VERSION) -> Needs:
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
