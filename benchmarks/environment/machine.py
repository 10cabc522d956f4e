"""The machine of a figure: processor, and versions of all systems."""

import contextlib
import importlib.metadata
import os
import platform
import sys
import sysconfig
from pathlib import Path

import confluent_kafka

from benchmarks.environment import python_environment
from benchmarks.environment.systems import requirements
from benchmarks.report.results import PYTHON
from tidewheel.streams.broker.broker_errors import JavaError
from tidewheel.streams.broker.java import find_java

#: Package names of peers with their own environments.
PEER_PACKAGES = {
    "quix": ("quixstreams",),
    "faust": ("faust-streaming", "aiokafka"),
    "bytewax": ("bytewax",),
}


def cpu_name() -> str:
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def python_build() -> str:
    """Return Python's version and its build, where it affects speed.

    A build without `--enable-optimizations` is slower by a tenth and more. Distributions' builds
    have it, but their configuration does not show it.
    """
    version = platform.python_version()
    if sys.base_prefix == "/usr":
        with contextlib.suppress(OSError):  # the system's vendor is unknown
            return f"{version} of {platform.freedesktop_os_release()['PRETTY_NAME']}"
        return version
    if "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or ""):
        return version
    return f"{version} built without optimizations"


def versions(systems: frozenset[str], *, kafka: str | None) -> dict[str, str]:
    """Return the versions of the measured systems; `kafka` is that of a broker started here."""
    found = {
        PYTHON: python_build(),
        "confluent-kafka": importlib.metadata.version("confluent-kafka"),
        "librdkafka": confluent_kafka.libversion()[0],
    }
    if kafka is not None:
        found["kafka"] = kafka
    if "tidewheel" in systems:
        found["tidewheel"] = importlib.metadata.version("tidewheel")
        found["rocksdict"] = importlib.metadata.version("rocksdict")
    if any(system.startswith("backfill") for system in systems):
        found["pyspark"] = importlib.metadata.version("pyspark")
    if any(system.startswith("kafka-streams") for system in systems):
        from benchmarks.environment.java import KAFKA_STREAMS_VERSION  # noqa: PLC0415 - only if measured

        found["kafka-streams"] = KAFKA_STREAMS_VERSION
    with contextlib.suppress(JavaError):  # a remote broker and no Java peer: Java was not used
        found["java"] = find_java().version
    for name, packages in PEER_PACKAGES.items():
        if name in systems:
            python = python_environment.prepared_python(name, requirements(name))
            found |= python_environment.installed_versions(python, packages)
    return found
