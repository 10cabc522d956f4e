"""`StreamsConfig`: all settings of an application, checked and immutable."""

import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self, Unpack

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FieldSerializationInfo,
    PrivateAttr,
    ValidationError,
    field_serializer,
)

from tidewheel.state_stores.rocksdb.options import RocksDBOptions
from tidewheel.streams.config import fields as types
from tidewheel.streams.config.checks import cautions, contradictions
from tidewheel.streams.config.client_properties import ClientKind, shared_properties
from tidewheel.streams.config.display import OptionRow, attribute_docstrings, displayed, rows
from tidewheel.streams.config.explain import explained, joined
from tidewheel.streams.config.options import StreamsOptions
from tidewheel.streams.config.sources import (
    DEFAULT,
    Settings,
    collect,
    expanded,
    is_utf8,
    settings_file,
)
from tidewheel.streams.errors import ConfigError

_MIB: Final = 1024 * 1024

#: Sections of docs/configuration.md, by their first option; the fields are in the same order.
SECTIONS: Final = {
    "application_id": "Application",
    "parallelising_factor": "Parallelising factor",
    "auto_offset_reset": "Input",
    "state_dir": "State",
    "default_key_serde": "Topology and topics",
    "deserialization_exception_handler": "Errors",
    "group_instance_id": "Groups",
    "http_port": "HTTP and telemetry",
    "kafka": "Kafka clients",
}


def default_state_dir() -> Path:
    """Return the default of `state_dir`: a folder in the user's home.

    `$XDG_STATE_HOME/tidewheel`, else `~/.local/state/tidewheel`; on macOS `~/Library/Application
    Support/tidewheel`. A temporary folder would lose the state at reboots.
    """
    home = os.environ.get("XDG_STATE_HOME")
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        # The XDG specification ignores relative values.
        base = Path(home) if home and Path(home).is_absolute() else Path.home() / ".local" / "state"
    if not is_utf8(str(base)):
        raise ConfigError(
            f"state_dir: its default is below {str(base)!a}, which has bytes that are not UTF-8; set state_dir"
        )
    return base / "tidewheel"


def _empty() -> Mapping[str, Any]:
    return MappingProxyType({})


