"""A Spark session for bulk work, with the Java that Tidewheel would run its broker with."""

import contextlib
from collections.abc import Generator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidewheel.streams.broker.errors import JavaError
from tidewheel.streams.broker.java import find_java
from tidewheel.streams.errors import ConfigError, StreamsError

if TYPE_CHECKING:
    from tidewheel.state_stores.bulk_restore.spark_job import SparkSession

_NAME: Final = "tidewheel"


@contextlib.contextmanager
def bulk_session(
    spark: "SparkSession | None",
    *,
    what: str,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> Generator["SparkSession"]:
    """Yield the caller's session, or one of our own for as long as the body runs.

    Args:
        spark: The caller's.
        what: What it is for, for Spark's own displays.
        master: Where a session of our own works; None for this machine, or for what spark-submit was told.
        settings: Spark's settings for a session of our own.

    Raises:
        ConfigError: PySpark is not installed.
        StreamsError: Spark could not start, or there is no Java.
    """
    _check_installed()
    # Late: a program that only refers to `tidewheel.bulk` needs no PySpark.
    from tidewheel.state_stores.bulk_restore.spark_job import spark_session  # noqa: PLC0415

    java_home = _java_home() if spark is None else None
    with spark_session(
        spark, name=f"{_NAME} {what}", master=master, java_home=java_home, settings=settings
    ) as found:
        yield found


def started_session(
    spark: "SparkSession | None", *, what: str, master: str | None = None
) -> "SparkSession":
    """Return the caller's session, or one that stays until the program ends or stops it; see `bulk_session`."""
    _check_installed()
    from tidewheel.state_stores.bulk_restore.spark_job import start_session  # noqa: PLC0415 - see above

    if spark is not None:
        return spark
    session, _ = start_session(name=f"{_NAME} {what}", master=master, java_home=_java_home())
    return session


def _check_installed() -> None:
    if find_spec("pyspark") is None:
        raise ConfigError(
            "bulk work needs Spark; run: pip install 'tidewheel[spark]' (456 MB to download)"
        )


def _java_home() -> Path:
    try:
        return find_java().home
    except JavaError as error:
        raise StreamsError(f"Spark needs a Java: {error}") from error
