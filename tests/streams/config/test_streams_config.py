import copy
import dataclasses
import re
from collections.abc import Mapping
from datetime import timedelta
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from tests.streams.config import objects
from tidewheel.state_stores.rocksdb.options import RocksDBOptions
from tidewheel.streams.config import StreamsConfig, StreamsOptions, default_state_dir
from tidewheel.streams.config.display import attribute_docstrings
from tidewheel.streams.errors import ConfigError
from tidewheel.streams.serdes import Serdes

MIB = 1024 * 1024
#: Defaults that users rely on; a new option needs no entry.
DOCUMENTED: dict[str, Any] = {
    "bootstrap_servers": "localhost:9092", "processing_guarantee": "exactly_once", "commit_interval_ms": 100,
    "num_stream_threads": "auto", "parallelising_factor": 1, "partition_shards": 1, "num_standby_replicas": 0, "max_warmup_replicas": 2,
    "acceptable_recovery_lag": 10_000, "heartbeat_interval_ms": 500, "session_timeout_ms": 3_000,
    "worker_hang_timeout_ms": 30_000, "max_call_ms": 300_000, "input_partitioners": {}, "rejoin_timeout_ms": 60_000, "task_move_interval_ms": 0, "settling_ms": 6_000,
    "statestore_uncommitted_max_bytes": 64 * MIB, "state_cleanup_delay_ms": 600_000,
    "repartition_purge_interval_ms": 30_000, "state_dir_exclusive": False, "group_instance_id": None,
    "task_assignor": "sticky", "rack_id": None, "client_tags": {}, "drain_timeout_ms": 25_000,
    "statestore_cache_max_bytes": 10 * MIB, "buffered_bytes_per_partition": 16 * MIB,
    "buffered_records_per_partition": 100_000, "max_poll_records": 10_000, "max_task_idle_ms": 0,
    "default_key_serde": None, "default_value_serde": None, "default_timestamp_extractor": None,
    "processor_wrapper_class": None,
    "deserialization_exception_handler": "fail", "processing_exception_handler": "fail",
    "processing_exception_handler_global_enabled": False, "dsl_store_suppliers": "rocksdb",
    "dsl_store_format": "DEFAULT",
    "production_exception_handler": "fail", "dead_letter_queue_topic": None,
    "late_records_to_dead_letter_queue": False, "auto_offset_reset": "earliest", "accept_offsets": False,
    "topology_optimization": "all", "ensure_explicit_naming": False, "emit_interval_ms": 1_000,
    "replication_factor": -1, "repartition_topic_config": {}, "default_interactive_query_isolation_level": "read_committed",
    "interactive_query_timeout_ms": 5_000, "application_server": None, "rocksdb": RocksDBOptions(), "snapshot_location": None,
    "consumer": {}, "producer": {}, "admin": {},
}  # fmt: skip


def config(**options: Any) -> StreamsConfig:
    return StreamsConfig(application_id="shop", **options)


def test_defaults_are_the_documented_ones() -> None:
    made = config()

    assert {name: getattr(made, name) for name in DOCUMENTED} == DOCUMENTED
    assert made.state_dir == default_state_dir()


def test_every_option_is_described_and_accepted_by_keyword() -> None:
    fields = set(StreamsConfig.model_fields)

    assert {name for name, text in attribute_docstrings(StreamsConfig).items() if text} == fields
    assert set(get_type_hints(StreamsOptions)) == fields


def test_defaults_are_accepted_as_given_values() -> None:
    made = config()

    options = set(StreamsConfig.model_fields) - {"application_id"}
    assert config(**{name: getattr(made, name) for name in options}) == made


def test_state_survives_reboots_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("HOME", "/home/user")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert default_state_dir() == Path("/home/user/.local/state/tidewheel")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert default_state_dir() == Path("/home/user/.local/state/tidewheel")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_state_dir() == tmp_path / "tidewheel"
    monkeypatch.setattr("sys.platform", "darwin")
    assert default_state_dir() == Path("/home/user/Library/Application Support/tidewheel")


