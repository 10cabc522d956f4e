"""Sinks outside Kafka, for `KStream.to_sink`, and the interface for sinks of your own.

Names are imported at their first use: each sink needs its own extra.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidewheel.rebalance.model import TopicPartition
    from tidewheel.streams.sinks.http_post import HttpPost
    from tidewheel.streams.sinks.iceberg_table import IcebergTable
    from tidewheel.streams.sinks.parquet_files import ParquetFiles
    from tidewheel.streams.sinks.postgres_upsert import PostgresUpsert
    from tidewheel.tasks.processing.api.sink import (
        InMemory,
        RefusedRow,
        RowsRefused,
        Sink,
        SinkBatch,
        SinkTaskInfo,
    )

__all__ = [
    "HttpPost",
    "IcebergTable",
    "InMemory",
    "ParquetFiles",
    "PostgresUpsert",
    "RefusedRow",
    "RowsRefused",
    "Sink",
    "SinkBatch",
    "SinkTaskInfo",
    "TopicPartition",
]

_INTERFACE = "tidewheel.tasks.processing.api.sink"
_HOME = {
    "HttpPost": "tidewheel.streams.sinks.http_post",
    "IcebergTable": "tidewheel.streams.sinks.iceberg_table",
    "InMemory": _INTERFACE,
    "ParquetFiles": "tidewheel.streams.sinks.parquet_files",
    "PostgresUpsert": "tidewheel.streams.sinks.postgres_upsert",
    "RefusedRow": _INTERFACE,
    "RowsRefused": _INTERFACE,
    "Sink": _INTERFACE,
    "SinkBatch": _INTERFACE,
    "SinkTaskInfo": _INTERFACE,
    "TopicPartition": "tidewheel.rebalance.model",
}


def __getattr__(name: str) -> object:
    """Import the module of a public name at its first use."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
