"""Users' processors: context, forwards, schedules, commits, and attribution of errors."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from tidewheel import (
    FixedKeyProcessor,
    Processor,
    ProcessorContext,
    PunctuationType,
    Record,
    RecordFailedError,
    Serdes,
    Stores,
    StreamsConfig,
    StreamsError,
    Topology,
)
from tidewheel.state_stores.errors import StoreCorruptedError
from tidewheel.tasks.processing.api.record import RecordMetadata
from tidewheel.testing import TopologyTestDriver

STRING = Serdes.string()


class Scripted(Processor[Any, Any, Any, Any]):
    def __init__(
        self,
        process: Callable[..., Any],
        init: Callable[..., Any] | None,
        close: Callable[[], Any] | None,
    ) -> None:
        self._process = process
        self._init = init
        self._close = close

    def init(self, context: ProcessorContext[Any, Any]) -> None:
        super().init(context)
        if self._init is not None:
            self._init(context)

    def process(self, record: Record[Any, Any]) -> None:
        self._process(self.context, record)

    def close(self) -> None:
        if self._close is not None:
            self._close()


def forward(context: ProcessorContext[Any, Any], record: Record[Any, Any]) -> None:
    context.forward(record)


def scripted(
    process: Callable[..., Any] = forward,
    init: Callable[..., Any] | None = None,
    close: Callable[[], Any] | None = None,
) -> Callable[[], Scripted]:
    return lambda: Scripted(process, init, close)


def chain(
    *suppliers: Callable[[], Processor[Any, Any, Any, Any]], store_at: tuple[str, ...] = ()
) -> Topology:
    topology = Topology().add_source("read", "in", key_serde=STRING, value_serde=STRING)
    parent = "read"
    for number, supplier in enumerate(suppliers):
        topology.add_processor(f"p{number}", supplier, parent)
        parent = f"p{number}"
    if store_at:
        topology.add_state_store(
            Stores.key_value("store", key_serde=STRING, value_serde=STRING), store_at
        )
    return topology.add_sink("write", "out", parent, key_serde=STRING, value_serde=STRING)


class Driver(TopologyTestDriver):
    def __init__(self, topology: Topology, **settings: Any) -> None:
        config = StreamsConfig(
            application_id="processors",
            bootstrap_servers="unused:9092",
            statestore_cache_max_bytes=0,
            **settings,
        )
        super().__init__(topology, config, initial_wall_clock_ms=1_000)
        self.source = self.create_input_topic("in", key_serde=STRING, value_serde=STRING)
        self.output = self.create_output_topic("out", key_serde=STRING, value_serde=STRING)

    def outputs(self) -> list[tuple[Any, Any, int]]:
        return [(each.key, each.value, each.timestamp) for each in self.output.read_records()]


def test_the_context_of_a_processor_has_its_record() -> None:
    seen: list[Any] = []

    def process(context: ProcessorContext[Any, Any], record: Record[Any, Any]) -> None:
        seen.append(
            (
                record,
                context.record_metadata,
                context.current_stream_time_ms(),
                context.current_system_time_ms(),
            )
        )
        seen.append((context.application_id, context.task_id, context.state_dir.name))

    with Driver(chain(scripted(process))) as driver:
        driver.source.pipe_input("a", "1", 500, (("h", b"x"),))
        driver.source.pipe_input("b", "2", 300)
        assert seen[0] == (
            Record("a", "1", 500, (("h", b"x"),)),
            RecordMetadata("in", 0, 0),
            500,
            1_000,
        )
        assert seen[1] == ("processors", "0_0", "0_0")
        assert seen[2] == (Record("b", "2", 300), RecordMetadata("in", 0, 1), 500, 1_000)


def test_forward_goes_depth_first_to_all_children_or_to_the_named_one() -> None:
    order: list[str] = []

    def fan_out(context: ProcessorContext[Any, Any], record: Record[Any, Any]) -> None:
        order.append("before")
        context.forward(record.replace(value="all"))
        order.append("between")
        context.forward(record.replace(value="right only"), child="right")
        order.append("after")

    def recorded(name: str) -> Callable[..., None]:
        def process(context: ProcessorContext[Any, Any], record: Record[Any, Any]) -> None:
            order.append(f"{name}:{record.value}")
            context.forward(record)

        return process

    topology = Topology().add_source("read", "in", key_serde=STRING, value_serde=STRING)
    topology.add_processor("top", scripted(fan_out), "read")
    for name in ("left", "right"):
        topology.add_processor(name, scripted(recorded(name)), "top")
    topology.add_processor("bottom", scripted(recorded("bottom")), ["left", "right"])
    topology.add_sink("write", "out", "bottom", key_serde=STRING, value_serde=STRING)
    with Driver(topology) as driver:
        driver.source.pipe_input("k", "v", 1)
        assert [value for _, value, _ in driver.outputs()] == ["all", "all", "right only"]
    assert order == [
        "before", "left:all", "bottom:all", "right:all", "bottom:all", "between", "right:right only", "bottom:right only", "after",
    ]  # fmt: skip


def test_an_unknown_child_is_an_error_of_the_forwarding_processor() -> None:
    def process(context: ProcessorContext[Any, Any], record: Record[Any, Any]) -> None:
        context.forward(record, child="nobody")

    with (
        Driver(chain(scripted(process))) as driver,
        pytest.raises(RecordFailedError, match=r"at p0 .*no child nobody.*write"),
    ):
        driver.source.pipe_input("k", "v", 1)


def test_forwarded_records_keep_their_input() -> None:
    seen: list[Any] = []

    def change(context: ProcessorContext[Any, Any], record: Record[Any, Any]) -> None:
        context.forward(Record("new", "value", 7, (("made", b"1"),)))

    def track(context: ProcessorContext[Any, Any], record: Record[Any, Any]) -> None:
        seen.append((record, context.record_metadata))

    with Driver(chain(scripted(change), scripted(track))) as driver:
        driver.source.pipe_input("k", "v", 500, (("h", b"x"),))
    assert seen == [(Record("new", "value", 7, (("made", b"1"),)), RecordMetadata("in", 0, 0))]


# -- stores -----------------------------------------------------------------------------------------------------------


def test_stores_get_the_time_of_the_record_being_processed() -> None:
    times: list[int] = []

    def put(context: ProcessorContext[Any, Any], key: str) -> None:
        context.get_state_store("store").put(key, "x")
        times.append(driver.get_state_store("store").buffer.timestamps[key.encode()])

    def above(context: ProcessorContext[Any, Any], record: Record[Any, Any]) -> None:
        put(context, "before")
        context.forward(record.replace(timestamp=9))
        put(context, "after")

    def below(context: ProcessorContext[Any, Any], record: Record[Any, Any]) -> None:
        put(context, "below")

    with Driver(chain(scripted(above), scripted(below), store_at=("p0", "p1"))) as driver:
        driver.source.pipe_input("k", "v", 500)
    assert times == [500, 9, 500]


def test_stores_get_the_time_of_the_punctuation() -> None:
    times: list[int] = []

    def init(context: ProcessorContext[Any, Any]) -> None:
        def punctuate(now_ms: int) -> None:
            context.get_state_store("store").put("a", "x")
            context.forward(Record("k", "v", 3))
            context.get_state_store("store").put("b", "x")
            store = driver.get_state_store("store")
            times.extend(store.buffer.timestamps[key] for key in (b"a", b"b"))

        context.schedule(10, PunctuationType.WALL_CLOCK_TIME, punctuate)

    with Driver(chain(scripted(forward, init), store_at=("p0",))) as driver:
        driver.advance_wall_clock_time(10)
    assert times == [1_010, 1_010]


def test_a_processor_gets_only_connected_stores() -> None:
    seen: list[str] = []

    def process(context: ProcessorContext[Any, Any], record: Record[Any, Any]) -> None:
        with pytest.raises(
            StreamsError,
            match=r"processor p1 has no access to store 'store' \(connected: none\).*connect_processor",
        ):
            context.get_state_store("store")
        seen.append(record.value)

    with Driver(chain(scripted(), scripted(process), store_at=("p0",))) as driver:
        driver.source.pipe_input("k", "v", 1)
    assert seen == ["v"]


# -- failures ---------------------------------------------------------------------------------------------------------


def boom(context: ProcessorContext[Any, Any], record: Record[Any, Any]) -> None:
    if record.value == "boom":
        raise ValueError("as told")
    context.forward(record)


def swallow(context: ProcessorContext[Any, Any], record: Record[Any, Any]) -> None:
    try:
        context.forward(record)
    except Exception:  # noqa: BLE001 - as a careless user writes it
        context.forward(record.replace(value="swallowed"))


def rewrap(context: ProcessorContext[Any, Any], record: Record[Any, Any]) -> None:
    try:
        context.forward(record)
    except Exception as error:
        raise KeyError("mine") from error


@pytest.mark.parametrize("above", [forward, swallow, rewrap])
def test_a_failure_below_is_not_blamed_on_the_forwarding_processor(
    above: Callable[..., Any],
) -> None:
    with (
        Driver(chain(scripted(above), scripted(above), scripted(boom))) as driver,
        pytest.raises(
            RecordFailedError, match=r"processing at p2 \(task 0_0\), in-0 offset 0: ValueError"
        ),
    ):
        driver.source.pipe_input("k", "boom", 1)


@pytest.mark.parametrize("above", [forward, swallow, rewrap])
def test_a_record_skipped_below_does_not_affect_processors_above(above: Callable[..., Any]) -> None:
    with Driver(
        chain(scripted(above), scripted(boom)), processing_exception_handler="continue"
    ) as driver:
        driver.source.pipe_input("k", "boom", 1)
        driver.source.pipe_input("k", "fine", 2)
        assert driver.outputs() == [("k", "fine", 2)]
        assert driver.metrics()["0_0"]["skipped-records-total"] == 1


_BAD_HEADERS: list[Any] = [
    (("attempt", 3),),
    (("attempt", "3"),),
    ((b"attempt", b"3"),),
    ((None, b"3"),),
    (("attempt",),),
    (("attempt", b"3", b"4"),),
    (["attempt", b"3"],),
    ("ab",),
    (("good", b"1"), ("\ud800", b"1")),
    (("nu\0ll", b"1"),),
    {"attempt": b"3"},
    3,
    "attempt",
    {("attempt", b"3")},
]


@pytest.mark.parametrize("headers", _BAD_HEADERS)
def test_headers_that_kafka_refuses_fail_where_they_are_forwarded(headers: Any) -> None:
    def process(context: ProcessorContext[Any, Any], record: Record[Any, Any]) -> None:
        context.forward(record if record.value == "fine" else record.replace(headers=headers))

    with (
        Driver(chain(scripted(process))) as driver,
        pytest.raises(RecordFailedError, match=r"processing at p\d \(task 0_0\), in-0 offset 0"),
    ):
        driver.source.pipe_input("k", "bad", 1)
    with Driver(chain(scripted(process)), processing_exception_handler="continue") as driver:
        driver.source.pipe_input("k", "bad", 1)
        driver.source.pipe_input("k", "fine", 2, headers=(("trace", b"1"),))
        assert driver.outputs() == [("k", "fine", 2)]


def test_the_error_of_bad_headers_does_not_show_their_values() -> None:
    def process(context: ProcessorContext[Any, Any], record: Record[Any, Any]) -> None:
        wrong: Any = (("token", "hunter2"),)
        context.forward(record.replace(headers=wrong))

    with (
        Driver(chain(scripted(process))) as driver,
        pytest.raises(RecordFailedError, match=r"'token'.*value of type str") as failure,
    ):
        driver.source.pipe_input("k", "v", 1)
    assert "hunter2" not in str(failure.value)


@pytest.mark.parametrize("headers", [(), [], None, [("a", b"1")], (("a", None), ("ü", b""))])
def test_headers_that_kafka_accepts_are_forwarded(headers: Any) -> None:
    def process(context: ProcessorContext[Any, Any], record: Record[Any, Any]) -> None:
        context.forward(record.replace(headers=headers))

    with Driver(chain(scripted(process))) as driver:
        driver.source.pipe_input("k", "v", 1, headers=(("trace", b"1"),))
        assert driver.outputs() == [("k", "v", 1)]


def test_records_forwarded_before_a_failure_stay() -> None:
    """As in Kafka Streams."""

    def process(context: ProcessorContext[Any, Any], record: Record[Any, Any]) -> None:
        context.forward(record)
        raise ValueError("afterwards")

    with Driver(chain(scripted(process)), processing_exception_handler="continue") as driver:
        driver.source.pipe_input("k", "v", 1)
        assert driver.outputs() == [("k", "v", 1)]


@pytest.mark.parametrize("above", [forward, swallow])
def test_a_damaged_store_is_not_blamed_on_the_record(above: Callable[..., Any]) -> None:
    def process(context: ProcessorContext[Any, Any], record: Record[Any, Any]) -> None:
        raise StoreCorruptedError("block 7")

    with (
        Driver(
            chain(scripted(above), scripted(process)), processing_exception_handler="continue"
        ) as driver,
        pytest.raises(StoreCorruptedError, match="block 7"),
    ):
        driver.source.pipe_input("k", "v", 1)
    with (
        Driver(chain(scripted(process)), processing_exception_handler="continue") as driver,
        pytest.raises(StoreCorruptedError, match="block 7"),
    ):
        driver.source.pipe_input("k", "v", 1)


# -- schedules --------------------------------------------------------------------------------------------------------


def scheduled(
    clock: PunctuationType,
    fired: list[Any],
    *,
    interval: Any = 10,
    start: int | None = None,
    name: str = "",
) -> Callable[..., None]:
    def init(context: ProcessorContext[Any, Any]) -> None:
        def punctuate(now_ms: int) -> None:
            fired.append((name, now_ms) if name else now_ms)
            assert context.record_metadata is None

        context.schedule(interval, clock, punctuate, start)

    return init


def test_stream_time_schedules_follow_the_records() -> None:
    fired: list[int] = []
    with Driver(chain(scripted(forward, scheduled(PunctuationType.STREAM_TIME, fired)))) as driver:
        for timestamp in (3, 9, 10, 5, 47, 49, 50):
            driver.source.pipe_input("k", "v", timestamp)
        driver.advance_wall_clock_time(1_000)
    assert fired == [3, 10, 47, 50]


def test_stream_time_schedules_fire_between_the_records_of_a_batch() -> None:
    fired: list[int] = []
    with Driver(chain(scripted(forward, scheduled(PunctuationType.STREAM_TIME, fired)))) as driver:
        driver.source.pipe_batch([("k", "v", timestamp) for timestamp in (3, 9, 10, 5, 47, 49, 50)])
    assert fired == [3, 10, 47, 50]


def test_wall_clock_schedules_follow_the_clock() -> None:
    fired: list[int] = []
    init = scheduled(PunctuationType.WALL_CLOCK_TIME, fired, interval=timedelta(seconds=1))
    with Driver(chain(scripted(forward, init))) as driver:
        driver.source.pipe_input("k", "v", 999_999)
        driver.advance_wall_clock_time(999)
        assert fired == []
        driver.advance_wall_clock_time(1)
        driver.advance_wall_clock_time(3_500)
        driver.advance_wall_clock_time(timedelta(milliseconds=499))
        assert fired == [2_000, 5_500]


def test_a_start_anchors_the_grid() -> None:
    fired: list[int] = []
    init = scheduled(PunctuationType.WALL_CLOCK_TIME, fired, interval=100, start=950)
    with Driver(chain(scripted(forward, init))) as driver:
        for _ in range(12):
            driver.advance_wall_clock_time(10)
    assert fired == [1_050]


def test_a_cancelled_schedule_ends_immediately() -> None:
    fired: list[str] = []

    def init(context: ProcessorContext[Any, Any]) -> None:
        def first(now_ms: int) -> None:
            fired.append("first")
            second.cancel()

        context.schedule(10, PunctuationType.WALL_CLOCK_TIME, first)
        second = context.schedule(
            10, PunctuationType.WALL_CLOCK_TIME, lambda now_ms: fired.append("second")
        )

    with Driver(chain(scripted(forward, init))) as driver:
        driver.advance_wall_clock_time(10)
        driver.advance_wall_clock_time(10)
    assert fired == ["first", "first"]


def test_a_callback_may_forward_and_reschedule() -> None:
    fired: list[int] = []

    def init(context: ProcessorContext[Any, Any]) -> None:
        def once(now_ms: int) -> None:
            handle.cancel()
            context.forward(Record("k", f"at {now_ms}", now_ms))
            context.schedule(5, PunctuationType.WALL_CLOCK_TIME, fired.append)

        handle = context.schedule(10, PunctuationType.WALL_CLOCK_TIME, once)

    with Driver(chain(scripted(forward, init))) as driver:
        driver.advance_wall_clock_time(10)
        driver.advance_wall_clock_time(5)
        assert driver.outputs() == [("k", "at 1010", 1_010)]
    assert fired == [1_015]


@pytest.mark.parametrize("interval", [0, -5, timedelta(microseconds=999)])
def test_an_interval_is_at_least_a_millisecond(interval: Any) -> None:
    init = scheduled(PunctuationType.STREAM_TIME, [], interval=interval)
    with pytest.raises(ValueError, match="p0: a schedule's interval"):
        Driver(chain(scripted(forward, init)))


def test_a_failing_callback_goes_to_the_processing_handler() -> None:
    calls: list[int] = []

    def init(context: ProcessorContext[Any, Any]) -> None:
        def punctuate(now_ms: int) -> None:
            calls.append(now_ms)
            raise ValueError("as told")

        context.schedule(10, PunctuationType.WALL_CLOCK_TIME, punctuate)

    with Driver(chain(scripted(forward, init)), processing_exception_handler="continue") as driver:
        driver.advance_wall_clock_time(10)
        driver.advance_wall_clock_time(10)
    assert calls == [1_010, 1_020]
    with Driver(chain(scripted(forward, init))) as driver:
        with pytest.raises(
            RecordFailedError, match=r"at p0 .*without an input.*ValueError"
        ) as caught:
            driver.advance_wall_clock_time(10)
        assert caught.value.topic is None


@pytest.mark.parametrize("catch", [False, True])
def test_a_failure_below_a_callback_is_blamed_on_the_node_below(catch: bool) -> None:
    def init(context: ProcessorContext[Any, Any]) -> None:
        def punctuate(now_ms: int) -> None:
            try:
                context.forward(Record("k", "boom", now_ms))
            except Exception:
                if not catch:
                    raise

        context.schedule(10, PunctuationType.WALL_CLOCK_TIME, punctuate)

    with (
        Driver(chain(scripted(forward, init), scripted(boom))) as driver,
        pytest.raises(RecordFailedError, match="processing at p1 "),
    ):
        driver.advance_wall_clock_time(10)


# -- commit, life -----------------------------------------------------------------------------------------------------


def test_a_requested_commit_comes_right_after_the_record() -> None:
    at_commit: list[Any] = []

    def process(context: ProcessorContext[Any, Any], record: Record[Any, Any]) -> None:
        context.get_state_store("store").put(record.key, record.value)
        if record.value == "commit":
            context.commit()

    with Driver(chain(scripted(process), store_at=("p0",))) as driver:
        task = driver._tasks[0]
        drain = task.stores.drain

        def recorded() -> Any:
            drained = drain()
            if drained:
                at_commit.append(drained["store"].keys)
            return drained

        task.stores.drain = recorded  # type: ignore[method-assign]
        driver.source.pipe_batch([("a", "1", 1), ("b", "commit", 2), ("c", "3", 3), ("d", "4", 4)])
        assert [key for key, _ in driver.get_state_store("store").all()] == ["a", "b", "c", "d"]
    assert at_commit == [[b"a", b"b"], [b"c", b"d"]]


def test_every_processor_is_closed_once() -> None:
    closed: list[str] = []

    def fail() -> None:
        closed.append("first")
        raise OSError("can't close")

    driver = Driver(chain(scripted(close=fail), scripted(close=lambda: closed.append("second"))))
    with pytest.raises(OSError, match="can't close"):
        driver.close()
    driver.close()
    assert closed == ["first", "second"]


def test_only_initialised_processors_are_closed() -> None:
    closed: list[str] = []

    def fail(context: ProcessorContext[Any, Any]) -> None:
        raise OSError("no connection")

    with (
        pytest.raises(OSError, match="no connection"),
        Driver(
            chain(
                scripted(close=lambda: closed.append("first")),
                scripted(init=fail, close=lambda: closed.append("second")),
                scripted(close=lambda: closed.append("third")),
            )
        ),
    ):
        pass
    assert "second" not in closed
    assert "third" not in closed


class Yielding(Processor[Any, Any, Any, Any]):
    def process(self, record: Record[Any, Any]) -> Any:
        yield record


class YieldingAsync(Processor[Any, Any, Any, Any]):
    async def process(self, record: Record[Any, Any]) -> Any:
        yield record


@pytest.mark.parametrize(
    ("supplier", "message"),
    [
        (Yielding, "generator"),
        (YieldingAsync, "generator"),
        (lambda: None, "NoneType"),
        (dict, "dict"),
        (FixedKeyProcessor, r"FixedKeyProcessor, not a Processor; .*give it to process_values"),
        (partial(FixedKeyProcessor), r"give it to process_values"),
    ],
)
def test_invalid_suppliers_are_refused_before_the_first_record(supplier: Any, message: str) -> None:
    with pytest.raises(StreamsError, match=rf"p0.*{message}"):
        Driver(chain(supplier))