@pytest.mark.parametrize(
    ("option", "given", "value"),
    [
        ("application_id", "a.b_c-1", "a.b_c-1"),
        ("bootstrap_servers", "a:1, b:2", "a:1,b:2"),
        ("bootstrap_servers", ["a:1", "[::1]:9092", "SSL://b:2"], "a:1,[::1]:9092,SSL://b:2"),
        ("commit_interval_ms", timedelta(seconds=1), 1_000),
        ("commit_interval_ms", "30s", 30_000),
        ("commit_interval_ms", 0, 0),
        ("commit_interval_ms", "250", 250),
        ("max_task_idle_ms", -1, -1),
        ("max_task_idle_ms", "-1", -1),
        ("partition_shards", 64, 64),
        ("partition_shards", "4", 4),
        ("num_stream_threads", 4, 4),
        ("num_stream_threads", "4", 4),
        ("num_stream_threads", "auto", "auto"),
        ("acceptable_recovery_lag", "10_000", 10_000),
        ("statestore_cache_max_bytes", "64 MiB", 64 * MIB),
        ("statestore_cache_max_bytes", "1.5 KiB", 1_536),
        ("statestore_cache_max_bytes", "10MB", 10_000_000),
        ("statestore_cache_max_bytes", "5", 5),
        ("statestore_cache_max_bytes", 0, 0),
        ("state_dir_exclusive", "true", True),
        ("state_dir_exclusive", "off", False),
        ("ensure_explicit_naming", True, True),
        ("task_assignor", "fixed", "fixed"),
        ("task_assignor", "high_availability", "high_availability"),
        ("task_assignor", "shop.placement:spread", "shop.placement:spread"),
        ("task_assignor", objects.assignor, "tests.streams.config.objects:assignor"),
        ("client_tags", {"zone": "eu west"}, {"zone": "eu west"}),
        ("default_key_serde", str, Serdes.string()),
        ("default_key_serde", "int64", Serdes.int64()),
        ("default_value_serde", objects.CELSIUS, objects.CELSIUS),
        ("default_value_serde", "tests.streams.config.objects:CELSIUS", objects.CELSIUS),
        ("default_timestamp_extractor", objects.extractor, objects.extractor),
        ("default_timestamp_extractor", "tests.streams.config.objects:extractor", objects.extractor),
        ("production_exception_handler", "continue", "continue"),
        ("production_exception_handler", objects.handler, objects.handler),
        ("production_exception_handler", "tests.streams.config.objects:handler", objects.handler),
        ("topology_optimization", "none", "none"),
        ("topology_optimization", {"single.store.self.join"}, frozenset({"single_store_self_join"})),
        (
            "topology_optimization",
            "merge_repartition_topics, reuse_ktable_source_topics",
            frozenset({"merge_repartition_topics", "reuse_ktable_source_topics"}),
        ),
        ("replication_factor", "3", 3),
        ("default_interactive_query_isolation_level", "read_uncommitted", "read_uncommitted"),
        ("application_server", "host:80", "host:80"),
        ("snapshot_location", Path("/backup"), "/backup"),
        ("snapshot_location", "s3://bucket/x", "s3://bucket/x"),
        ("snapshot_location", "file:///all states", "file:///all states"),
        ("snapshot_location", "simplecache::s3://bucket/x", "simplecache::s3://bucket/x"),
        ("snapshot_location", "/a:b", "/a:b"),
        ("snapshot_location", "~/snapshots", str(Path.home() / "snapshots")),
        ("state_dir", "/data", Path("/data")),
        ("rack_id", "eu-west-1a", "eu-west-1a"),
        ("dead_letter_queue_topic", "_dead.letters", "_dead.letters"),
    ],
)  # fmt: skip
def test_values_in_all_spellings(option: str, given: Any, value: Any) -> None:
    made = StreamsConfig(**{"application_id": "shop", option: given})

    assert getattr(made, option) == value
    assert type(getattr(made, option)) is type(value) or isinstance(value, Mapping)


