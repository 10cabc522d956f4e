"""Java's archive of the classes that Spark loads, for the tests: a dozen Sparks then start in half the time.

`python -m checks.spark_classes FOLDER` is the program whose classes are archived.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final

#: What Spark's start script gives to the Java it starts.
_VARIABLE: Final = "SPARK_SUBMIT_OPTS"
#: An archive of another Java is not used; nobody has to know.
_QUIET: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_TRAIN_S: Final = 300


@contextmanager
def archived_spark(folder: Path) -> Generator[dict[str, str]]:
    """Have the archive made beside the block, if it is not there; what is given is the environment that uses it, after the block."""
    archive = folder / f"spark-{version('pyspark')}.jsa"
    part = archive.with_suffix(f".{os.getpid()}")
    training = None if archive.exists() else _training(part)
    options: dict[str, str] = {}
    try:
        yield options
    finally:
        if training is not None and _has_ended(training) and part.exists():
            part.replace(archive)
    if archive.exists():
        options[_VARIABLE] = f"-XX:SharedArchiveFile={archive} {_QUIET}"


def _training(part: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "checks.spark_classes"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {_VARIABLE: f"-XX:ArchiveClassesAtExit={part} {_QUIET}"},
    )


def _has_ended(training: "subprocess.Popen[bytes]") -> bool:
    """Wait until the end of its output, which its Java has too: that one writes the archive, and ends last."""
    try:
        training.communicate(timeout=_TRAIN_S)
    except subprocess.TimeoutExpired:
        training.kill()
        return False
    return True


def main() -> None:
    """Do a little of all that tests do with Spark."""
    from state_stores.bulk_restore.spark_job import spark_session  # noqa: PLC0415 - an extra
    from streams.broker.java import find_java  # noqa: PLC0415 - likewise

    with (
        tempfile.TemporaryDirectory() as folder,
        spark_session(name="classes", master="local[2]", java_home=find_java().home) as spark,
    ):
        rows = str(Path(folder) / "rows")
        spark.range(100).selectExpr("concat('key-', id) AS key", "id AS value").write.parquet(rows)
        spark.read.parquet(rows).selectExpr("key", "value + 1 AS value").collect()
        spark.range(100).rdd.map(lambda row: row.id).sum()


if __name__ == "__main__":
    main()
