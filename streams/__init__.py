"""Tidewheel: Kafka Streams for Python. Everything users import is here (and in `streams.testing`).

Names are imported from their modules when they are first used, so that `import streams` costs next to nothing.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from state_stores.key_value_store import (
        KeyValueStore,
        ReadOnlyKeyValueStore,
        TimestampedKeyValueStore,
        ValueAndTimestamp,
    )
    from state_stores.rocksdb.options import RocksDBOptions
    from streams.app import KafkaStreams, RestoreListener, TaskInfo
    from streams.builder import StreamsBuilder
    from streams.config import StreamsConfig
    from streams.errors import (
        ConfigError,
        FencedError,
        IncompatibleMemberError,
        InvalidStateStoreError,
        MissingSourceTopicError,
        RecordFailedError,
        SerializationError,
        StateStoreError,
        StoreLockedError,
        StreamsError,
        TaskCorruptedError,
        TopologyError,
    )
    from streams.grouped import KGroupedStream
    from streams.kstream import KStream
    from streams.ktable import KTable
    from streams.materialized import Materialized, StoreBuilder, Stores
    from streams.run_options import RunOptions
    from streams.serdes import Serde, Serdes
    from streams.states import KafkaStreamsState
    from streams.topology import Topology
    from streams.topology_description import TopologyDescription
    from tasks.processing.handlers import DeadLetter, ErrorContext, ErrorResponse
    from tasks.processing.processor import Cancellable, Processor, ProcessorContext, PunctuationType
    from tasks.processing.record import ConsumedRecord, Record, RecordContext, RecordMetadata
    from tasks.state_updater import RestoreEvent

__all__ = [
    "Cancellable",
    "ConfigError",
    "ConsumedRecord",
    "DeadLetter",
    "ErrorContext",
    "ErrorResponse",
    "FencedError",
    "IncompatibleMemberError",
    "InvalidStateStoreError",
    "KGroupedStream",
    "KStream",
    "KTable",
    "KafkaStreams",
    "KafkaStreamsState",
    "KeyValueStore",
    "Materialized",
    "MissingSourceTopicError",
    "Processor",
    "ProcessorContext",
    "PunctuationType",
    "ReadOnlyKeyValueStore",
    "Record",
    "RecordContext",
    "RecordFailedError",
    "RecordMetadata",
    "RestoreEvent",
    "RestoreListener",
    "RocksDBOptions",
    "RunOptions",
    "Serde",
    "Serdes",
    "SerializationError",
    "StateStoreError",
    "StoreBuilder",
    "StoreLockedError",
    "Stores",
    "StreamsBuilder",
    "StreamsConfig",
    "StreamsError",
    "TaskCorruptedError",
    "TaskInfo",
    "TimestampedKeyValueStore",
    "Topology",
    "TopologyDescription",
    "TopologyError",
    "ValueAndTimestamp",
]

_HOME = {
    "Cancellable": "tasks.processing.processor",
    "ConfigError": "streams.errors",
    "ConsumedRecord": "tasks.processing.record",
    "DeadLetter": "tasks.processing.handlers",
    "ErrorContext": "tasks.processing.handlers",
    "ErrorResponse": "tasks.processing.handlers",
    "FencedError": "streams.errors",
    "IncompatibleMemberError": "streams.errors",
    "InvalidStateStoreError": "streams.errors",
    "KGroupedStream": "streams.grouped",
    "KStream": "streams.kstream",
    "KTable": "streams.ktable",
    "KafkaStreams": "streams.app",
    "KafkaStreamsState": "streams.states",
    "KeyValueStore": "state_stores.key_value_store",
    "Materialized": "streams.materialized",
    "MissingSourceTopicError": "streams.errors",
    "Processor": "tasks.processing.processor",
    "ProcessorContext": "tasks.processing.processor",
    "PunctuationType": "tasks.processing.processor",
    "ReadOnlyKeyValueStore": "state_stores.key_value_store",
    "Record": "tasks.processing.record",
    "RecordContext": "tasks.processing.record",
    "RecordFailedError": "streams.errors",
    "RecordMetadata": "tasks.processing.record",
    "RestoreEvent": "tasks.state_updater",
    "RestoreListener": "streams.app",
    "RocksDBOptions": "state_stores.rocksdb.options",
    "RunOptions": "streams.run_options",
    "Serde": "streams.serdes",
    "Serdes": "streams.serdes",
    "SerializationError": "streams.errors",
    "StateStoreError": "streams.errors",
    "StoreBuilder": "streams.materialized",
    "StoreLockedError": "streams.errors",
    "Stores": "streams.materialized",
    "StreamsBuilder": "streams.builder",
    "StreamsConfig": "streams.config",
    "StreamsError": "streams.errors",
    "TaskCorruptedError": "streams.errors",
    "TaskInfo": "streams.app",
    "TimestampedKeyValueStore": "state_stores.key_value_store",
    "Topology": "streams.topology",
    "TopologyDescription": "streams.topology_description",
    "TopologyError": "streams.errors",
    "ValueAndTimestamp": "state_stores.key_value_store",
}

#: The packages of this distribution beside `streams`; their names are common enough to be taken by a user's module.
_SIBLINGS = ("rebalance", "state_stores", "tasks")


def _check_siblings() -> None:
    """Raise ImportError if another module stands in the way of one of our packages, saying which file it is."""
    root = Path(__file__).parent.parent
    for sibling in _SIBLINGS:
        spec = find_spec(sibling)
        origin = None if spec is None else spec.origin
        if origin is None or Path(origin).parent.parent.resolve() != root.resolve():
            raise ImportError(
                f"Tidewheel's package {sibling!r} is shadowed by {origin or 'something that is no package'}; rename that "
                "file or folder, or start Python from another directory",
                name=sibling,
                path=origin,
            )


_check_siblings()


def __getattr__(name: str) -> object:
    """Import the module of a public name; Python asks here when the name is not known yet."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