@pytest.mark.parametrize(
    ("option", "given", "reason"),
    [
        ("application_id", "", "1 to 200 letters"),
        ("application_id", "../etc", "starting with a letter or digit"),
        ("application_id", "a/b", "1 to 200 letters"),
        ("application_id", "a" * 201, "1 to 200 letters"),
        ("application_id", "a\n", "1 to 200 letters"),
        ("application_id", None, "1 to 200 letters"),
        ("bootstrap_servers", "", "brokers as 'host:port,host:port'"),
        ("bootstrap_servers", "a:1,,b:2", "brokers as"),
        ("bootstrap_servers", "a:99999", "brokers as"),
        ("bootstrap_servers", "rubbish", "brokers as"),
        ("bootstrap_servers", "a:1,b", "such as localhost:9092"),
        ("bootstrap_servers", [], "brokers as"),
        ("state_dir", "", "path of a directory"),
        ("processing_guarantee", "exactly_onc", "did you mean exactly_once?"),
        ("processing_guarantee", "exactly_once_v2", "must be one of 'exactly_once', 'at_least_once'"),
        ("commit_interval_ms", -1, "duration of at least 0 ms"),
        ("commit_interval_ms", 1.5, "duration"),
        ("commit_interval_ms", True, "duration"),
        ("commit_interval_ms", "soon", "is not a duration; write it as"),
        ("commit_interval_ms", timedelta(microseconds=1), "duration"),
        ("heartbeat_interval_ms", 49, "at least 50 ms"),
        ("session_timeout_ms", 299, "at least 300 ms"),
        ("worker_hang_timeout_ms", 0, "at least 1 ms"),
        ("max_task_idle_ms", -2, "at least -1 ms"),
        ("partition_shards", 0, "a power of two from 1 to 64"),
        ("partition_shards", 3, "a power of two from 1 to 64"),
        ("partition_shards", "128", "a power of two from 1 to 64"),
        ("partition_shards", True, "a power of two from 1 to 64"),
        ("partition_shards", "two", "a power of two from 1 to 64"),
        ("num_stream_threads", 0, "whole number between 1 and 256, or 'auto'"),
        ("num_stream_threads", 257, "between 1 and 256"),
        ("num_stream_threads", "many", "or 'auto'"),
        ("num_stream_threads", True, "whole number"),
        ("parallelising_factor", 257, "between 1 and 256"),
        ("parallelising_factor", "auto", "between 1 and 256"),
        ("num_standby_replicas", -1, "at least 0"),
        ("max_warmup_replicas", 0, "at least 1"),
        ("buffered_records_per_partition", 0.5, "whole number"),
        ("statestore_cache_max_bytes", "10 miles", 'as 1048576 or "64 MiB"'),
        ("statestore_cache_max_bytes", -1, "at least 0 bytes"),
        ("buffered_bytes_per_partition", 0, "at least 1 bytes"),
        ("state_dir_exclusive", "perhaps", "true or false"),
        ("state_dir_exclusive", 1, "true or false"),
        ("group_instance_id", "a b", "1 to 200 letters"),
        ("rack_id", "", "printable characters"),
        ("client_tags", "zone", "table of texts"),
        ("client_tags", {"zone": 5}, "printable characters"),
        ("client_tags", {"a b": "x"}, "1 to 200 letters"),
        ("task_assignor", "stiky", "did you mean sticky?"),
        ("task_assignor", lambda members: members, "is a lambda, and other processes can't import it"),
        ("task_assignor", 5, "must be one of 'sticky', 'high_availability', 'round_robin', 'fixed'"),
        ("default_key_serde", "strin", "did you mean string?"),
        ("default_key_serde", dict, "give Serdes.json(dict)"),
        ("default_key_serde", "nowhere:serde", "can't import module 'nowhere'"),
        ("default_key_serde", "json:serde", "module 'json' has no 'serde'"),
        ("default_timestamp_extractor", lambda record: 0, "must be a function (record, highest timestamp so far)"),
        ("default_timestamp_extractor", objects.async_extractor, "must be a plain function"),
        ("default_timestamp_extractor", "wallclock", 'or the "module:name" of one'),
        ("production_exception_handler", "retry", "'fail', 'continue' or a function"),
        ("production_exception_handler", lambda error: None, "can't be called so"),
        ("production_exception_handler", 5, "'fail', 'continue' or a function"),
        ("dead_letter_queue_topic", "a/b", "must be a topic name"),
        ("dead_letter_queue_topic", "..", "must be a topic name"),
        ("auto_offset_reset", "none", "must be one of 'earliest', 'latest'"),
        ("topology_optimization", {"reuse"}, "must be one of 'all', 'none', 'merge_repartition_topics'"),
        ("topology_optimization", 5, "must be one of 'all'"),
        ("replication_factor", 0, "from 1, or -1"),
        ("replication_factor", "three", "from 1, or -1"),
        ("default_interactive_query_isolation_level", "serializable", "'read_committed', 'read_uncommitted'"),
        ("interactive_query_timeout_ms", 0, "must be"),
        ("application_server", "host", "'host:port'"),
        ("snapshot_location", 5, "fsspec URL"),
        ("snapshot_location", "s3:/bucket/x", "two slashes"),
        ("snapshot_location", "file:/snapshots", "two slashes"),
        ("snapshot_location", "file://snapshots/here", "three slashes"),
        ("rocksdb", 5, "RocksDBOptions(...)"),
        ("consumer", "sasl", "table of librdkafka properties"),
        ("consumer", {5: "x"}, "property names are text"),
    ],
)  # fmt: skip
def test_errors_of_bad_values_name_the_valid_values(option: str, given: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)) as caught:
        StreamsConfig(**{"application_id": "shop", option: given})

    assert str(caught.value).startswith(f"{option}=")
    assert "(keyword): " in str(caught.value)
    assert caught.value.__cause__ is None


