"""Java's archive of Spark's classes: each of a dozen Sparks in tests starts in half the time.

`python -m checks.spark_classes` is the program whose classes are archived.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tidewheel.streams.broker.class_archive import ClassArchive
from tidewheel.streams.broker.java import find_java

#: Spark's start script passes it to Java.
_VARIABLE: Final = "SPARK_SUBMIT_OPTS"
_TRAIN_S: Final = 300


@contextmanager
def archived_spark(folder: Path) -> Generator[dict[str, str]]:
    """Yield the environment for the archive; a missing archive is made during the block."""
    found = find_spec("pyspark")
    assert found is not None, "make test installs it"
    assert found.origin is not None, "it is a package"
    archive = ClassArchive(
        folder, find_java(), sorted((Path(found.origin).parent / "jars").glob("*.jar"))
    )
    training = None if archive.options() else _training(archive)
    environment: dict[str, str] = {}
    try:
        yield environment
    finally:
        if training is not None:
            archive.keep(_ended(training))
    if archive.options():
        environment[_VARIABLE] = " ".join(archive.options())


def _training(archive: ClassArchive) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "checks.spark_classes"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {_VARIABLE: " ".join(archive.making_options())},
    )


def _ended(training: "subprocess.Popen[bytes]") -> int | None:
    """Wait for the end of its output: Java shares it, writes the archive, and ends last.

    Returns its exit code.
    """
    try:
        training.communicate(timeout=_TRAIN_S)
    except subprocess.TimeoutExpired:
        training.kill()
        return None
    return training.returncode


def main() -> None:
    """Use each Spark feature of the tests once."""
    from tidewheel.state_stores.bulk_restore.spark.job import spark_session  # noqa: PLC0415 - an extra

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
