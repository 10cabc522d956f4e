"""Option types: value type for type checkers, and the check that converts to it."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import PlainValidator

from tidewheel.rebalance.model import SHARDS_MAX
from tidewheel.state_stores.rocksdb.options import RocksDBOptions
from tidewheel.streams.config.client_properties import checked_properties
from tidewheel.streams.config.validators import (
    check_assignor,
    check_boolean,
    check_directory,
    check_endpoint,
    check_extractor,
    check_handler,
    check_host,
    check_label,
    check_location,
    check_name,
    check_optimization,
    check_partitioners,
    check_port,
    check_replicas,
    check_rocksdb,
    check_secret,
    check_serde,
    check_servers,
    check_store_format,
    check_store_suppliers,
    check_tags,
    check_topic,
    check_topic_config,
    check_wrapper,
    integer,
    milliseconds,
    one_of,
    optional,
    power_of_two,
    size,
)
from tidewheel.streams.definitions.store_suppliers import (
    DslStoreFormat,
    DslStoreSuppliers,
    DslStoreType,
)
from tidewheel.streams.serdes import Serde
from tidewheel.tasks.processing.api.handlers import ErrorHandlerSetting
from tidewheel.tasks.processing.api.topology_spec import TimestampExtractor
from tidewheel.tasks.processing.engine.processor_wrapper import ProcessorWrapper

Count = Annotated[int, integer(0)]
PositiveCount = Annotated[int, integer(1)]
Factor = Annotated[int, integer(1, 256)]
Shards = Annotated[int, power_of_two(SHARDS_MAX)]
Threads = Annotated[int | Literal["auto"], integer(1, 256, words=("auto",))]
AnyDuration = Annotated[int, milliseconds(0)]
PositiveDuration = Annotated[int, milliseconds(1)]
CommitInterval = Annotated[int, milliseconds(0)]
HeartbeatInterval = Annotated[int, milliseconds(50)]
SessionTimeout = Annotated[int, milliseconds(300)]
IdleDuration = Annotated[int, milliseconds(-1)]
AnySize = Annotated[int, size(0)]
PositiveSize = Annotated[int, size(1)]
Guarantee = Annotated[
    Literal["exactly_once", "at_least_once"], one_of("exactly_once", "at_least_once")
]
IsolationOption = Annotated[
    Literal["read_committed", "read_uncommitted"], one_of("read_committed", "read_uncommitted")
]
TelemetryOption = Annotated[Literal["none", "opentelemetry"], one_of("none", "opentelemetry")]
OffsetReset = Annotated[Literal["earliest", "latest"], one_of("earliest", "latest")]
Boolean = Annotated[bool, PlainValidator(check_boolean)]
Name = Annotated[str, PlainValidator(check_name)]
OptionalName = Annotated[str | None, optional(check_name)]
OptionalTopic = Annotated[str | None, optional(check_topic)]
OptionalLabel = Annotated[str | None, optional(check_label)]
OptionalPort = Annotated[int | None, optional(check_port)]
Host = Annotated[str, PlainValidator(check_host)]
OptionalSecret = Annotated[str | None, optional(check_secret)]
OptionalEndpoint = Annotated[str | None, optional(check_endpoint)]
OptionalLocation = Annotated[str | None, optional(check_location)]
Servers = Annotated[str, PlainValidator(check_servers)]
Directory = Annotated[Path, PlainValidator(check_directory)]
Replicas = Annotated[int, PlainValidator(check_replicas)]
TopicConfig = Annotated[Mapping[str, str], PlainValidator(check_topic_config)]
Tags = Annotated[Mapping[str, str], PlainValidator(check_tags)]
Partitioners = Annotated[Mapping[str, str], PlainValidator(check_partitioners)]
Optimization = Annotated[
    Literal["all", "none"] | frozenset[str], PlainValidator(check_optimization)
]
Assignor = Annotated[str, PlainValidator(check_assignor)]
Handler = Annotated[ErrorHandlerSetting, PlainValidator(check_handler)]
Extractor = Annotated[TimestampExtractor | None, optional(check_extractor)]
Wrapper = Annotated[type[ProcessorWrapper] | ProcessorWrapper | None, optional(check_wrapper)]
StoreSuppliers = Annotated[
    DslStoreType | type[DslStoreSuppliers] | DslStoreSuppliers,
    PlainValidator(check_store_suppliers),
]
StoreFormat = Annotated[DslStoreFormat, PlainValidator(check_store_format)]
OptionalSerde = Annotated[Serde[Any] | None, optional(check_serde)]
RocksDB = Annotated[RocksDBOptions, PlainValidator(check_rocksdb)]
KafkaProperties = Annotated[Mapping[str, Any], PlainValidator(partial(checked_properties, "kafka"))]
ConsumerProperties = Annotated[
    Mapping[str, Any], PlainValidator(partial(checked_properties, "consumer"))
]
ProducerProperties = Annotated[
    Mapping[str, Any], PlainValidator(partial(checked_properties, "producer"))
]
AdminProperties = Annotated[Mapping[str, Any], PlainValidator(partial(checked_properties, "admin"))]