def test_the_default_is_part_of_the_message() -> None:
    with pytest.raises(ConfigError, match=r"heartbeat_interval_ms=10 \(keyword\).*default is 500$"):
        config(heartbeat_interval_ms=10)


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        StreamsConfig(commit_interval_ms=-1, num_standby_replicas=-1)

    lines = str(caught.value).splitlines()
    assert lines[0] == "3 settings are wrong:"
    assert [line.strip().split("=")[0].split(" ")[0] for line in lines[1:]] == [
        "application_id", "commit_interval_ms", "num_standby_replicas",
    ]  # fmt: skip


def test_the_error_of_a_missing_application_id_lists_the_ways_to_set_it() -> None:
    with pytest.raises(ConfigError) as caught:
        StreamsConfig()

    for place in ("StreamsConfig(application_id=", "TIDEWHEEL_APPLICATION_ID", "tidewheel.toml"):
        assert place in str(caught.value)


def test_options_are_given_by_keyword() -> None:
    with pytest.raises(ConfigError, match="by keyword: application_id="):
        StreamsConfig("shop")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("heartbeat_ms", "session_ms", "fits"),
    [(500, 1_500, True), (500, 1_499, False), (50, 300, True), (101, 300, False)],
)
def test_a_session_is_at_least_three_heartbeats(
    heartbeat_ms: int, session_ms: int, *, fits: bool
) -> None:
    options = {"heartbeat_interval_ms": heartbeat_ms, "session_timeout_ms": session_ms}
    if fits:
        assert config(**options).session_timeout_ms == session_ms
        return
    wanted = (
        rf"^session_timeout_ms={session_ms} \(keyword\): .*3 times heartbeat_interval_ms={heartbeat_ms} \(keyword\)"
        rf".*to {3 * heartbeat_ms} or more"
    )
    with pytest.raises(ConfigError, match=wanted):
        config(**options)


def test_a_config_is_frozen() -> None:
    made = config(consumer={"linger.ms": 5})
    unchecked: Any = made

    with pytest.raises(
        ConfigError, match=r"commit_interval_ms can't be changed: .* `replace\(commit_in"
    ):
        unchecked.commit_interval_ms = 5
    with pytest.raises(ConfigError, match="rack_id can't be changed"):
        del made.rack_id
    assert made.commit_interval_ms == 100
    with pytest.raises(TypeError):
        made.consumer["linger.ms"] = 6  # type: ignore[index]


def test_the_users_table_is_copied() -> None:
    properties = {"linger.ms": 5}
    made = config(producer=properties)
    properties["linger.ms"] = 6

    assert made.producer == {"linger.ms": 5}


