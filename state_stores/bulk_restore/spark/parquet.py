"""Parquet folders that Spark writes: checked before long work, and counted after the writing."""

import secrets
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # it has no types
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tidewheel.state_stores.bulk_restore.spark.job import reason_of
from tidewheel.state_stores.bulk_restore.urls import redacted_url
from tidewheel.state_stores.errors import StreamsError

_PROBE: Final = ".tidewheel-probe-"


def check_empty_folder(session: SparkSession, url: str) -> None:
    """Raise `StreamsError` unless Spark's driver can write into the folder, and it is new or empty."""
    shown = redacted_url(url)
    # Hadoop's file systems write the files, and PySpark has no public name for them.
    jvm: Any = session.sparkContext._jvm  # noqa: SLF001 - see above
    configuration: Any = session.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001 - see above
    try:
        folder = jvm.org.apache.hadoop.fs.Path(url)
        files = folder.getFileSystem(configuration)
        if files.exists(folder) and len(files.listStatus(folder)):
            raise StreamsError(
                f"{shown} is not empty, and its files would be mixed with those of this run; delete them, or name another folder"
            )
        probe = jvm.org.apache.hadoop.fs.Path(folder, f"{_PROBE}{secrets.token_hex(8)}")
        files.create(probe).close()
        files.delete(probe, False)
    except Py4JError as error:
        raise StreamsError(
            f"{shown}: Spark can't write there: {reason_of(error)}; check the address, the permissions, and that Spark has the "
            "package for such addresses (hadoop-aws for s3a://)"
        ) from error


def write_parquet(frame: DataFrame, url: str, rows: int) -> None:
    """Write a frame of so many rows into a folder; files of an earlier attempt are replaced.

    Raises:
        StreamsError: Spark can't write there, or the driver does not see all rows afterwards.
    """
    shown = redacted_url(url)
    try:
        frame.write.mode("overwrite").parquet(url)
        written = frame.sparkSession.read.schema(frame.schema).parquet(url).count()
    except (PySparkException, Py4JError) as error:
        raise StreamsError(
            f"{shown}: Spark can't write there: {reason_of(error)}; mend that, and run it again"
        ) from error
    if written != rows:
        raise StreamsError(
            f"{shown} has {written:,} rows after {rows:,} were written; give a folder or URL that the driver and all executors "
            "share, in which nothing else writes"
        )
