"""Invalid arguments are rejected immediately: the message names call, argument and accepted values."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import pytest

from tidewheel.state_stores.errors import InvalidStateStoreError
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.definitions.materialized import Materialized
from tidewheel.streams.definitions.retrying import retrying
from tidewheel.streams.definitions.stores import Stores
from tidewheel.streams.dsl.builder import StreamsBuilder
from tidewheel.streams.errors import ConfigError, RecordFailedError, StreamsError, TopologyError
from tidewheel.streams.kafka_streams import KafkaStreams
from tidewheel.streams.serdes import Serdes
from tidewheel.streams.topology.topology import Topology
from tidewheel.streams.windows import JoinWindows
from tidewheel.tasks.processing.api.processor import FixedKeyProcessor, Processor, PunctuationType
from tidewheel.tasks.processing.engine.transformer import ValueTransformerWithKey
from tidewheel.testing import TopologyTestDriver

TEXT: Final[Any] = {"key_serde": str, "value_serde": str}
HERE: Final = r"\(tests/streams/test_bad_input.py:\d+\)"
CONFIG: Final = StreamsConfig(application_id="app", bootstrap_servers="unused:9092")


class Keeping(Processor[str, str, str, str]):
    def process(self, record: Any) -> None:
        pass


class KeepingKeys(FixedKeyProcessor[str, str, str]):
    def process(self, record: Any) -> None:
        pass


class Same(ValueTransformerWithKey[str, str, str]):
    def transform(self, key: str, value: str | None) -> str | None:
        return value


#: Untyped, for wrong calls.
TRANSFORMER: Final[Any] = Same
ANYTHING: Final[Any] = Serdes
NOT_A_FLAG: Final[Any] = "x"


def copying() -> Topology:
    builder = StreamsBuilder()
    builder.stream("in", **TEXT).to("out")
    builder.table("table", **TEXT, store="rows")
    return builder.build()


def stream() -> Any:
    return StreamsBuilder().stream("in", **TEXT)


def table() -> Any:
    return StreamsBuilder().table("t", **TEXT)


@pytest.mark.parametrize("config", [{}, "x", 5, object(), timedelta(seconds=1)])
def test_a_topology_is_built_with_settings_only(config: Any) -> None:
    builder = StreamsBuilder()
    builder.stream("in", **TEXT)
    with pytest.raises(ConfigError, match=f"build {HERE}: the config is of type .*; give StreamsC"):
        builder.build(config)


@pytest.mark.parametrize("bad", [None, 5, "no", {}, object()])
@pytest.mark.parametrize("option", ["caching", "logging"])
def test_switches_of_stores_are_bools(option: str, bad: Any) -> None:
    message = f"{HERE}: {option}=.* is of type {type(bad).__name__}; give True or False"
    with pytest.raises(TopologyError, match=f"Materialized {message}"):
        Materialized(**{option: bad})
    with pytest.raises(TopologyError, match=f"key_value {message}"):
        Stores.key_value("s", **TEXT, **{option: bad})


def test_other_switches_are_bools() -> None:
    with pytest.raises(TopologyError, match=r"persistent='no' is of type str; give True or False"):
        Stores.session("s", retention=5, **TEXT, persistent="no")  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="retain_duplicates=1 is of type int"):
        Stores.window("s", retention=5, window_size=5, **TEXT, retain_duplicates=1)  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="changelog_config is of type list; give a mapping"):
        Stores.key_value("s", **TEXT, changelog_config=[])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make", [Materialized, lambda **options: Stores.lru("s", max_entries=1, **TEXT, **options)]
)
def test_without_a_changelog_there_are_no_settings_of_one(make: Callable[..., Any]) -> None:
    with pytest.raises(TopologyError, match=r"logging=False means .* leave one of them out"):
        make(logging=False, changelog_config={"retention.ms": "1"})


@pytest.mark.parametrize(
    "use",
    [
        lambda store: StreamsBuilder().table("t", **TEXT, store=store),
        lambda store: StreamsBuilder().global_table("t", **TEXT, store=store),
        lambda store: stream().to_table(store=store),
        lambda store: StreamsBuilder().table("t", **TEXT).filter(bool, store=store),
        lambda store: StreamsBuilder().table("t", **TEXT).map_values(str.upper, store=store),
    ],
)
def test_tables_without_windows_have_no_retention(use: Callable[..., Any]) -> None:
    with pytest.raises(TopologyError, match=f"{HERE}: retention= is for windowed tables; .*ttl="):
        use(Materialized(retention=timedelta(hours=1)))


def test_a_global_table_has_no_changelog() -> None:
    store: Any = Materialized(changelog_config={"retention.ms": "1"})
    with pytest.raises(TopologyError, match=f"global_table {HERE}: .* leave changelog_config= out"):
        StreamsBuilder().global_table("t", **TEXT, store=store)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: stream().process(lambda: 5), "object of type int, not a Processor; give a"),
        (lambda: stream().process_values(lambda: "x"), "type str, not a FixedKeyProcessor; give a"),
        (lambda: stream().process_values(Keeping), "derive it from FixedKeyProcessor, or give it to process()"),
        (lambda: stream().process(KeepingKeys), "derive it from Processor, or give it to process_values()"),
        (
            lambda: table().transform_values(Keeping),
            "derive it from ValueTransformerWithKey, or give it to process() of a stream",
        ),
        (
            lambda: StreamsBuilder().add_global_store(Stores.key_value("s", **TEXT), "t", TRANSFORMER),
            "derive it from Processor, or give it to transform_values() of a table",
        ),
    ],
)  # fmt: skip
def test_the_error_of_a_wrong_supplier_names_the_required_type(
    use: Callable[[], Any], message: str
) -> None:
    with pytest.raises(TopologyError, match=f"{HERE}: the supplier makes .*{re.escape(message)}"):
        use()


def test_the_error_of_a_join_names_the_side_without_a_serde() -> None:
    def joined(**serdes: Any) -> Topology:
        builder = StreamsBuilder()
        left = builder.stream("l", **TEXT).map(lambda key, value: (key, value))
        right = builder.stream("r", **TEXT).map_values(len)
        left.join(right, lambda a, b: a, within=JoinWindows(10), **serdes).to("out", **TEXT)
        return builder.build()

    for given, message in (
        ({}, r"no key serde; give key_serde= to join\(\), or set default_key_serde"),
        ({"key_serde": str}, r"no value serde; give value_serde= to join\(\), for .* this stream"),
        (TEXT, r"no value serde; give other_value_serde= to join\(\), for .* the other stream"),
    ):
        with pytest.raises(TopologyError, match=f"{HERE}: {message}"):
            joined(**given)
    assert joined(**TEXT, other_value_serde=int).store_names


def test_other_arguments_of_calls() -> None:
    with pytest.raises(TopologyError, match=f"print {HERE}: label is of type int; give a str"):
        stream().print(5)
    with pytest.raises(TopologyError, match="retrying: the function is of type int; give a call"):
        retrying(5)  # type: ignore[call-overload]
    with pytest.raises(TopologyError, match="retrying: on='x' is no class of errors; give one"):
        retrying(str.upper, on="x")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda s: s.flat_map_values(lambda value: 5), "flat_map_values {here}: .* must return an iterable of results, not int; return a list"),
        (lambda s: s.flat_map(lambda key, value: 5), "flat_map {here}: .* must return an iterable of results, not int"),
        (lambda s: s.map(lambda key, value: 5), r"map {here}: .* must return \(key, value\), not int"),
        (lambda s: s.map_values_batch(lambda values: 5), "map_values_batch {here}: .* returned no values but int"),
    ],
)  # fmt: skip
def test_the_error_of_a_wrong_result_names_operator_line_and_record(
    use: Callable[[Any], Any], message: str
) -> None:
    builder = StreamsBuilder()
    use(builder.stream("in", **TEXT)).to("out", **TEXT)
    topology = builder.build()
    wanted = "in-0 offset 0.*" + message.format(here=HERE)
    with TopologyTestDriver(topology) as driver:
        source = driver.create_input_topic("in", **TEXT)
        with pytest.raises(RecordFailedError, match=wanted):
            source.pipe_input("a", "b")
    config = CONFIG.replace(processing_exception_handler="continue")
    with TopologyTestDriver(topology, config) as driver:
        driver.create_input_topic("in", **TEXT).pipe_input("a", "b")
        assert driver.create_output_topic("out", **TEXT).is_empty


def test_an_error_in_the_generator_of_a_flat_mapper_is_raised_unchanged() -> None:
    def broken(value: str) -> Any:
        yield value
        raise TypeError("of its own")

    builder = StreamsBuilder()
    builder.stream("in", **TEXT).flat_map_values(broken).to("out", **TEXT)
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.create_input_topic("in", **TEXT)
        with pytest.raises(RecordFailedError, match="TypeError: of its own"):
            source.pipe_input("a", "b")


@pytest.mark.parametrize("answer", ["x", 1.5, object(), {"a": 1}])
def test_the_error_of_an_invalid_partition_names_the_required_result(answer: Any) -> None:
    builder = StreamsBuilder()
    builder.stream("in", **TEXT).to("out", partitioner=lambda *_: answer)
    message = (
        rf"the partitioner of KSTREAM-SINK-\d+ {HERE} returned an .*; return a partition's number"
    )
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.create_input_topic("in", **TEXT)
        with pytest.raises(RecordFailedError, match=message):
            source.pipe_input("a", "b")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.schedule(None, PunctuationType.STREAM_TIME, print), "interval can't be of type NoneType"),
        (lambda c: c.schedule("1 s x", PunctuationType.STREAM_TIME, print), "interval '1 s x' is not a duration"),
        (lambda c: c.schedule(5, {}, print), "no clock {}; give PunctuationType.STREAM_TIME"),
        (lambda c: c.schedule(5, PunctuationType.STREAM_TIME, 7), "callback must be a plain function .* of type int"),
        (lambda c: c.get_state_store([]), "a store's name is a str, not list"),
        (lambda c: c.app_configs_with_prefix(5), "takes a str, as in 'consumer.', not int"),
    ],
)  # fmt: skip
def test_calls_of_processors_are_checked(call: Callable[[Any], Any], message: str) -> None:
    class Asking(Processor[str, str, str, str]):
        def process(self, record: Any) -> None:
            call(self.context)

    topology = Topology().add_source("read", "in", **TEXT).add_processor("ask", Asking, ["read"])
    with TopologyTestDriver(topology) as driver:
        source = driver.create_input_topic("in", **TEXT)
        with pytest.raises(RecordFailedError, match=f"at ask .*{message}"):
            source.pipe_input("a", "b")


def stored() -> Topology:
    topology = Topology().add_source("read", "in", **TEXT).add_processor("keep", Keeping, ["read"])
    for store in (
        Stores.key_value("plain", **TEXT),
        Stores.window("window", retention=1_000, window_size=10, **TEXT),
        Stores.session("session", retention=1_000, **TEXT),
        Stores.versioned("versioned", history_retention=1_000, **TEXT),
    ):
        topology.add_state_store(store, ["keep"])
    return topology


@pytest.mark.parametrize("time", [timedelta(seconds=1), "x", 1.5, True, [], object()])
def test_times_of_reads_are_milliseconds(time: Any) -> None:
    with TopologyTestDriver(stored()) as driver:
        window, session, versioned = map(driver.get_state_store, ("window", "session", "versioned"))
        calls: list[tuple[str, Callable[[], Any]]] = [
            ("from_ms", lambda: window.fetch("a", time)),
            ("to_ms", lambda: window.fetch("a", 0, time)),
            ("from_ms", lambda: window.backward_fetch("a", time, 5)),
            ("from_ms", lambda: window.fetch_all(time, 5)),
            ("to_ms", lambda: window.fetch_range("a", "b", 0, time)),
            ("earliest_end", lambda: session.find_sessions("a", time, 5)),
            ("latest_start", lambda: session.backward_find_sessions("a", 0, time)),
            ("start", lambda: session.fetch_session("a", time, 5)),
            ("as_of", lambda: versioned.get("a", as_of=time)),
            ("from_ms", lambda: versioned.history("a", time)),
        ]
        for name, call in calls:
            with pytest.raises(
                ValueError, match=rf"store \w+: {name}=.* no time; .* an int of mil"
            ):
                call()


@pytest.mark.parametrize("entries", [None, 5, "ab", [5], [("a", "b", "c")]])
def test_arguments_of_put_all_and_prefix_scan_are_checked(entries: Any) -> None:
    with TopologyTestDriver(stored()) as driver:
        store = driver.get_state_store("plain")
        with pytest.raises(TypeError, match=r"store plain: put_all\(\) takes a mapping or \(key"):
            store.put_all(entries)
        with pytest.raises(TypeError, match="store plain: prefix_serde is of type int; give a"):
            store.prefix_scan("a", 5)


@pytest.mark.parametrize("name", ["window", "session", "versioned"])
def test_a_key_of_the_wrong_type_names_the_store(name: str) -> None:
    with TopologyTestDriver(stored()) as driver:
        store = driver.get_state_store(name)
        with pytest.raises(StreamsError, match=f"store {name}: string serde.*expected str, got"):
            store.get(5) if name == "versioned" else store.fetch(5, *([0] * (name == "window")))


@pytest.mark.parametrize("bad", ["x", {}, [], 1.5, True, object()])
def test_times_of_the_driver_are_checked(bad: Any) -> None:
    with pytest.raises(StreamsError, match=r"initial_wall_clock_ms=.* is no time; give int ms"):
        TopologyTestDriver(copying(), initial_wall_clock_ms=bad)
    with TopologyTestDriver(copying()) as driver:
        with pytest.raises(StreamsError, match=r"start_timestamp_ms=.* is no time; give int ms"):
            driver.create_input_topic("in", **TEXT, start_timestamp_ms=bad)
        with pytest.raises(StreamsError, match=r"auto_advance_ms=.* is not a duration; "):
            driver.create_input_topic("in", **TEXT, auto_advance_ms=bad)
        with pytest.raises(StreamsError, match=r"duration=.* is not a duration; "):
            driver.advance_wall_clock_time(bad)
        with pytest.raises(StreamsError, match=r"duration=.* is not a duration; "):
            driver.create_input_topic("in", **TEXT).advance_time(bad)


def test_records_and_names_of_the_driver_are_checked() -> None:
    with TopologyTestDriver(copying()) as driver:
        source = driver.create_input_topic("in", **TEXT)
        with pytest.raises(StreamsError, match=r"object of type int has no \(key, value\); give a"):
            source.pipe_key_values(5)  # type: ignore[arg-type]
        with pytest.raises(StreamsError, match=r"pipe_key_values: item 1 is of type str; give \(k"):
            source.pipe_key_values([("a", "b"), "ab"])  # type: ignore[list-item]
        with pytest.raises(
            StreamsError, match=r"pipe_batch: item 0 is of .*; give \(key, value, t"
        ):
            source.pipe_batch([("a", "b")])  # type: ignore[list-item]
        bad: Any
        for bad in ({}, [], None):
            with pytest.raises(StreamsError, match=r"topic is of type .*, not a name"):
                driver.create_input_topic(bad, **TEXT)
            with pytest.raises(StreamsError, match=r"topic is of type .*, not a name"):
                driver.create_output_topic(bad, **TEXT)
            with pytest.raises(StreamsError, match=r"there is no store .*stores: rows"):
                driver.get_state_store(bad)


def test_every_call_of_a_closed_driver_is_an_error() -> None:
    driver = TopologyTestDriver(copying())
    source = driver.create_input_topic("in", **TEXT)
    output = driver.create_output_topic("out", **TEXT)
    store = driver.get_state_store("rows")
    source.pipe_input("a", "b")
    driver.close()
    calls: tuple[Callable[[], Any], ...] = (
        lambda: source.pipe_input("a", "b"),
        lambda: source.advance_time(5),
        output.read_value,
        output.read_records,
        lambda: output.is_empty,
        lambda: driver.get_state_store("rows"),
        lambda: driver.create_input_topic("in", **TEXT),
        lambda: driver.create_output_topic("out", **TEXT),
        lambda: driver.advance_wall_clock_time(5),
    )
    for call in calls:
        with pytest.raises(StreamsError, match="the driver is closed; make a new one"):
            call()
    for call in (lambda: store.get("a"), lambda: store.put("a", None), lambda: len(store)):
        with pytest.raises(InvalidStateStoreError, match="store rows is closed"):
            call()
    driver.close()


@pytest.mark.parametrize("name", ["window", "session", "versioned"])
def test_stores_of_all_kinds_are_closed(name: str) -> None:
    driver = TopologyTestDriver(stored())
    store = driver.get_state_store(name)
    driver.close()
    with pytest.raises(InvalidStateStoreError, match=f"store {name} is closed"):
        list(store.history("a") if name == "versioned" else store.fetch("a", *([0] * (name == "window"))))  # fmt: skip


class Progress:
    def on_restore(self, event: Any) -> None: ...

    def on_standby_update(self, event: Any) -> None: ...


@pytest.mark.parametrize(
    "setter",
    [
        "set_state_listener",
        "set_uncaught_exception_handler",
        "set_restore_listener",
        "set_standby_update_listener",
    ],
)
def test_listeners_are_functions_or_objects_with_the_listener_method(setter: str) -> None:
    app = KafkaStreams(copying(), CONFIG)
    bad: Any
    for bad in (5, "x", {}, object()):
        with pytest.raises(StreamsError, match=f"{setter}: the listener .*is of type .*, not a fu"):
            getattr(app, setter)(bad)
    with pytest.raises(StreamsError, match=f"{setter}: the listener .*must take [12] parameters?:"):
        getattr(app, setter)(lambda: None)
    with pytest.raises(
        StreamsError, match=r"is the class Progress; give an object .* Progress\(\)"
    ):
        getattr(app, setter)(Progress)
    getattr(app, setter)(Progress() if "e_listener" in setter and "state" not in setter else lambda *_: None)  # fmt: skip


def test_calls_of_an_application_are_checked() -> None:
    app = KafkaStreams(copying(), CONFIG)
    with pytest.raises(StreamsError, match="close: timeout='x' is not a duration"):
        app.close("x")
    with pytest.raises(StreamsError, match="close: leave_group=0 is of type int; give True or Fa"):
        app.close(leave_group=0)  # type: ignore[arg-type]
    with pytest.raises(StreamsError, match="subtopologies: an object of type int has no numbers"):
        app.pause(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: ANYTHING.json({}), r"json\({}\): can't decode into this type"),
        (lambda: ANYTHING.msgpack([]), r"msgpack\(\[\]\): can't decode into this type"),
        (lambda: ANYTHING.windowed(str, {}), "Serdes.windowed: size={} is not a duration"),
        (
            lambda: copying().describe(execution=NOT_A_FLAG),
            "execution='x' is of type str; give True or",
        ),
    ],
)
def test_arguments_of_serdes_and_descriptions_are_checked(
    made: Callable[[], object], said: str
) -> None:
    with pytest.raises(TopologyError, match=said):
        made()