def test_replace_checks_and_keeps_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEWHEEL_COMMIT_INTERVAL_MS", "7")
    made = config(consumer={"linger.ms": 5, "fetch.min.bytes": 1})
    monkeypatch.setenv("TIDEWHEEL_COMMIT_INTERVAL_MS", "8")
    monkeypatch.setenv("TIDEWHEEL_RACK_ID", "a")
    changed = made.replace(num_standby_replicas=1, consumer={"linger.ms": 6})

    assert (changed.commit_interval_ms, changed.rack_id) == (7, None)
    assert (changed.num_standby_replicas, made.num_standby_replicas) == (1, 0)
    assert changed.consumer == {"linger.ms": 6}
    assert changed.source_of("commit_interval_ms") == (
        "environment variable TIDEWHEEL_COMMIT_INTERVAL_MS"
    )
    assert changed.source_of("num_standby_replicas") == "keyword"
    with pytest.raises(ConfigError, match="did you mean rack_id"):
        made.replace(rack="a")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="session_timeout_ms=300"):
        made.replace(session_timeout_ms=300)


def test_equality_is_about_values(tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text('application_id = "shop"\ncommit_interval_ms = "1s"\n')

    assert StreamsConfig.from_toml(file) == config(commit_interval_ms=1_000)
    assert hash(StreamsConfig.from_toml(file)) == hash(config(commit_interval_ms=1_000))
    assert config() != config(commit_interval_ms=1_000)
    assert config() != "shop"


def test_a_table_is_converted_to_rocksdb_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEWHEEL_ROCKSDB__BACKGROUND_THREADS", "3")
    made = config(
        rocksdb={"block_cache_bytes": "1 MiB", "write_stall_timeout_ms": "5s", "compression": "lz4"}
    )

    assert made.rocksdb == RocksDBOptions(
        block_cache_bytes=MIB, write_stall_timeout_ms=5_000, compression="lz4", background_threads=3
    )
    rows = {row.option: (row.value, row.source) for row in made.describe()}
    assert rows["rocksdb.compression"] == ("lz4", "keyword")
    assert rows["rocksdb.compaction"] == ("universal", "default")
    assert rows["rocksdb.background_threads"] == (
        "3", "environment variable TIDEWHEEL_ROCKSDB__BACKGROUND_THREADS",
    )  # fmt: skip


def test_each_rocksdb_option_is_described() -> None:
    described = {
        row.option: row.description
        for row in config().describe()
        if row.option.startswith("rocksdb.")
    }

    assert len(set(described.values())) == len(dataclasses.fields(RocksDBOptions)) == len(described)
    assert described["rocksdb.background_threads"] == (
        "Parallel flushes and compactions in the whole process."
    )
    assert described["rocksdb.compression"] == "Compression of files."


def test_a_rocksdb_options_object_is_not_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEWHEEL_ROCKSDB__BACKGROUND_THREADS", "3")
    whole = RocksDBOptions(block_cache_bytes=5)
    made = config(rocksdb=whole)

    assert made.rocksdb == whole
    assert {row.source for row in made.describe() if row.option.startswith("rocksdb")} == {
        "keyword"
    }


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("block_cache_byte", 1, "did you mean block_cache_bytes?"),
        ("nonsense", 1, "known are background_threads, block_bytes"),
        ("block_cache_bytes", "big", "size in bytes"),
        ("write_stall_timeout_ms", "soon", "not a duration"),
        ("block_bytes", 1, "whole number >= 1024"),
        ("compression", "zip", "must be one of 'none', 'lz4'"),
    ],
)
def test_bad_rocksdb_options_name_the_field(field: str, value: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)) as caught:
        config(rocksdb={"background_threads": 3, field: value})

    assert str(caught.value).startswith(f"rocksdb['{field}']={value!r} (keyword): ")


def _pickled(config: StreamsConfig) -> Any:
    """Copy as `multiprocessing` does it: the linter bans pickle, but users' processes use it."""
    return ForkingPickler.loads(ForkingPickler.dumps(config))


@pytest.mark.parametrize("again", [copy.deepcopy, copy.copy, _pickled])
def test_a_config_can_be_copied_and_pickled(again: Any) -> None:
    password = "hun" + "ter2"
    config = StreamsConfig(
        application_id="a",
        bootstrap_servers="b:1",
        kafka={"sasl.password": password},
        client_tags={"team": "x"},
    )
    other = again(config)
    assert other == config
    assert other.kafka["sasl.password"] == password
    assert other.source_of("kafka.sasl.password") == "keyword"
    assert other.source_of("state_dir") == "default"
    assert password not in repr(other)
    with pytest.raises(TypeError):
        other.kafka["linger.ms"] = 5