class StreamsConfig(BaseModel, frozen=True):
    """Application settings: keywords win over `TIDEWHEEL_*` variables, which win over a TOML file.

    The file is `$TIDEWHEEL_CONFIG_FILE`, else `tidewheel.toml` in the working directory. Tables
    (`kafka`, `rocksdb`, ...) are merged key by key. In variables two underscores precede a
    table's key: `TIDEWHEEL_KAFKA__SASL_PASSWORD` is `kafka["sasl.password"]`,
    `TIDEWHEEL_ROCKSDB__BLOCK_CACHE_BYTES` is a field of `rocksdb`. An empty variable is unset.

    Durations are int milliseconds, `timedelta`, or text ("500ms", "30s", "5m"); sizes are int bytes
    or text ("64 MiB"). Unknown names and invalid values raise `ConfigError` with their source.
    `replace` returns a changed copy. `repr`, `str`, `model_dump` and `describe` hide secrets.

    >>> config = StreamsConfig(application_id="word-count", commit_interval_ms="1s")
    >>> config.commit_interval_ms
    1000
    >>> config.replace(commit_interval_ms=50).commit_interval_ms
    50
    """

    model_config = ConfigDict(
        extra="forbid",
        arbitrary_types_allowed=True,
        hide_input_in_errors=True,
    )

    application_id: types.Name
    """Name of the application: consumer group, folder below `state_dir`, and prefix of its internal
    topics and transactional ids. Equal for all members. Required."""

    bootstrap_servers: types.Servers = "localhost:9092"
    """Initial brokers of every client, `host:port,host:port` or a list. The default suits a
    development broker (`tidewheel broker`)."""

    processing_guarantee: types.Guarantee = "exactly_once"
    """`exactly_once`: outputs, state changes and offsets are committed atomically. `at_least_once`:
    so are state changes and offsets, but outputs are visible immediately and may repeat after a
    crash."""

    commit_interval_ms: types.CommitInterval = 100
    """Milliseconds between commits; with exactly_once, results become visible at a commit."""

    topology: types.OptionalLabel = None
    """`MODULE:TOPOLOGY` that `tidewheel run` and `tidewheel describe` use if none is given, such as
    `shop.topology:topology`. Programs that run a topology themselves ignore it."""

    parallelising_factor: types.Factor = 1
    """Maximum key ranges per task, 1 to 256. Above 1, records of different keys of one partition
    overlap while they wait (for a service, a model, a disk). Records of one key keep their order.
    Results are the same."""

    num_stream_threads: types.Threads = "auto"
    """Threads per worker that process records, 1 to 256, shared by its tasks. `auto`: as many as
    `parallelising_factor`. With 1 the worker's loop processes, and tasks are not divided into key
    ranges."""

    max_calls_in_flight: types.Count = 0
    """Maximum coroutines of user functions that a process awaits at the same time, for all its tasks
    and key ranges together; further ones wait for their turn. 0: no limit other than
    `parallelising_factor` per task."""

    partition_shards: types.Shards = 1
    """Tasks per partition, a power of two from 1 to 64, for sub-topologies that allow it
    (`describe --execution`). Above 1, several workers share one partition: each has part of the key
    hashes. Equal for all members; `tidewheel reshard` changes it."""

    auto_offset_reset: types.OffsetReset = "earliest"
    """Start position at the application's first start, `earliest` or `latest`, unless the source
    sets it. Later partitions and topics are read from the beginning."""

    accept_offsets: types.Boolean = False
    """Start at committed offsets that this application did not commit, and without lost ones.
    Otherwise such a start is rejected, because it would skip or repeat records. Use it for one
    start; `tidewheel run --accept-offsets` sets it, too."""

    max_poll_records: types.PositiveCount = 10_000
    """Maximum records per poll, and thus per batch of an operator."""

    buffered_bytes_per_partition: types.PositiveSize = 16 * _MIB
    """Bytes of unprocessed input per partition at which reading pauses."""

    buffered_records_per_partition: types.PositiveCount = 100_000
    """Records of unprocessed input per partition at which reading pauses."""

    max_task_idle_ms: types.IdleDuration = 0
    """Milliseconds for which a task with several inputs waits for an empty one, to improve the
    order; 0: wait only for records known to be on the broker, -1: never wait."""

    state_dir: types.Directory = Field(default_factory=default_state_dir)
    """Directory of local state, which is restored from changelogs if it is lost. Default: a folder
    of the user that survives reboots, `$XDG_STATE_HOME/tidewheel` or `~/.local/state/tidewheel`."""

    state_dir_exclusive: types.Boolean = False
    """Refuse to start if another process uses `state_dir` for this application, instead of becoming
    its next worker."""

    state_cleanup_delay_ms: types.AnyDuration = 600_000
    """Milliseconds after which the local state of a moved task is removed."""

    statestore_cache_max_bytes: types.AnySize = 10 * _MIB
    """Bytes of cached updates per worker: a frequently updated key is forwarded once per commit,
    not at each update; 0 forwards every update."""

    statestore_uncommitted_max_bytes: types.PositiveSize = 64 * _MIB
    """Bytes of uncommitted writes per worker in memory; more triggers an early commit."""

    default_interactive_query_isolation_level: types.IsolationOption = "read_committed"
    """Isolation level of `KafkaStreams.store` without its own: `read_committed`, or
    `read_uncommitted` to include changes of running tasks since their last commit."""

    interactive_query_timeout_ms: types.PositiveDuration = 5_000
    """Milliseconds for which a query of uncommitted rows waits for the worker, which answers
    between batches."""

    rocksdb: types.RocksDB = Field(default_factory=RocksDBOptions)
    """Memory and compaction settings of all databases of a process, `RocksDBOptions(...)` or a
    table of its fields."""

    snapshot_location: types.OptionalLocation = None
    """Directory or fsspec URL (`s3://bucket/path`) of state snapshots (`tidewheel snapshot`):
    stores without usable local data start from the newest snapshot and read the rest of the
    changelog."""

    default_key_serde: types.OptionalSerde = None
    """Serde of keys for nodes without their own or an inherited one: a serde, a plain type (`str`),
    or a name (`string`, `int64`, ..., `module:name`)."""

    default_value_serde: types.OptionalSerde = None
    """Serde of values for nodes without their own or an inherited one; as `default_key_serde`."""

    ensure_explicit_naming: types.Boolean = False
    """Refuse to build a topology with generated names of stores or internal topics, which change
    with the code."""

    default_timestamp_extractor: types.Extractor = None
    """`(record, highest) -> ms` for sources without their own; `highest` is the partition's largest
    timestamp so far or -1. None: the record's timestamp, negative ones fail. Kafka Streams'
    extractors also by name, such as `WallclockTimestampExtractor`."""

    processor_wrapper_class: types.Wrapper = None
    """`ProcessorWrapper` class (or its instance, or its `"module:name"`) that wraps the processor
    of every node: for tracing, timing and tests."""

    dsl_store_suppliers: types.StoreSuppliers = "rocksdb"
    """Store type of DSL stores whose `Materialized` has no `store_type`: `rocksdb`, `in_memory`, or
    a `DslStoreSuppliers` class (or its instance, or its `"module:name"`) that decides per store."""

    dsl_store_format: types.StoreFormat = "DEFAULT"
    """Row format of DSL tables whose `Materialized` sets none: `DEFAULT`, or `HEADERS` to store the
    record's headers, too."""

    topology_optimization: types.Optimization = "all"
    """Optimisations of `build`: `all`, `none`, or a set of `merge_repartition_topics`,
    `reuse_ktable_source_topics`, `single_store_self_join`. They change topic names: do not change
    them for a running application."""

    emit_interval_ms: types.AnyDuration = 1_000
    """Maximum milliseconds between checks for join non-matches and on-close results; 0 checks at
    every record."""

    replication_factor: types.Replicas = -1
    """Replicas of created internal topics; -1: the cluster's default."""

    repartition_topic_config: types.TopicConfig = Field(default_factory=_empty)
    """Topic settings of created repartition topics, `{"retention.ms": "86400000"}`; `topic_config=`
    of `repartition()` overrides them."""

    repartition_purge_interval_ms: types.PositiveDuration = 30_000
    """Milliseconds between purges of processed records from repartition topics."""

    deserialization_exception_handler: types.Handler = "fail"
    """Handling of unreadable input records: `fail`, `continue` (skip), or a function of `(context,
    record, exception)`, also as `"module:name"`."""

    processing_exception_handler: types.Handler = "fail"
    """Handling of records whose processing raised; as `deserialization_exception_handler`."""

    processing_exception_handler_global_enabled: types.Boolean = False
    """Use the processing handler for processors that fill global stores, too; otherwise their
    errors end the worker, as in Kafka Streams before 5.0."""

    production_exception_handler: types.Handler = "fail"
    """Handling of output records that the broker rejects; as `deserialization_exception_handler`,
    and a function may also answer `retry`. Time-outs are always retried."""

    dead_letter_queue_topic: types.OptionalTopic = None
    """Topic to which the named handlers also write the failed input record, with
    `__streams.errors.*` headers."""

    late_records_to_dead_letter_queue: types.Boolean = False
    """Also write late records, dropped by windows, stream-stream joins and versioned tables, to
    `dead_letter_queue_topic`, with `__streams.errors.exception`
    `tidewheel.tasks.errors.LateRecordError`."""

    group_instance_id: types.OptionalName = None
    """Static identity of this process: after a restart within `rejoin_timeout_ms` it gets its tasks
    back without a rebalance. With several workers each appends its slot (`-0`, `-1`)."""

    rejoin_timeout_ms: types.AnyDuration = 60_000
    """Milliseconds for which the tasks of a static or cleanly restarting member wait for it, unless
    a caught-up copy exists."""

    drain_timeout_ms: types.AnyDuration = 25_000
    """Milliseconds for which a stopping worker keeps its tasks running while they move to other
    members."""

    num_standby_replicas: types.Count = 0
    """Copies of each store kept up to date on other members."""

    max_warmup_replicas: types.PositiveCount = 2
    """Maximum learners of the group that restore at the same time, from 1; at least 2 while a
    worker leaves, because leaving has a deadline."""

    acceptable_recovery_lag: types.Count = 10_000
    """Maximum lag behind its changelog, in records, of a copy that counts as caught up."""

    settling_ms: types.AnyDuration = 6_000
    """Milliseconds a new member must be in the group before running tasks move to it, so
    short-lived members move no tasks. Learners start earlier, and tasks without an owner move
    immediately."""

    task_move_interval_ms: types.AnyDuration = 0
    """Minimum milliseconds between two task moves of the group, so a new member gets load
    gradually; 0: no limit."""

    task_assignor: types.Assignor = "sticky"
    """Task assignor: `sticky`, `high_availability`, `round_robin`, `fixed` (no coordination), or an
    importable `"module:name"` or module-level object (stored by name). Equal for all members."""

    rack_id: types.OptionalLabel = None
    """Rack or zone of this process; it reads from brokers in the same rack, and copies are placed
    in others."""

    client_tags: types.Tags = Field(default_factory=_empty)
    """Labels of this process, `{"zone": "a"}`; copies of a store are spread over different
    values."""

    input_partitioners: types.Partitioners = Field(default_factory=_empty)
    """Partitioners of input topics not written with Kafka's own (`murmur2`), `{"orders": "crc32"}`:
    `crc32` (librdkafka's default), `fnv1a`, or `unknown` (no check). Repartition topics joined with
    the topic use the same one."""

    application_server: types.OptionalEndpoint = None
    """`host:port` at which other members reach this process's interactive queries; with
    `http_port` the default is the HTTP server's own address."""

    heartbeat_interval_ms: types.HeartbeatInterval = 500
    """Milliseconds between heartbeats to the group's leader, from 50."""

    session_timeout_ms: types.SessionTimeout = 3_000
    """Milliseconds without a heartbeat after which a member counts as dead, from 300 and at least 3
    heartbeats."""

    worker_hang_timeout_ms: types.PositiveDuration = 30_000
    """Milliseconds without progress after which a worker counts as hanging and its tasks move,
    unless user code runs (`max_call_ms`). The producer's `transaction.timeout.ms` is this plus 30
    s; the broker must allow it (`transaction.max.timeout.ms`)."""

    max_call_ms: types.AnyDuration = 300_000
    """Maximum milliseconds of one call of user code (a mapper, a serde, `init()`, a punctuation);
    0: unlimited. A longer call counts as hanging: an error names the function, its line and the
    record, and the tasks move. The only member of a group keeps waiting."""

    http_port: types.OptionalPort = None
    """Port of the HTTP server with metrics, health, state and interactive queries; 0 selects a free
    one, and the worker of slot n adds n. None: no server. It needs
    `tidewheel[web]`."""

    http_host: types.Host = "127.0.0.1"
    """Address on which the HTTP server listens. One that other machines reach needs `http_token`."""

    http_token: types.OptionalSecret = None
    """Token that HTTP clients show (`Authorization: Bearer TOKEN`), of at least 16 characters;
    `file:/path` and `env:NAME` are resolved at the start. `/healthz` and `/readyz` need none."""

    telemetry: types.TelemetryOption = "none"
    """`opentelemetry` reports metrics, and traces of batches, commits and restores, to the providers
    that your program sets. It needs `tidewheel[opentelemetry]`."""

    kafka: types.KafkaProperties = Field(default_factory=_empty)
    """librdkafka properties of every client, such as `security.protocol` and `sasl.*`. Values
    `file:/path` and `env:NAME` are resolved when a client is created; use them for secrets."""

    consumer: types.ConsumerProperties = Field(default_factory=_empty)
    """librdkafka properties of every consumer (input, restore, control). They override `kafka`."""

    producer: types.ProducerProperties = Field(default_factory=_empty)
    """librdkafka properties of every producer. They override `kafka`."""

    admin: types.AdminProperties = Field(default_factory=_empty)
    """librdkafka properties of every admin client. They override `kafka`."""

    # Origin of each setting, see `sources.Settings.origins`.
    _origins: dict[str, str] = PrivateAttr(default_factory=dict[str, str])

    def __init__(
        self, collected: Settings | None = None, /, **options: Unpack[StreamsOptions]
    ) -> None:
        """Collect and check settings. `collected` is for `from_toml` and `replace` only."""
        fields = type(self).model_fields
        if collected is None:
            collected = collect(fields, options, settings_file(os.environ))
        elif not isinstance(collected, Settings):  # pyright: ignore[reportUnnecessaryIsInstance] - users without a type checker
            raise ConfigError("StreamsConfig takes options by keyword: application_id=...")
        try:
            super().__init__(**collected.values)
        except ValidationError as error:
            # `from None`: pydantic's text quotes values, perhaps secrets.
            raise explained(error, collected, _defaults()) from None
        self._origins.update(collected.origins)
        problems = contradictions(self, collected.origins)
        if problems:
            raise joined(problems)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str], /, **options: Unpack[StreamsOptions]) -> Self:
        r"""Return the settings of a file; keywords and environment variables take precedence.

        Raises:
            ConfigError: The file is missing or not TOML, or has an unknown or invalid option.

        >>> from tempfile import NamedTemporaryFile
        >>> with NamedTemporaryFile(suffix=".toml") as file:
        ...     _ = file.write(b'application_id = "shop"\ncommit_interval_ms = 500')
        ...     file.flush()
        ...     config = StreamsConfig.from_toml(file.name, application_id="shop-2")
        >>> config.application_id, config.commit_interval_ms, config.source_of("application_id")
        ('shop-2', 500, 'keyword')
        """
        return cls(collect(cls.model_fields, options, expanded(path)))

    def replace(self, **changes: Unpack[StreamsOptions]) -> Self:
        """Return a checked copy with changed options.

        Environment and file are not read again; a given table replaces the whole old one.
        """
        changed = collect(type(self).model_fields, changes, None, environ={})
        values = {name: getattr(self, name) for name in self.model_fields_set} | changed.values
        unchanged = {
            name: origin
            for name, origin in self._origins.items()
            if name.partition(".")[0] not in changed.values
        }
        return type(self)(Settings(values, unchanged | changed.origins))

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Return the config itself, which is immutable."""
        return self

    def __reduce__(self) -> tuple[type[Self], tuple[Settings]]:
        """Return the pickled form. It contains passwords, because a copy needs them."""
        values = {name: getattr(self, name) for name in self.model_fields_set}
        plain = {
            name: dict(value) if isinstance(value, MappingProxyType) else value  # pyright: ignore[reportUnknownArgumentType] - its types are the field's
            for name, value in values.items()
        }
        return type(self), (Settings(plain, dict(self._origins)),)

    def describe(self) -> list[OptionRow]:
        """Return a row per option (and table key): value with secrets hidden, source, description.

        >>> rows = StreamsConfig(application_id="shop").describe()
        >>> [(row.option, row.value, row.source) for row in rows if row.option == "application_id"]
        [('application_id', 'shop', 'keyword')]
        """
        fields = type(self).model_fields
        values = {name: getattr(self, name) for name in fields}
        return list(rows(values, self._origins, attribute_docstrings(StreamsConfig)))

    def client_properties(self, kind: ClientKind) -> dict[str, Any]:
        """Return the librdkafka properties of a kind of client: its own table's override `kafka`'s.

        Properties in `kafka` that only other kinds of clients have are left out.

        >>> config = StreamsConfig(application_id="a", kafka={"retry.backoff.ms": 1}, producer={"linger.ms": 5})
        >>> config.client_properties("producer"), config.client_properties("admin")
        ({'retry.backoff.ms': 1, 'linger.ms': 5}, {'retry.backoff.ms': 1})
        """
        own: Mapping[str, Any] = getattr(self, kind)
        return {**shared_properties(kind, self.kafka), **own}

    def source_of(self, option: str) -> str:
        """Return the source of an option's value: "default", "keyword", a variable, or a file and key."""
        return self._origins.get(option, DEFAULT)

    def cautions(self) -> list[str]:
        """Return doubtful settings, logged at every start (TLS verification disabled, ...)."""
        return cautions(self)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in type(self).model_fields:
            raise _frozen(name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if name in type(self).model_fields:
            raise _frozen(name)
        super().__delattr__(name)

    @field_serializer("*")
    def _redacted(self, value: Any, info: FieldSerializationInfo) -> Any:
        return displayed(info.field_name, value)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield the given options with secrets hidden.

        Pydantic builds repr, str and rich output from it.
        """
        for name in type(self).model_fields:
            if name in self.model_fields_set:
                yield name, displayed(name, getattr(self, name))

    def __eq__(self, other: object) -> bool:
        # Origins do not affect equality.
        return isinstance(other, StreamsConfig) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        # Tables can't be hashed; few programs have two configs of one application.
        return hash(self.application_id)


def checked_config(config: object, what: str) -> StreamsConfig:
    """Return the config passed to `what`; raise `ConfigError` for other types, such as a dict.

    >>> checked_config({"application_id": "shop"}, "KafkaStreams")
    Traceback (most recent call last):
    ...
    tidewheel.streams.errors.ConfigError: KafkaStreams: the config is of type dict; give StreamsConfig(**options)
    """
    if isinstance(config, StreamsConfig):
        return config
    kind = type(config).__name__
    step = "(**options)" if isinstance(config, Mapping) else '(application_id="word-count")'
    raise ConfigError(f"{what}: the config is of type {kind}; give StreamsConfig{step}")


def _frozen(option: str) -> ConfigError:
    return ConfigError(
        f"{option} can't be changed: a StreamsConfig is frozen, as what runs with it has read it; "
        f"`replace({option}=...)` returns a changed copy"
    )


@cache
def _defaults() -> dict[str, Any]:
    return {
        name: field.get_default(call_default_factory=True)
        for name, field in StreamsConfig.model_fields.items()
        if not field.is_required()
    }
