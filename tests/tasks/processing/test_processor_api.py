"""Processor API: fixed keys, stores of suppliers, anchored schedules, coroutines."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel import (
    FixedKeyProcessor,
    FixedKeyProcessorContext,
    FixedKeyRecord,
    KStream,
    Processor,
    ProcessorContext,
    PunctuationType,
    Record,
    RecordFailedError,
    Serdes,
    StoreBuilder,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    StreamsError,
    Topology,
    TopologyError,
)
from tidewheel.tasks.processing.api import coroutines
from tidewheel.testing import TopologyTestDriver

STRING = Serdes.string()


def seen_store(name: str = "seen") -> StoreBuilder:
    return Stores.key_value(name, key_serde=STRING, value_serde=STRING)


class Driver(TopologyTestDriver):
    def __init__(self, topology: Topology, **settings: Any) -> None:
        config = StreamsConfig(
            application_id="api", bootstrap_servers="unused:9092", statestore_cache_max_bytes=0, **settings
        )  # fmt: skip
        super().__init__(topology, config, initial_wall_clock_ms=1_000)
        self.source = self.create_input_topic("in", key_serde=STRING, value_serde=STRING)
        self.output = self.create_output_topic("out", key_serde=STRING, value_serde=STRING)

    def outputs(self) -> list[tuple[Any, Any, int]]:
        return [(each.key, each.value, each.timestamp) for each in self.output.read_records()]


def built(use: Callable[[KStream[str, str]], KStream[Any, Any]]) -> Topology:
    builder = StreamsBuilder()
    stream = use(builder.stream("in", key_serde=STRING, value_serde=STRING))
    stream.to("out", key_serde=STRING, value_serde=STRING)
    return builder.build()


# -- fixed keys -------------------------------------------------------------------------------------------------------


class Length(FixedKeyProcessor[str, str, str]):
    def process(self, record: FixedKeyRecord[str, str]) -> None:
        place = self.context.record_metadata
        assert place is not None
        self.context.forward(
            record.replace(
                value=f"{len(record.value)}@{place.offset}",
                timestamp=record.timestamp + 1_000,
                headers=(*record.headers, ("h", b"x")),
            )
        )


def test_a_fixed_key_processor_changes_all_but_the_key() -> None:
    with Driver(built(lambda s: s.process_values(Length))) as driver:
        driver.source.pipe_input("k", "four", 5, (("a", None),))
        (record,) = driver.output.read_records()
    assert (record.key, record.value, record.timestamp) == ("k", "4@0", 1_005)
    assert record.headers == (("a", None), ("h", b"x"))


def test_the_key_of_a_fixed_key_record_cannot_be_changed() -> None:
    refused: list[str] = []

    class Cheat(FixedKeyProcessor[str, str, str]):
        def process(self, record: FixedKeyRecord[str, str]) -> None:
            replace: Any = record.replace
            attempts: list[Callable[[], Any]] = [
                lambda: replace(key="other"),
                lambda: FixedKeyRecord("other", "v", 1),  # type: ignore[call-arg]
                lambda: self.context.forward(Record("other", "v", 1)),  # type: ignore[arg-type]
                lambda: setattr(record, "key", "other"),
            ]
            for attempt in attempts:
                try:
                    attempt()
                except (TypeError, AttributeError) as error:
                    refused.append(type(error).__name__)
            self.context.forward(record)

    with Driver(built(lambda s: s.process_values(Cheat))) as driver:
        driver.source.pipe_input("k", "v", 1)
        assert driver.outputs() == [("k", "v", 1)]
    assert refused == ["TypeError", "TypeError", "TypeError", "AttributeError"]


def test_fixed_key_records_are_values() -> None:
    one, other = (FixedKeyRecord.of(Record("k", 1, 5)) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != one.replace(value=2)
    assert one != Record("k", 1, 5)
    assert repr(one) == "FixedKeyRecord(key='k', value=1, timestamp=5, headers=())"


def test_a_fixed_key_processor_has_the_whole_context() -> None:
    told: list[Any] = []
    kept: list[FixedKeyRecord[str, str]] = []

    class Curious(FixedKeyProcessor[str, str, str]):
        def init(self, context: FixedKeyProcessorContext[str, str]) -> None:
            super().init(context)
            told.append((context.application_id, context.task_id, context.state_dir.name))
            context.schedule(100, PunctuationType.WALL_CLOCK_TIME, self.punctuate)

        def process(self, record: FixedKeyRecord[str, str]) -> None:
            context = self.context
            told.append((context.current_stream_time_ms(), context.current_system_time_ms()))
            told.append(context.metrics["process-total"])
            context.get_state_store("seen").put(record.key, record.value)
            context.commit()
            kept.append(record)

        def punctuate(self, now_ms: int) -> None:
            assert self.context.record_metadata is None
            for record in kept:
                self.context.forward(
                    record.replace(timestamp=now_ms), child="KSTREAM-SINK-0000000002"
                )

    builder = StreamsBuilder().add_state_store(seen_store())
    stream = builder.stream("in", key_serde=STRING, value_serde=STRING)
    stream.process_values(Curious, stores=["seen"]).to("out", value_serde=STRING)
    with Driver(builder.build()) as driver:
        driver.source.pipe_input("k", "v", 500)
        driver.advance_wall_clock_time(100)
        assert driver.outputs() == [("k", "v", 1_100)]
        assert driver.get_state_store("seen").get("k") == "v"
    assert told == [("api", "0_0", "0_0"), (500, 1_000), 0.0]


def test_process_values_keeps_the_key_in_its_place() -> None:
    class Same(FixedKeyProcessor[str, str, str]):
        def process(self, record: FixedKeyRecord[str, str]) -> None:
            self.context.forward(record)

    class Other(Processor[str, str, str, str]):
        def process(self, record: Record[str, str]) -> None:
            self.context.forward(record)

    def topics(use: Callable[[KStream[str, str]], KStream[Any, Any]]) -> str:
        builder = StreamsBuilder()
        stream = use(builder.stream("in", key_serde=STRING, value_serde=STRING))
        stream.group_by_key(key_serde=STRING, value_serde=STRING).count()
        return str(builder.build().describe())

    assert "repartition" not in topics(lambda s: s.process_values(Same))
    assert "KSTREAM-PROCESSVALUES-0000000001" in topics(lambda s: s.process_values(Same))
    assert "Processor: mine (stores: [])" in topics(lambda s: s.process_values(Same, name="mine"))
    assert "repartition" in topics(lambda s: s.process(Other))


def test_processors_of_the_other_kind_are_refused_with_the_right_method() -> None:
    with pytest.raises(
        TopologyError,
        match=r"process_values \(.*\): .*Processor, not a FixedKey.*give it to process\(\)",
    ):
        built(lambda s: s.process_values(Processor))  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match=r"process \(.*\): .*give it to process_values\(\)"):
        built(lambda s: s.process(Length))  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match=r"type dict, not a Processor; give a Processor class"):
        built(lambda s: s.process(dict))  # type: ignore[arg-type]


# -- suppliers --------------------------------------------------------------------------------------------------------


def test_one_object_for_all_tasks_is_refused() -> None:
    """Kafka Streams: ApiUtils.checkSupplier."""
    shared = Length()
    with pytest.raises(
        TopologyError, match=r"process_values \(.*\): the supplier returned one object twice"
    ):
        built(lambda s: s.process_values(lambda: shared))
    one = Processor[str, str, str, str]()
    topology = Topology().add_source("read", "in")
    with pytest.raises(TopologyError, match=r"add_processor 'p' \(.*\): the supplier returned one"):
        topology.add_processor("p", lambda: one, "read")


def test_a_failing_supplier_is_reported_at_its_call() -> None:
    def supplier() -> Any:
        raise OSError("no model")

    with pytest.raises(
        TopologyError, match=r"process \(.*\): the supplier failed with OSError: no model"
    ):
        built(lambda s: s.process(supplier))


class Remember(Processor[str, str, str, str]):
    stores = (seen_store(),)

    def process(self, record: Record[str, str]) -> None:
        store = self.context.get_state_store("seen")
        before = store.get(record.key)
        store.put(record.key, record.value)
        self.context.forward(record.replace(value=str(before)))


class RememberByMethod(Remember):
    @classmethod
    def stores(cls) -> Iterator[StoreBuilder]:  # type: ignore[override]
        yield seen_store()


class RememberSupplier:
    def stores(self) -> StoreBuilder:
        return seen_store()

    def __call__(self) -> Remember:
        return Remember()


@pytest.mark.parametrize("supplier", [Remember, RememberByMethod, RememberSupplier()])
def test_suppliers_bring_their_stores(supplier: Any) -> None:
    by_hand = (
        Topology()
        .add_source("read", "in", key_serde=STRING, value_serde=STRING)
        .add_processor("p", supplier, "read")
        .add_sink("write", "out", "p", key_serde=STRING, value_serde=STRING)
    )
    for topology in (built(lambda s: s.process(supplier)), by_hand):
        assert topology.store_names == ("seen",)
        with Driver(topology) as driver:
            driver.source.pipe_input("k", "1", 1)
            driver.source.pipe_input("k", "2", 2)
            assert [value for _, value, _ in driver.outputs()] == ["None", "1"]


def test_a_store_of_a_class_is_shared_by_all_its_processors() -> None:
    topology = built(lambda s: s.process(Remember).process(Remember))
    assert topology.store_names == ("seen",)
    with Driver(topology) as driver:
        driver.source.pipe_input("k", "1", 1)
        assert driver.outputs() == [("k", "1", 1)]  # The second one reads the first one's row.
    with pytest.raises(TopologyError, match="another store of this name"):
        built(lambda s: s.process(Remember).process(RememberByMethod))


@pytest.mark.parametrize(
    ("stores", "message"),
    [
        (["seen"], "the store is of type str; give one of Stores"),
        (7, "`stores` of the supplier is of type int"),
        (
            lambda self: (),
            "`stores` of the supplier needs arguments; make it an attribute, or a class",
        ),
    ],
)
def test_stores_of_a_supplier_are_builders(stores: Any, message: str) -> None:
    kind = type("Odd", (Remember,), {"stores": stores})
    with pytest.raises(TopologyError, match=rf"process \(.*\): {message}"):
        built(lambda s: s.process(kind))


def test_names_and_brought_stores_are_both_connected() -> None:
    class Both(Remember):
        def init(self, context: ProcessorContext[str, str]) -> None:
            super().init(context)
            context.get_state_store("more")

    builder = StreamsBuilder().add_state_store(seen_store("more"))
    stream = builder.stream("in", key_serde=STRING, value_serde=STRING)
    stream.process(Both, stores=["more", "seen"]).to("out", key_serde=STRING, value_serde=STRING)
    with Driver(builder.build()) as driver:
        driver.source.pipe_input("k", "1", 1)
        assert driver.outputs() == [("k", "None", 1)]


# -- schedules --------------------------------------------------------------------------------------------------------


def scheduling(**arguments: Any) -> type[Processor[str, str, str, str]]:
    class Scheduling(Processor[str, str, str, str]):
        def init(self, context: ProcessorContext[str, str]) -> None:
            super().init(context)
            context.schedule(
                **{
                    "interval": 10,
                    "clock": PunctuationType.WALL_CLOCK_TIME,
                    "callback": lambda now_ms: context.forward(Record("at", str(now_ms), now_ms)),
                    **arguments,
                }
            )

        def process(self, record: Record[str, str]) -> None:
            pass

    return Scheduling


async def _waits(_now_ms: int) -> None:
    pass


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"callback": None},
            "callback must be a plain function of the time in ms, but it is of type NoneType",
        ),
        ({"callback": 7}, "callback must be a plain .* it is of type int"),
        ({"callback": _waits}, "callback must be a plain .* it is an async function"),
        ({"start": "12:00"}, "start must be an int of milliseconds since the epoch, not str"),
        ({"start": True}, "start must be an int .* not bool"),
    ],
)
def test_schedules_are_checked_at_creation(arguments: Any, message: str) -> None:
    with pytest.raises(TypeError, match=rf"KSTREAM-PROCESSOR-0000000001: a schedule's {message}"):
        Driver(built(lambda s: s.process(scheduling(**arguments))))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"interval": -5},
            "interval is at least 1 ms, not -5; give int milliseconds, a timedelta",
        ),
        ({"clock": "wall"}, "schedule has no clock 'wall'; give PunctuationType.STREAM_TIME or"),
        ({"start": -1}, "start is a time from 0 .*, not -1; leave it out to begin now"),
    ],
)
def test_invalid_schedules_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^KSTREAM-PROCESSOR-0000000001: a .*{message}"):
        Driver(built(lambda s: s.process(scheduling(**arguments))))


@pytest.mark.parametrize(
    ("start", "fires"),
    [
        (1_000, [1_000, 1_010, 1_020]),
        (1_003, [1_005, 1_015]),
        (995, [1_005, 1_015]),
        (3, [1_005, 1_015]),
        (1_020, [1_020]),
    ],
)
def test_a_wall_clock_schedule_is_anchored_at_its_start(start: int, fires: list[int]) -> None:
    """KIP-1146, StreamTask.getInitialSchedule."""
    with Driver(built(lambda s: s.process(scheduling(start=start)))) as driver:
        for step_ms in (0, 5, 5, 5, 5):
            driver.advance_wall_clock_time(step_ms)
        assert [timestamp for _, _, timestamp in driver.outputs()] == fires


def test_a_stream_time_schedule_is_anchored_at_its_start() -> None:
    topology = built(lambda s: s.process(scheduling(clock=PunctuationType.STREAM_TIME, start=25)))
    with Driver(topology) as driver:
        for timestamp in (3, 20, 24, 25, 34, 35, 70, 74, 75):
            driver.source.pipe_input("k", "v", timestamp)
        assert [timestamp for _, _, timestamp in driver.outputs()] == [25, 35, 70, 75]


# -- coroutines -------------------------------------------------------------------------------------------------------


class Twins:
    @staticmethod
    def script(processor: Any, record: Record[str, str]) -> None:
        for step in record.value:
            if step == "x":
                raise ValueError("as told")
            processor.context.forward(record.replace(value=f"{record.value}/{step}"))

    class Plain(Processor[str, str, str, str]):
        def process(self, record: Record[str, str]) -> None:
            Twins.script(self, record)

    class Async(Processor[str, str, str, str]):
        async def process(self, record: Record[str, str]) -> None:
            await asyncio.sleep(0)
            Twins.script(self, record)

    class AsyncFixed(FixedKeyProcessor[str, str, str]):
        async def process(self, record: FixedKeyRecord[str, str]) -> None:
            await asyncio.sleep(0)
            Twins.script(self, record)  # type: ignore[arg-type]


@given(st.lists(st.text("abx", max_size=3), max_size=6))
def test_an_async_processor_gives_the_results_of_a_plain_one(values: list[str]) -> None:
    def run(use: Callable[[KStream[str, str]], KStream[Any, Any]]) -> Any:
        with Driver(built(use), processing_exception_handler="continue") as driver:
            for number, value in enumerate(values):
                driver.source.pipe_input("k", value, number)
            return driver.outputs(), driver.metrics()

    expected = run(lambda s: s.process(Twins.Plain).process(Twins.Plain))
    assert run(lambda s: s.process(Twins.Async).process(Twins.Async)) == expected
    assert run(lambda s: s.process_values(Twins.AsyncFixed).process(Twins.Async)) == expected


async def upper(value: str) -> str:
    await asyncio.sleep(0)
    return value.upper()


async def keeps(key: str, value: str) -> bool:
    await asyncio.sleep(0)
    return key != value


async def twice(value: str) -> list[str]:
    await asyncio.sleep(0)
    return [value, value]


async def pair(key: str, value: str) -> tuple[str, str]:
    return value, key


async def all_upper(values: list[str]) -> list[str]:
    await asyncio.sleep(0)
    return [value.upper() for value in values]


PLAIN: dict[str, Callable[..., Any]] = {
    "upper": str.upper,
    "keeps": lambda key, value: key != value,
    "twice": lambda value: [value, value],
    "pair": lambda key, value: (value, key),
    "all_upper": lambda values: [value.upper() for value in values],
}
ASYNC: dict[str, Callable[..., Any]] = {
    "upper": upper, "keeps": keeps, "twice": twice, "pair": pair, "all_upper": all_upper,
}  # fmt: skip
CHAIN: dict[str, Callable[[KStream[Any, Any], dict[str, Callable[..., Any]]], KStream[Any, Any]]] = {
    "map_values": lambda s, f: s.map_values(f["upper"]),
    "filter": lambda s, f: s.filter(f["keeps"]),
    "filter_not": lambda s, f: s.filter_not(f["keeps"]),
    "flat_map_values": lambda s, f: s.flat_map_values(f["twice"]),
    "map": lambda s, f: s.map(f["pair"]),
    "select_key": lambda s, f: s.select_key(f["upper"]),
    "peek": lambda s, f: s.peek(f["upper"]),
    "split": lambda s, f: s.split({"a": f["keeps"]}, default="b")["a"],
    "map_values_batch": lambda s, f: s.map_values_batch(f["all_upper"]),
}  # fmt: skip
RECORDS = st.lists(st.tuples(st.sampled_from("abAB"), st.sampled_from("abAB")), max_size=12)


@given(st.lists(st.sampled_from(sorted(CHAIN)), min_size=1, max_size=4), RECORDS, st.booleans())
def test_coroutine_functions_give_the_results_of_plain_functions(
    operators: list[str], records: list[tuple[str, str]], one_by_one: bool
) -> None:
    def run(functions: dict[str, Callable[..., Any]]) -> Any:
        def use(stream: KStream[Any, Any]) -> KStream[Any, Any]:
            for name in operators:
                stream = CHAIN[name](stream, functions)
            return stream

        config = StreamsConfig(application_id="api", bootstrap_servers="unused:9092")
        with TopologyTestDriver(built(use), config, record_by_record=one_by_one) as driver:
            source = driver.create_input_topic("in", key_serde=STRING, value_serde=STRING)
            output = driver.create_output_topic("out", key_serde=STRING, value_serde=STRING)
            source.pipe_batch([(key, value, 1) for key, value in records])
            return output.read_records()

    assert run(ASYNC) == run(PLAIN)


def test_a_failing_coroutine_goes_to_the_processing_handler() -> None:
    calls: list[str] = []

    async def fails(value: str) -> str:
        calls.append(value)
        await asyncio.sleep(0)
        if value == "bad":
            raise ValueError("as told")
        return value

    with Driver(
        built(lambda s: s.map_values(fails)), processing_exception_handler="continue"
    ) as driver:
        for value in ("a", "bad", "b"):
            driver.source.pipe_input("k", value, 1)
        assert [value for _, value, _ in driver.outputs()] == ["a", "b"]
    assert calls == ["a", "bad", "b"]
    with (
        Driver(built(lambda s: s.map_values(fails))) as driver,
        pytest.raises(RecordFailedError, match="ValueError: as told"),
    ):
        driver.source.pipe_input("k", "bad", 1)


def test_all_coroutines_of_a_thread_share_a_loop_that_ends_with_the_task() -> None:
    loops: set[asyncio.AbstractEventLoop] = set()
    background: list[asyncio.Task[Any]] = []

    async def spawns(value: str) -> str:
        loops.add(asyncio.get_running_loop())
        background.append(asyncio.ensure_future(asyncio.sleep(60)))
        return value

    with Driver(built(lambda s: s.map_values(spawns).map_values(spawns))) as driver:
        driver.source.pipe_input("k", "a", 1)
        driver.source.pipe_input("k", "b", 1)
        (loop,) = loops
        assert not loop.is_closed()
    assert loop.is_closed()
    assert all(task.cancelled() for task in background)


def test_each_thread_has_its_own_loop() -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def where() -> None:
        loops.append(asyncio.get_running_loop())

    def run() -> None:
        coroutines.wait_for(where())
        coroutines.close_loop()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    run()
    assert len(set(map(id, loops))) == 2
    assert all(loop.is_closed() for loop in loops)


def test_an_error_inside_a_running_loop_names_the_next_step() -> None:
    async def test() -> None:
        with Driver(built(lambda s: s.map_values(upper))) as driver:
            driver.source.pipe_input("k", "a", 1)

    with pytest.raises(StreamsError, match=r"asyncio\.to_thread"):
        asyncio.run(test())
