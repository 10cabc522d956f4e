"""Tidewheel: Kafka Streams for Python. All public names are here and in `tidewheel.testing`.

Names are imported at their first use, so `import tidewheel` is cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tidewheel.streams.gc_tuning import permanent_objects
from tidewheel.streams.serdes.schema_port import provide

if TYPE_CHECKING:
    from tidewheel.state_stores.rocksdb.options import RocksDBOptions
    from tidewheel.state_stores.stores.custom_store import (
        ChangelogRecord,
        StateStore,
        StateStoreContext,
    )
    from tidewheel.state_stores.stores.key_value_store import (
        KeyValueStore,
        ReadOnlyKeyValueStore,
        TimestampedKeyValueStore,
        TimestampedKeyValueStoreWithHeaders,
        ValueAndTimestamp,
        ValueTimestampHeaders,
    )
    from tidewheel.state_stores.stores.session_store import (
        AggregationWithHeaders,
        ReadOnlySessionStore,
        SessionStore,
        SessionStoreWithHeaders,
    )
    from tidewheel.state_stores.stores.versioned_store import (
        ReadOnlyVersionedKeyValueStore,
        VersionedKeyValueStore,
        VersionedRecord,
    )
    from tidewheel.state_stores.stores.window_store import (
        ReadOnlyWindowStore,
        TimestampedWindowStore,
        TimestampedWindowStoreWithHeaders,
        WindowStore,
    )
    from tidewheel.state_stores.stores.windowed import Windowed
    from tidewheel.streams.config import StreamsConfig
    from tidewheel.streams.custom_windows import CustomWindows
    from tidewheel.streams.definitions.isolation_level import IsolationLevel
    from tidewheel.streams.definitions.materialized import Materialized, StoreBuilder
    from tidewheel.streams.definitions.retrying import retrying
    from tidewheel.streams.definitions.store_suppliers import DslStoreSuppliers
    from tidewheel.streams.definitions.stores import Stores
    from tidewheel.streams.definitions.suppressed import BufferConfig, Suppressed
    from tidewheel.streams.dsl.builder import StreamsBuilder
    from tidewheel.streams.dsl.cogrouped_kstream import (
        CogroupedKStream,
        SessionWindowedCogroupedKStream,
        TimeWindowedCogroupedKStream,
    )
    from tidewheel.streams.dsl.global_ktable import GlobalKTable
    from tidewheel.streams.dsl.kgrouped_stream import KGroupedStream
    from tidewheel.streams.dsl.kgrouped_table import KGroupedTable
    from tidewheel.streams.dsl.kstream import KStream
    from tidewheel.streams.dsl.ktable import KTable
    from tidewheel.streams.dsl.windowed_kstream import SessionWindowedKStream, TimeWindowedKStream
    from tidewheel.streams.errors import (
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
        SinkBehindError,
        SinkFailedError,
        StateStoreError,
        StoreCorruptedError,
        StoredRowError,
        StoreLockedError,
        StreamsError,
        TaskCorruptedError,
        TopologyError,
    )
    from tidewheel.streams.group.key_metadata import HostInfo, KeyQueryMetadata, StreamsMetadata
    from tidewheel.streams.kafka_streams import KafkaStreams
    from tidewheel.streams.serdes import Serde, Serdes
    from tidewheel.streams.topology.description import TopologyDescription
    from tidewheel.streams.topology.topology import Topology
    from tidewheel.streams.windows import (
        CalendarWindows,
        JoinWindows,
        SessionWindows,
        SlidingWindows,
        TimeWindows,
        UnlimitedWindows,
    )
    from tidewheel.streams.worker.application.application_state import KafkaStreamsState
    from tidewheel.streams.worker.application.run_options import RunOptions
    from tidewheel.streams.worker.application.written_outputs import OutputRecord
    from tidewheel.streams.worker.listeners import RestoreListener, StandbyUpdateListener
    from tidewheel.streams.worker.metrics import TaskInfo
    from tidewheel.tasks.processing.api.handlers import DeadLetter, ErrorContext, ErrorResponse
    from tidewheel.tasks.processing.api.processor import (
        Cancellable,
        FixedKeyProcessor,
        FixedKeyProcessorContext,
        Processor,
        ProcessorContext,
        PunctuationType,
    )
    from tidewheel.tasks.processing.api.record import (
        ConsumedRecord,
        FixedKeyRecord,
        Record,
        RecordContext,
        RecordMetadata,
    )
    from tidewheel.tasks.processing.api.timestamps import (
        FailOnInvalidTimestamp,
        LogAndSkipOnInvalidTimestamp,
        UsePartitionTimeOnInvalidTimestamp,
        WallclockTimestampExtractor,
    )
    from tidewheel.tasks.processing.engine.processor_wrapper import ProcessorWrapper
    from tidewheel.tasks.processing.engine.transformer import ValueTransformerWithKey
    from tidewheel.tasks.restore.state_updater import RestoreEvent, StandbyUpdateEvent

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
    "OutputRecord",
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
    "SinkBehindError",
    "SinkFailedError",
    "SlidingWindows",
    "StandbyUpdateEvent",
    "StandbyUpdateListener",
    "StateStore",
    "StateStoreContext",
    "StateStoreError",
    "StoreBuilder",
    "StoreCorruptedError",
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
    "AggregationWithHeaders": "tidewheel.state_stores.stores.session_store",
    "ApplicationShutdownError": "tidewheel.streams.errors",
    "BufferConfig": "tidewheel.streams.definitions.suppressed",
    "CalendarWindows": "tidewheel.streams.windows",
    "CustomWindows": "tidewheel.streams.custom_windows",
    "Cancellable": "tidewheel.tasks.processing.api.processor",
    "ChangelogRecord": "tidewheel.state_stores.stores.custom_store",
    "CogroupedKStream": "tidewheel.streams.dsl.cogrouped_kstream",
    "ConfigError": "tidewheel.streams.errors",
    "ConsumedRecord": "tidewheel.tasks.processing.api.record",
    "DeadLetter": "tidewheel.tasks.processing.api.handlers",
    "DslStoreSuppliers": "tidewheel.streams.definitions.store_suppliers",
    "ErrorContext": "tidewheel.tasks.processing.api.handlers",
    "ErrorResponse": "tidewheel.tasks.processing.api.handlers",
    "FailOnInvalidTimestamp": "tidewheel.tasks.processing.api.timestamps",
    "FencedError": "tidewheel.streams.errors",
    "FixedKeyProcessor": "tidewheel.tasks.processing.api.processor",
    "FixedKeyProcessorContext": "tidewheel.tasks.processing.api.processor",
    "FixedKeyRecord": "tidewheel.tasks.processing.api.record",
    "GlobalKTable": "tidewheel.streams.dsl.global_ktable",
    "HostInfo": "tidewheel.streams.group.key_metadata",
    "IncompatibleMemberError": "tidewheel.streams.errors",
    "CopartitioningError": "tidewheel.streams.errors",
    "InternalTopicError": "tidewheel.streams.errors",
    "InvalidStateStoreError": "tidewheel.streams.errors",
    "IsolationLevel": "tidewheel.streams.definitions.isolation_level",
    "JoinWindows": "tidewheel.streams.windows",
    "KGroupedStream": "tidewheel.streams.dsl.kgrouped_stream",
    "KGroupedTable": "tidewheel.streams.dsl.kgrouped_table",
    "KStream": "tidewheel.streams.dsl.kstream",
    "KTable": "tidewheel.streams.dsl.ktable",
    "KafkaStreams": "tidewheel.streams.kafka_streams",
    "KafkaStreamsState": "tidewheel.streams.worker.application.application_state",
    "KeyQueryMetadata": "tidewheel.streams.group.key_metadata",
    "KeyValueStore": "tidewheel.state_stores.stores.key_value_store",
    "LogAndSkipOnInvalidTimestamp": "tidewheel.tasks.processing.api.timestamps",
    "Materialized": "tidewheel.streams.definitions.materialized",
    "MissingOutputTopicError": "tidewheel.streams.errors",
    "MissingSourceTopicError": "tidewheel.streams.errors",
    "Processor": "tidewheel.tasks.processing.api.processor",
    "ProcessorContext": "tidewheel.tasks.processing.api.processor",
    "ProcessorWrapper": "tidewheel.tasks.processing.engine.processor_wrapper",
    "PunctuationType": "tidewheel.tasks.processing.api.processor",
    "ReadOnlyKeyValueStore": "tidewheel.state_stores.stores.key_value_store",
    "ReadOnlySessionStore": "tidewheel.state_stores.stores.session_store",
    "ReadOnlyVersionedKeyValueStore": "tidewheel.state_stores.stores.versioned_store",
    "ReadOnlyWindowStore": "tidewheel.state_stores.stores.window_store",
    "Record": "tidewheel.tasks.processing.api.record",
    "RecordContext": "tidewheel.tasks.processing.api.record",
    "QueryTimeoutError": "tidewheel.streams.errors",
    "RecordFailedError": "tidewheel.streams.errors",
    "RecordMetadata": "tidewheel.tasks.processing.api.record",
    "RestoreEvent": "tidewheel.tasks.restore.state_updater",
    "RestoreListener": "tidewheel.streams.worker.listeners",
    "RocksDBOptions": "tidewheel.state_stores.rocksdb.options",
    "OutputRecord": "tidewheel.streams.worker.application.written_outputs",
    "RunOptions": "tidewheel.streams.worker.application.run_options",
    "SchemaRegistryError": "tidewheel.streams.errors",
    "Serde": "tidewheel.streams.serdes",
    "Serdes": "tidewheel.streams.serdes",
    "SerializationError": "tidewheel.streams.errors",
    "SessionStore": "tidewheel.state_stores.stores.session_store",
    "SessionStoreWithHeaders": "tidewheel.state_stores.stores.session_store",
    "SessionWindowedCogroupedKStream": "tidewheel.streams.dsl.cogrouped_kstream",
    "SessionWindowedKStream": "tidewheel.streams.dsl.windowed_kstream",
    "SessionWindows": "tidewheel.streams.windows",
    "SinkBehindError": "tidewheel.streams.errors",
    "SinkFailedError": "tidewheel.streams.errors",
    "SlidingWindows": "tidewheel.streams.windows",
    "StandbyUpdateEvent": "tidewheel.tasks.restore.state_updater",
    "StandbyUpdateListener": "tidewheel.streams.worker.listeners",
    "StateStore": "tidewheel.state_stores.stores.custom_store",
    "StateStoreContext": "tidewheel.state_stores.stores.custom_store",
    "StateStoreError": "tidewheel.streams.errors",
    "StoreBuilder": "tidewheel.streams.definitions.materialized",
    "StoreCorruptedError": "tidewheel.streams.errors",
    "StoreLockedError": "tidewheel.streams.errors",
    "StoredRowError": "tidewheel.streams.errors",
    "Stores": "tidewheel.streams.definitions.stores",
    "StreamsBuilder": "tidewheel.streams.dsl.builder",
    "StreamsConfig": "tidewheel.streams.config",
    "StreamsError": "tidewheel.streams.errors",
    "StreamsMetadata": "tidewheel.streams.group.key_metadata",
    "Suppressed": "tidewheel.streams.definitions.suppressed",
    "TaskCorruptedError": "tidewheel.streams.errors",
    "TaskInfo": "tidewheel.streams.worker.metrics",
    "TimeWindowedCogroupedKStream": "tidewheel.streams.dsl.cogrouped_kstream",
    "TimeWindowedKStream": "tidewheel.streams.dsl.windowed_kstream",
    "TimeWindows": "tidewheel.streams.windows",
    "TimestampedKeyValueStore": "tidewheel.state_stores.stores.key_value_store",
    "TimestampedKeyValueStoreWithHeaders": "tidewheel.state_stores.stores.key_value_store",
    "TimestampedWindowStore": "tidewheel.state_stores.stores.window_store",
    "TimestampedWindowStoreWithHeaders": "tidewheel.state_stores.stores.window_store",
    "Topology": "tidewheel.streams.topology.topology",
    "TopologyDescription": "tidewheel.streams.topology.description",
    "TopologyError": "tidewheel.streams.errors",
    "UnlimitedWindows": "tidewheel.streams.windows",
    "UsePartitionTimeOnInvalidTimestamp": "tidewheel.tasks.processing.api.timestamps",
    "ValueAndTimestamp": "tidewheel.state_stores.stores.key_value_store",
    "ValueTimestampHeaders": "tidewheel.state_stores.stores.key_value_store",
    "ValueTransformerWithKey": "tidewheel.tasks.processing.engine.transformer",
    "VersionedKeyValueStore": "tidewheel.state_stores.stores.versioned_store",
    "VersionedRecord": "tidewheel.state_stores.stores.versioned_store",
    "WallclockTimestampExtractor": "tidewheel.tasks.processing.api.timestamps",
    "WindowStore": "tidewheel.state_stores.stores.window_store",
    "Windowed": "tidewheel.state_stores.stores.windowed",
    "retrying": "tidewheel.streams.definitions.retrying",
}

# Serdes import no Kafka client; a schema registry needs this one.
provide(lambda: import_module("tidewheel.streams.kafka.registry.schema_registry").FORMATS)


def __getattr__(name: str) -> object:
    """Import the module of a public name at its first use."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Collections of live definitions cost an eighth of a start's processor time.
    with permanent_objects():
        value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
