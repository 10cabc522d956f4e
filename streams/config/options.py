"""Keyword types of `StreamsConfig` and `replace`, for type checkers and editors.

`python -m checks.generated_parts --write` makes the list from `StreamsConfig`'s fields.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from os import PathLike
from typing import Any, Literal, TypedDict

from tidewheel.state_stores.rocksdb.options import RocksDBOptions
from tidewheel.streams.definitions.store_suppliers import (
    DslStoreFormat,
    DslStoreSuppliers,
    DslStoreType,
)
from tidewheel.streams.serdes import SerdeLike
from tidewheel.tasks.processing.api.handlers import ErrorHandlerSetting
from tidewheel.tasks.processing.api.topology_spec import TimestampExtractor
from tidewheel.tasks.processing.engine.processor_wrapper import ProcessorWrapper

#: Milliseconds, a timedelta, or text such as "500ms" or "30s".
DurationOption = int | timedelta | str
#: Bytes, or text such as "64 MiB".
SizeOption = int | str
#: A serde, an object with `serialize` and `deserialize`, a type such as `str`, a built-in serde's
#: name such as "int64", or "module:name".
SerdeOption = SerdeLike[Any] | str | None
#: "fail", "continue", a function, or its "module:name".
HandlerOption = ErrorHandlerSetting | str
#: librdkafka's property names; values may be `file:/path` and `env:NAME` references.
PropertiesOption = Mapping[str, Any]


class StreamsOptions(TypedDict, total=False):
    """Keyword arguments of `StreamsConfig`."""

    # --- generated: options
    application_id: str
    bootstrap_servers: str | Sequence[str]
    processing_guarantee: Literal["exactly_once", "at_least_once"]
    commit_interval_ms: DurationOption
    topology: str | None
    parallelising_factor: int
    num_stream_threads: int | Literal["auto"]
    max_calls_in_flight: int
    partition_shards: int
    auto_offset_reset: Literal["earliest", "latest"]
    accept_offsets: bool
    max_poll_records: int
    buffered_bytes_per_partition: SizeOption
    buffered_records_per_partition: int
    max_task_idle_ms: DurationOption
    state_dir: str | PathLike[str]
    state_dir_exclusive: bool
    state_cleanup_delay_ms: DurationOption
    statestore_cache_max_bytes: SizeOption
    statestore_uncommitted_max_bytes: SizeOption
    default_interactive_query_isolation_level: Literal["read_committed", "read_uncommitted"]
    interactive_query_timeout_ms: DurationOption
    rocksdb: RocksDBOptions | Mapping[str, Any]
    snapshot_location: str | PathLike[str] | None
    default_key_serde: SerdeOption
    default_value_serde: SerdeOption
    ensure_explicit_naming: bool
    default_timestamp_extractor: TimestampExtractor | str | None
    processor_wrapper_class: type[ProcessorWrapper] | ProcessorWrapper | str | None
    dsl_store_suppliers: DslStoreType | type[DslStoreSuppliers] | DslStoreSuppliers | str
    dsl_store_format: DslStoreFormat
    topology_optimization: Literal["all", "none"] | Collection[str]
    emit_interval_ms: DurationOption
    replication_factor: int
    repartition_topic_config: Mapping[str, str]
    repartition_purge_interval_ms: DurationOption
    deserialization_exception_handler: HandlerOption
    processing_exception_handler: HandlerOption
    processing_exception_handler_global_enabled: bool
    production_exception_handler: HandlerOption
    dead_letter_queue_topic: str | None
    late_records_to_dead_letter_queue: bool
    group_instance_id: str | None
    rejoin_timeout_ms: DurationOption
    drain_timeout_ms: DurationOption
    num_standby_replicas: int
    max_warmup_replicas: int
    acceptable_recovery_lag: int
    settling_ms: DurationOption
    task_move_interval_ms: DurationOption
    task_assignor: str | Callable[..., Any]
    rack_id: str | None
    client_tags: Mapping[str, str]
    input_partitioners: Mapping[str, str]
    application_server: str | None
    heartbeat_interval_ms: DurationOption
    session_timeout_ms: DurationOption
    worker_hang_timeout_ms: DurationOption
    max_call_ms: DurationOption
    http_port: int | None
    http_host: str
    http_token: str | None
    telemetry: Literal["none", "opentelemetry"]
    kafka: PropertiesOption
    consumer: PropertiesOption
    producer: PropertiesOption
    admin: PropertiesOption
    # --- /generated: options
