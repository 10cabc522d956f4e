"""`StreamsConfig`: every setting of an application, checked when it is made and never changed after."""

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
from tidewheel.streams.config.display import OptionRow, attribute_docstrings, displayed, rows
from tidewheel.streams.config.explain import explained, joined
from tidewheel.streams.config.options import StreamsOptions
from tidewheel.streams.config.sources import DEFAULT, Settings, collect, settings_file
from tidewheel.streams.errors import ConfigError

_MIB: Final = 1024 * 1024


def default_state_dir() -> Path:
    """Return where state is kept unless `state_dir` says otherwise: the user's own folder for state.

    `$XDG_STATE_HOME/tidewheel`, else `~/.local/state/tidewheel`; on macOS `~/Library/Application Support/tidewheel`.
    Not the system's folder for temporary files: that one is emptied at reboots, and every start would restore.
    """
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "tidewheel"
    home = os.environ.get("XDG_STATE_HOME")
    # Relative values are to be ignored, as the XDG specification says.
    base = Path(home) if home and Path(home).is_absolute() else Path.home() / ".local" / "state"
    return base / "tidewheel"


def _empty() -> Mapping[str, Any]:
    return MappingProxyType({})


class StreamsConfig(BaseModel, frozen=True):
    """The settings of an application: keywords win over `TIDEWHEEL_*` variables, which win over a TOML file.

    The file is `$TIDEWHEEL_CONFIG_FILE`, else `tidewheel.toml` in the working directory if there is one; tables
    (`consumer`, `rocksdb`, ...) are merged key by key. In variables a key of a table follows two underscores:
    `TIDEWHEEL_CONSUMER__SASL_PASSWORD` is `consumer["sasl.password"]`, `TIDEWHEEL_ROCKSDB__BLOCK_CACHE_BYTES` is
    a field of `rocksdb`. An empty variable counts as unset.

    Durations are int milliseconds, `timedelta`, or text ("500ms", "30s", "5m"); sizes are int bytes or text
    ("64 MiB"). Unknown names and bad values raise `ConfigError`, which says where the value came from. A config is
    frozen; `replace` returns a changed copy. `repr`, `str`, `model_dump` and `describe` never show a secret.

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
    """Name of the application: prefix of its internal topics and transactional ids, its consumer group, and its
    folder below `state_dir`. All members of an application give the same one. Required."""

    bootstrap_servers: types.Servers = "localhost:9092"
    """Brokers to ask first, `host:port,host:port` (or a list), for every client. The default suits a development
    broker (`tidewheel broker`)."""

    state_dir: types.Directory = Field(default_factory=default_state_dir)
    """Directory of local state; survives restarts and is restored from changelogs if it is lost. Default: a folder
    of the user's own that survives reboots, `$XDG_STATE_HOME/tidewheel` or `~/.local/state/tidewheel`."""

    processing_guarantee: types.Guarantee = "exactly_once"
    """`exactly_once`: outputs, state and offsets in one transaction. `at_least_once`: state and offsets still are,
    but sinks are visible at once and may repeat after a crash."""

    commit_interval_ms: types.CommitInterval = 100
    """Milliseconds between commits; results of exactly_once become visible with them."""

    num_stream_threads: types.Threads = "auto"
    """Threads per worker that process records, 1 to 256; all tasks of the worker share them. `auto`: as many as
    `parallelising_factor`. With 1 the worker's loop processes, and no key range is cut."""

    parallelising_factor: types.Factor = 1
    """Key ranges per task at most, 1 to 256. Above 1, records of different keys of one partition overlap where they
    wait (for a service, a model, a disk); records of one key keep their order. Results do not depend on it."""

    num_standby_replicas: types.Count = 0
    """Copies of each store kept up to date on other members."""

    max_warmup_replicas: types.PositiveCount = 2
    """Learners that restore at once in the whole group, from 1; while a worker leaves, at least 2, because that has a deadline."""

    acceptable_recovery_lag: types.Count = 10_000
    """Records a copy may lag behind its changelog and still count as caught up."""

    heartbeat_interval_ms: types.HeartbeatInterval = 500
    """Milliseconds between heartbeats to the group's coordinator, from 50."""

    session_timeout_ms: types.SessionTimeout = 3_000
    """Milliseconds without a heartbeat after which a member counts as dead, from 300 and at least 3 heartbeats."""

    worker_hang_timeout_ms: types.PositiveDuration = 30_000
    """Milliseconds without progress after which a worker is no longer vouched for and its tasks move, unless user code
    runs (`max_call_ms`). The producer's `transaction.timeout.ms` is this plus 30 s, which the broker must allow
    (`transaction.max.timeout.ms`)."""

    max_call_ms: types.AnyDuration = 300_000
    """Milliseconds that one call of user code may take (a mapper, a serde, `init()`, a punctuation) before the worker
    counts as hanging; 0 for no bound. Past it an error names the function, its line and the record, and other members
    take the tasks over. The only member of a group goes on waiting."""

    rejoin_timeout_ms: types.AnyDuration = 60_000
    """Milliseconds the tasks of a static or cleanly restarting member wait for it, unless a caught-up copy exists."""

    task_move_interval_ms: types.AnyDuration = 0
    """Milliseconds between two moves of tasks in the whole group, so that load creeps to a newcomer; 0 for no pacing."""

    settling_ms: types.AnyDuration = 6_000
    """Milliseconds a new member must have been in the group before running tasks move to it, so that members that come
    and go take nothing from others. Learners are planted earlier, and tasks nobody runs are not held back."""

    statestore_uncommitted_max_bytes: types.PositiveSize = 64 * _MIB
    """Bytes of uncommitted writes a worker holds in memory; more makes it commit early."""

    state_cleanup_delay_ms: types.AnyDuration = 600_000
    """Milliseconds after which the local state of a task that has moved away is removed."""

    repartition_purge_interval_ms: types.PositiveDuration = 30_000
    """Milliseconds between purges of records of repartition topics that have been processed."""

    state_dir_exclusive: types.Boolean = False
    """Refuse to start if another program uses `state_dir` for this application, instead of being its next worker."""

    group_instance_id: types.OptionalName = None
    """Static identity of this process: restarted within `rejoin_timeout_ms` it gets its tasks back and nobody else
    notices. With several workers each appends its slot (`-0`, `-1`)."""

    task_assignor: types.Assignor = "sticky"
    """Who places tasks: `sticky`, `high_availability`, `round_robin`, `fixed` (no coordination), or an importable
    `"module:name"` or module-level object (its name is kept). All members use the same."""

    rack_id: types.OptionalLabel = None
    """Rack or zone of this process; brokers of the same one are read from, copies are kept in others."""

    client_tags: types.Tags = Field(default_factory=_empty)
    """Labels of this process, `{"zone": "a"}`; copies of a store are spread over different values."""

    input_partitioners: types.Partitioners = Field(default_factory=_empty)
    """Partitioners of input topics that were not written by Kafka's own (`murmur2`), `{"orders": "crc32"}`: `crc32`
    (librdkafka's default), `fnv1a`, or `unknown` (nothing is checked). Repartition topics that are joined with the
    topic follow it."""

    drain_timeout_ms: types.AnyDuration = 25_000
    """Milliseconds a stopping worker keeps its tasks running while they move to other members."""

    statestore_cache_max_bytes: types.AnySize = 10 * _MIB
    """Bytes of updates held back from downstream per worker, so that a hot key is forwarded with a commit, not at each update; 0
    forwards every update."""

    buffered_bytes_per_partition: types.PositiveSize = 16 * _MIB
    """Bytes of unprocessed input per partition at which reading it pauses."""

    buffered_records_per_partition: types.PositiveCount = 100_000
    """Records of unprocessed input per partition at which reading it pauses."""

    max_poll_records: types.PositiveCount = 10_000
    """Records taken from the consumer at once, and so the largest batch an operator sees."""

    max_task_idle_ms: types.IdleDuration = 0
    """Milliseconds a task that merges inputs waits for an empty one, for better order; 0 waits only for what the
    broker is known to have, -1 never waits."""

    default_key_serde: types.OptionalSerde = None
    """Serde of keys where neither the operator nor its upstream gives one: a serde, a plain type (`str`), or its
    name (`string`, `int64`, ..., `module:name`)."""

    default_value_serde: types.OptionalSerde = None
    """Serde of values where neither the operator nor its upstream gives one; as `default_key_serde`."""

    default_timestamp_extractor: types.Extractor = None
    """`(record, highest) -> ms` for sources without their own, where `highest` is the partition's largest timestamp
    so far or -1; None takes the record's own timestamp and fails on a negative one. Kafka Streams' extractors also by
    name, as `WallclockTimestampExtractor`."""

    processor_wrapper_class: types.Wrapper = None
    """A `ProcessorWrapper` class (or an object of one, or its `"module:name"`) that wraps what every node runs: for
    tracing, timing and tests."""

    deserialization_exception_handler: types.Handler = "fail"
    """What happens to an input record that can't be read: `fail`, `continue` (skip it), or a function of
    `(context, record, exception)`, also as `"module:name"`."""

    processing_exception_handler: types.Handler = "fail"
    """What happens to a record whose processing raised; as `deserialization_exception_handler`."""

    processing_exception_handler_global_enabled: types.Boolean = False
    """Ask the processing handler about processors that fill global stores, too; without it their errors end the worker, as
    in Kafka Streams before 5.0."""

    production_exception_handler: types.Handler = "fail"
    """What happens to an output record the broker refuses; as `deserialization_exception_handler`, and a function
    may also answer `retry`. Time-outs are retried in any case."""

    dead_letter_queue_topic: types.OptionalTopic = None
    """Topic to which the named handlers also write the input record of what failed, with `__streams.errors.*` headers."""

    late_records_to_dead_letter_queue: types.Boolean = False
    """Write records that windows, stream-stream joins and versioned tables drop because they come too late to
    `dead_letter_queue_topic`, too, with `__streams.errors.exception` `tidewheel.tasks.errors.LateRecordError`."""

    auto_offset_reset: types.OffsetReset = "earliest"
    """Where to start in a partition at the application's first start, `earliest` or `latest`, unless the source says. A
    partition or topic that appears later is read from its beginning."""

    accept_offsets: types.Boolean = False
    """Start at committed offsets that this application did not commit, and without those that are gone. Otherwise such a
    start is refused, as it would skip or repeat records. For one start; `tidewheel run --accept-offsets` sets it, too."""

    topology_optimization: types.Optimization = "all"
    """Optimisations that `build` applies: `all`, `none`, or a set of `merge_repartition_topics`,
    `reuse_ktable_source_topics`, `single_store_self_join`. They change topic names, so keep the choice of a running
    application."""

    ensure_explicit_naming: types.Boolean = False
    """Refuse to build a topology whose stores or internal topics have generated names, which change with the code."""

    dsl_store_suppliers: types.StoreSuppliers = "rocksdb"
    """How stores of the DSL are kept where `Materialized` has no `store_type`: `rocksdb`, `in_memory`, or a
    `DslStoreSuppliers` class (or an object of one, or its `"module:name"`) that says it per store."""

    dsl_store_format: types.StoreFormat = "DEFAULT"
    """What rows of the DSL's tables keep where `Materialized` does not say: `DEFAULT`, or `HEADERS` for the headers of
    the record that set them, too."""

    emit_interval_ms: types.AnyDuration = 1_000
    """Milliseconds between looks for join non-matches and results on window close, at most; 0 looks at every record."""

    replication_factor: types.Replicas = -1
    """Replicas of internal topics that are created; -1 takes the cluster's default."""

    repartition_topic_config: types.TopicConfig = Field(default_factory=_empty)
    """Topic settings of repartition topics that are created, `{"retention.ms": "86400000"}`; `topic_config=` of `repartition()`
    overrides them."""

    default_interactive_query_isolation_level: types.IsolationOption = "read_committed"
    """What `KafkaStreams.store` reads where the call does not say it: `read_committed`, or `read_uncommitted` to see what running
    tasks have changed since their last commit, too."""

    interactive_query_timeout_ms: types.PositiveDuration = 5_000
    """Milliseconds that a query of uncommitted rows waits for the worker, which answers between batches."""

    application_server: types.OptionalEndpoint = None
    """`host:port` at which other members reach this process's interactive queries."""

    rocksdb: types.RocksDB = Field(default_factory=RocksDBOptions)
    """Memory and compaction settings of all databases of a process, `RocksDBOptions(...)` or a table of its fields."""

    snapshot_location: types.OptionalLocation = None
    """Directory or fsspec URL (`s3://bucket/path`) of snapshots of state (`tidewheel snapshot`): stores that have nothing
    usable on disk start from the newest one, and read the changelog from there."""

    consumer: types.ConsumerProperties = Field(default_factory=_empty)
    """librdkafka properties for every consumer (input, restore, control). Values `file:/path` and `env:NAME` are read
    when a client is made; use them for secrets."""

    producer: types.ProducerProperties = Field(default_factory=_empty)
    """librdkafka properties for every producer; as `consumer`."""

    admin: types.AdminProperties = Field(default_factory=_empty)
    """librdkafka properties for every admin client; as `consumer`."""

    # Where each setting came from, see `sources.Settings.origins`.
    _origins: dict[str, str] = PrivateAttr(default_factory=dict[str, str])

    def __init__(
        self, collected: Settings | None = None, /, **options: Unpack[StreamsOptions]
    ) -> None:
        """Collect and check settings. `collected` is for `from_toml` and `replace` only."""
        known = type(self).model_fields
        if collected is None:
            collected = collect(known, options, settings_file(os.environ))
        elif not isinstance(collected, Settings):  # pyright: ignore[reportUnnecessaryIsInstance] - users without a type checker
            raise ConfigError("StreamsConfig takes options by keyword: application_id=...")
        try:
            super().__init__(**collected.values)
        except ValidationError as error:
            # Not chained: pydantic's text quotes values.
            raise explained(error, collected, _defaults()) from None
        self._origins.update(collected.origins)
        problems = contradictions(self, collected.origins)
        if problems:
            raise joined(problems)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str], /, **options: Unpack[StreamsOptions]) -> Self:
        r"""Return the settings of a file, under keywords and environment variables as always.

        Raises:
            ConfigError: There is no such file, it is no TOML, or an option in it is unknown or wrong.

        >>> from tempfile import NamedTemporaryFile
        >>> with NamedTemporaryFile(suffix=".toml") as file:
        ...     _ = file.write(b'application_id = "shop"\ncommit_interval_ms = 500')
        ...     file.flush()
        ...     config = StreamsConfig.from_toml(file.name, application_id="shop-2")
        >>> config.application_id, config.commit_interval_ms, config.source_of("application_id")
        ('shop-2', 500, 'keyword')
        """
        return cls(collect(cls.model_fields, options, Path(path).expanduser()))

    def replace(self, **changes: Unpack[StreamsOptions]) -> Self:
        """Return a copy with some options changed and checked. Sources are not read again; tables are replaced whole."""
        changed = collect(type(self).model_fields, changes, None, environ={})
        values = {name: getattr(self, name) for name in self.model_fields_set} | changed.values
        kept = {
            name: origin
            for name, origin in self._origins.items()
            if name.partition(".")[0] not in changed.values
        }
        return type(self)(Settings(values, kept | changed.origins))

    def describe(self) -> list[OptionRow]:
        """Return a row per option (and key of a table): value with secrets hidden, source, description.

        >>> rows = StreamsConfig(application_id="shop").describe()
        >>> [(row.option, row.value, row.source) for row in rows if row.option == "application_id"]
        [('application_id', 'shop', 'keyword')]
        """
        fields = type(self).model_fields
        values = {name: getattr(self, name) for name in fields}
        return list(rows(values, self._origins, attribute_docstrings(StreamsConfig)))

    def source_of(self, option: str) -> str:
        """Return where an option's value came from: "default", "keyword", a variable or a file and key."""
        return self._origins.get(option, DEFAULT)

    def cautions(self) -> list[str]:
        """Return what is allowed but should be said aloud at every start (TLS verification off, ...)."""
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
        """Yield what was set, with secrets hidden; pydantic builds repr, str and rich output from it."""
        for name in type(self).model_fields:
            if name in self.model_fields_set:
                yield name, displayed(name, getattr(self, name))

    def __eq__(self, other: object) -> bool:
        # Where values came from is no part of what they are.
        return isinstance(other, StreamsConfig) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        # Tables can't be hashed; few programs hold two configs of one application.
        return hash(self.application_id)


def given_config(config: object, what: str) -> StreamsConfig:
    """Return the settings that `what` was given; raises `ConfigError` for anything else, such as a dict.

    >>> given_config({"application_id": "shop"}, "KafkaStreams")
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
