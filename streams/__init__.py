"""Tidewheel: Kafka Streams for Python. Everything users import is here (and in `streams.testing`).

Names are imported from their modules when they are first used, so that `import streams` costs next to nothing.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from streams.gc_tuning import made_to_stay
from streams.serdes.schema_port import provide

if TYPE_CHECKING:
    from state_stores.rocksdb.options import RocksDBOptions
    from state_stores.stores.custom_store import ChangelogRecord, StateStore, StateStoreContext
    from state_stores.stores.key_value_store import (
        KeyValueStore,
        ReadOnlyKeyValueStore,
        TimestampedKeyValueStore,
        TimestampedKeyValueStoreWithHeaders,
        ValueAndTimestamp,
        ValueTimestampHeaders,
    )
    from state_stores.stores.session_store import (
        AggregationWithHeaders,
        ReadOnlySessionStore,
        SessionStore,
        SessionStoreWithHeaders,
    )
    from state_stores.stores.versioned_store import (
        ReadOnlyVersionedKeyValueStore,
        VersionedKeyValueStore,
        VersionedRecord,
    )
    from state_stores.stores.window_store import (
        ReadOnlyWindowStore,
        TimestampedWindowStore,
        TimestampedWindowStoreWithHeaders,
        WindowStore,
    )
    from state_stores.stores.windowed import Windowed
    from streams.config import StreamsConfig
    from streams.custom_windows import CustomWindows
    from streams.definitions.isolation_level import IsolationLevel
    from streams.definitions.materialized import Materialized, StoreBuilder
    from streams.definitions.retrying import retrying
    from streams.definitions.store_suppliers import DslStoreSuppliers
    from streams.definitions.stores import Stores
    from streams.definitions.suppressed import BufferConfig, Suppressed
    from streams.dsl.builder import StreamsBuilder
    from streams.dsl.cogrouped_kstream import (
        CogroupedKStream,
        SessionWindowedCogroupedKStream,
        TimeWindowedCogroupedKStream,
    )
    from streams.dsl.global_ktable import GlobalKTable
    from streams.dsl.kgrouped_stream import KGroupedStream
    from streams.dsl.kgrouped_table import KGroupedTable
    from streams.dsl.kstream import KStream
    from streams.dsl.ktable import KTable
    from streams.dsl.windowed_kstream import SessionWindowedKStream, TimeWindowedKStream
    from streams.errors import (
        ApplicationShutdownError,
        ConfigError,
        CopartitioningError,
        FencedError,
        IncompatibleMemberError,
        InternalTopicError,
        InvalidStateStoreError,
        MissingOutputTopicError,
        MissingSourceTopicError,
        QueryTimeoutError,
        RecordFailedError,
        SchemaRegistryError,
        SerializationError,
        StateStoreError,
        StoredRowError,
        StoreLockedError,
        StreamsError,
        TaskCorruptedError,
        TopologyError,
    )
    from streams.group.key_metadata import HostInfo, KeyQueryMetadata, StreamsMetadata
    from streams.kafka_streams import KafkaStreams
    from streams.serdes import Serde, Serdes
    from streams.topology.description import TopologyDescription
    from streams.topology.topology import Topology
    from streams.windows import (
        CalendarWindows,
        JoinWindows,
        SessionWindows,
        SlidingWindows,
        TimeWindows,
        UnlimitedWindows,
    )
    from streams.worker.application.run_options import RunOptions
    from streams.worker.application.states import KafkaStreamsState
    from streams.worker.listeners import RestoreListener, StandbyUpdateListener
    from streams.worker.task_info import TaskInfo
    from tasks.processing.api.handlers import DeadLetter, ErrorContext, ErrorResponse
    from tasks.processing.api.processor import (
        Cancellable,
        FixedKeyProcessor,
        FixedKeyProcessorContext,
        Processor,
        ProcessorContext,
        PunctuationType,
    )
    from tasks.processing.api.record import (
        ConsumedRecord,
        FixedKeyRecord,
        Record,
        RecordContext,
        RecordMetadata,
    )
    from tasks.processing.api.timestamps import (
        FailOnInvalidTimestamp,
        LogAndSkipOnInvalidTimestamp,
        UsePartitionTimeOnInvalidTimestamp,
        WallclockTimestampExtractor,
    )
    from tasks.processing.engine.processor_wrapper import ProcessorWrapper
    from tasks.processing.engine.transformer import ValueTransformerWithKey
    from tasks.restore.state_updater import RestoreEvent, StandbyUpdateEvent

__all__ = [
    "AggregationWithHeaders",
    "ApplicationShutdownError",
    "BufferConfig",
    "CalendarWindows",
    "Cancellable",
    "ChangelogRecord",
    "CogroupedKStream",
    "ConfigError",
    "ConsumedRecord",
    "CopartitioningError",
    "CustomWindows",
    "DeadLetter",
    "DslStoreSuppliers",
    "ErrorContext",
    "ErrorResponse",
    "FailOnInvalidTimestamp",
    "FencedError",
    "FixedKeyProcessor",
    "FixedKeyProcessorContext",
    "FixedKeyRecord",
    "GlobalKTable",
    "HostInfo",
    "IncompatibleMemberError",
    "InternalTopicError",
    "InvalidStateStoreError",
    "IsolationLevel",
    "JoinWindows",
    "KGroupedStream",
    "KGroupedTable",
    "KStream",
    "KTable",
    "KafkaStreams",
    "KafkaStreamsState",
    "KeyQueryMetadata",
    "KeyValueStore",
    "LogAndSkipOnInvalidTimestamp",
    "Materialized",
    "MissingOutputTopicError",
    "MissingSourceTopicError",
    "Processor",
    "ProcessorContext",
    "ProcessorWrapper",
    "PunctuationType",
    "QueryTimeoutError",
    "ReadOnlyKeyValueStore",
    "ReadOnlySessionStore",
    "ReadOnlyVersionedKeyValueStore",
    "ReadOnlyWindowStore",
    "Record",
    "RecordContext",
    "RecordFailedError",
    "RecordMetadata",
    "RestoreEvent",
    "RestoreListener",
    "RocksDBOptions",
    "RunOptions",
    "SchemaRegistryError",
    "Serde",
    "Serdes",
    "SerializationError",
    "SessionStore",
    "SessionStoreWithHeaders",
    "SessionWindowedCogroupedKStream",
    "SessionWindowedKStream",
    "SessionWindows",
    "SlidingWindows",
    "StandbyUpdateEvent",
    "StandbyUpdateListener",
    "StateStore",
    "StateStoreContext",
    "StateStoreError",
    "StoreBuilder",
    "StoreLockedError",
    "StoredRowError",
    "Stores",
    "StreamsBuilder",
    "StreamsConfig",
    "StreamsError",
    "StreamsMetadata",
    "Suppressed",
    "TaskCorruptedError",
    "TaskInfo",
    "TimeWindowedCogroupedKStream",
    "TimeWindowedKStream",
    "TimeWindows",
    "TimestampedKeyValueStore",
    "TimestampedKeyValueStoreWithHeaders",
    "TimestampedWindowStore",
    "TimestampedWindowStoreWithHeaders",
    "Topology",
    "TopologyDescription",
    "TopologyError",
    "UnlimitedWindows",
    "UsePartitionTimeOnInvalidTimestamp",
    "ValueAndTimestamp",
    "ValueTimestampHeaders",
    "ValueTransformerWithKey",
    "VersionedKeyValueStore",
    "VersionedRecord",
    "WallclockTimestampExtractor",
    "WindowStore",
    "Windowed",
    "retrying",
]

_HOME = {
    "AggregationWithHeaders": "state_stores.stores.session_store",
    "ApplicationShutdownError": "streams.errors",
    "BufferConfig": "streams.definitions.suppressed",
    "CalendarWindows": "streams.windows",
    "CustomWindows": "streams.custom_windows",
    "Cancellable": "tasks.processing.api.processor",
    "ChangelogRecord": "state_stores.stores.custom_store",
    "CogroupedKStream": "streams.dsl.cogrouped_kstream",
    "ConfigError": "streams.errors",
    "ConsumedRecord": "tasks.processing.api.record",
    "DeadLetter": "tasks.processing.api.handlers",
    "DslStoreSuppliers": "streams.definitions.store_suppliers",
    "ErrorContext": "tasks.processing.api.handlers",
    "ErrorResponse": "tasks.processing.api.handlers",
    "FailOnInvalidTimestamp": "tasks.processing.api.timestamps",
    "FencedError": "streams.errors",
    "FixedKeyProcessor": "tasks.processing.api.processor",
    "FixedKeyProcessorContext": "tasks.processing.api.processor",
    "FixedKeyRecord": "tasks.processing.api.record",
    "GlobalKTable": "streams.dsl.global_ktable",
    "HostInfo": "streams.group.key_metadata",
    "IncompatibleMemberError": "streams.errors",
    "CopartitioningError": "streams.errors",
    "InternalTopicError": "streams.errors",
    "InvalidStateStoreError": "streams.errors",
    "IsolationLevel": "streams.definitions.isolation_level",
    "JoinWindows": "streams.windows",
    "KGroupedStream": "streams.dsl.kgrouped_stream",
    "KGroupedTable": "streams.dsl.kgrouped_table",
    "KStream": "streams.dsl.kstream",
    "KTable": "streams.dsl.ktable",
    "KafkaStreams": "streams.kafka_streams",
    "KafkaStreamsState": "streams.worker.application.states",
    "KeyQueryMetadata": "streams.group.key_metadata",
    "KeyValueStore": "state_stores.stores.key_value_store",
    "LogAndSkipOnInvalidTimestamp": "tasks.processing.api.timestamps",
    "Materialized": "streams.definitions.materialized",
    "MissingOutputTopicError": "streams.errors",
    "MissingSourceTopicError": "streams.errors",
    "Processor": "tasks.processing.api.processor",
    "ProcessorContext": "tasks.processing.api.processor",
    "ProcessorWrapper": "tasks.processing.engine.processor_wrapper",
    "PunctuationType": "tasks.processing.api.processor",
    "ReadOnlyKeyValueStore": "state_stores.stores.key_value_store",
    "ReadOnlySessionStore": "state_stores.stores.session_store",
    "ReadOnlyVersionedKeyValueStore": "state_stores.stores.versioned_store",
    "ReadOnlyWindowStore": "state_stores.stores.window_store",
    "Record": "tasks.processing.api.record",
    "RecordContext": "tasks.processing.api.record",
    "QueryTimeoutError": "streams.errors",
    "RecordFailedError": "streams.errors",
    "RecordMetadata": "tasks.processing.api.record",
    "RestoreEvent": "tasks.restore.state_updater",
    "RestoreListener": "streams.worker.listeners",
    "RocksDBOptions": "state_stores.rocksdb.options",
    "RunOptions": "streams.worker.application.run_options",
    "SchemaRegistryError": "streams.errors",
    "Serde": "streams.serdes",
    "Serdes": "streams.serdes",
    "SerializationError": "streams.errors",
    "SessionStore": "state_stores.stores.session_store",
    "SessionStoreWithHeaders": "state_stores.stores.session_store",
    "SessionWindowedCogroupedKStream": "streams.dsl.cogrouped_kstream",
    "SessionWindowedKStream": "streams.dsl.windowed_kstream",
    "SessionWindows": "streams.windows",
    "SlidingWindows": "streams.windows",
    "StandbyUpdateEvent": "tasks.restore.state_updater",
    "StandbyUpdateListener": "streams.worker.listeners",
    "StateStore": "state_stores.stores.custom_store",
    "StateStoreContext": "state_stores.stores.custom_store",
    "StateStoreError": "streams.errors",
    "StoreBuilder": "streams.definitions.materialized",
    "StoreLockedError": "streams.errors",
    "StoredRowError": "streams.errors",
    "Stores": "streams.definitions.stores",
    "StreamsBuilder": "streams.dsl.builder",
    "StreamsConfig": "streams.config",
    "StreamsError": "streams.errors",
    "StreamsMetadata": "streams.group.key_metadata",
    "Suppressed": "streams.definitions.suppressed",
    "TaskCorruptedError": "streams.errors",
    "TaskInfo": "streams.worker.task_info",
    "TimeWindowedCogroupedKStream": "streams.dsl.cogrouped_kstream",
    "TimeWindowedKStream": "streams.dsl.windowed_kstream",
    "TimeWindows": "streams.windows",
    "TimestampedKeyValueStore": "state_stores.stores.key_value_store",
    "TimestampedKeyValueStoreWithHeaders": "state_stores.stores.key_value_store",
    "TimestampedWindowStore": "state_stores.stores.window_store",
    "TimestampedWindowStoreWithHeaders": "state_stores.stores.window_store",
    "Topology": "streams.topology.topology",
    "TopologyDescription": "streams.topology.description",
    "TopologyError": "streams.errors",
    "UnlimitedWindows": "streams.windows",
    "UsePartitionTimeOnInvalidTimestamp": "tasks.processing.api.timestamps",
    "ValueAndTimestamp": "state_stores.stores.key_value_store",
    "ValueTimestampHeaders": "state_stores.stores.key_value_store",
    "ValueTransformerWithKey": "tasks.processing.engine.transformer",
    "VersionedKeyValueStore": "state_stores.stores.versioned_store",
    "VersionedRecord": "state_stores.stores.versioned_store",
    "WallclockTimestampExtractor": "tasks.processing.api.timestamps",
    "WindowStore": "state_stores.stores.window_store",
    "Windowed": "state_stores.stores.windowed",
    "retrying": "streams.definitions.retrying",
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
# Serdes know no Kafka client; with a schema registry they need this one.
provide(lambda: import_module("streams.kafka.registry.schema_registry").FORMATS)


def __getattr__(name: str) -> object:
    """Import the module of a public name; Python asks here when the name is not known yet."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Definitions are no garbage: looking for some among them took an eighth of the processor time of a start.
    with made_to_stay():
        value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
