"""Records of a global store's topic: bad records, failing processors."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.tasks.restore.global_bench import TOPIC, CountRecords, Process, counts
from tidewheel import (
    Processor,
    ProcessorContext,
    PunctuationType,
    Record,
    RecordFailedError,
    Serdes,
    StreamsBuilder,
    StreamsError,
)
from tidewheel.tasks.processing.engine.error_policy import ErrorHandlers


def numbers(builder: StreamsBuilder) -> None:
    builder.global_table(TOPIC, key_serde=str, value_serde=Serdes.int64(), store="store")


@pytest.mark.parametrize("again", [False, True])
def test_records_that_do_not_deserialise_go_to_the_handler(again: bool) -> None:
    process = Process(numbers, deserialization="continue", dead_letter_topic="dead")
    one = (1).to_bytes(8, "big")
    process.broker.send(TOPIC, one, b"a")
    if again:
        process.broker.send(TOPIC, b"oops", b"a")
    with process.life() as life:
        life.wait()
        if not again:
            process.broker.send(TOPIC, b"oops", b"a")
            life.until(lambda: life.stores.counters.skipped == 1)
        assert life.rows() == {"a": 1}
        assert life.stores.figures() == {
            "update-total": 1.0,
            "dropped-records-total": 0.0,
            "skipped-records-total": 1.0,
        }
    process.handlers = ErrorHandlers()
    process.wipe()
    with (
        process.life() as life,
        pytest.raises(
            RecordFailedError,
            match=rf"deserialization at KSTREAM-SOURCE-0000000000 \(task global, defined at \S+\), {TOPIC}-. offset 1",
        ),
    ):
        life.wait()


def test_records_without_a_key_are_dropped() -> None:
    process = Process()
    process.send(None, "1")
    process.send("a", "1")
    with process.life() as life:
        life.wait()
        assert life.rows() == {"a": "1"}
        assert life.stores.counters.dropped == 1


def test_two_spellings_of_a_json_key_are_one_row() -> None:
    process = Process(
        lambda builder: builder.global_table(
            TOPIC, key_serde=Serdes.json(), value_serde=str, store="store"
        )
    )
    for spelling in (b'{"id":1}', b'{ "id" : 1 }'):
        process.broker.send(TOPIC, spelling, spelling, partition=0)
    with process.life() as life:
        life.wait()
        (row,) = life.view.all()
        assert row[0] == {"id": 1}
        found: Any = life.view.get({"id": 1})
        assert found.value == '{ "id" : 1 }'


class Fails(CountRecords):
    def process(self, record: Record[str, str]) -> None:
        super().process(record)
        if record.value == "bad":
            raise ValueError("as told")


def test_a_processor_that_fails_goes_to_the_processing_handler() -> None:
    process = Process(lambda builder: counts(builder, Fails))
    process.send("a", "good")
    process.send("a", "bad")
    with (
        process.life() as life,
        pytest.raises(
            RecordFailedError, match=r"processing at KTABLE-SOURCE-0000000001 .*ValueError: as told"
        ),
    ):
        life.wait()
    process.handlers = ErrorHandlers(processing="continue")
    with process.life() as life:
        life.wait()
        assert life.stores.counters.skipped == 1
        assert life.rows() == {"a": 2}  # its writes before the failure stay, as in a task


def test_the_context_of_a_processor_has_its_record() -> None:
    told: list[Any] = []

    class Curious(Processor[str, str, None, None]):
        def process(self, record: Record[str, str]) -> None:
            context = self.context
            told.append((record, context.record_metadata))
            told.append((context.application_id, context.task_id, str(context.state_dir)))
            context.commit()
            context.get_state_store("store").put(record.key, 1)

        def close(self) -> None:
            told.append(threading.current_thread().name)

    process = Process(lambda builder: counts(builder, Curious))
    process.send("a", "1", 77, headers=(("h", b"x"),), partition=2)
    with process.life() as life:
        life.wait()
        assert told[1] == ("app", "global", "global")
    record, place = told[0]
    assert record == Record("a", "1", 77, (("h", b"x"),))
    assert place == (TOPIC, 2, 0)
    assert told[-1] == "tidewheel-global-updater"


@pytest.mark.parametrize(
    ("does", "message"),
    [
        (
            lambda context: context.forward(Record("a", "1", 5)),
            "has no children, so it can't forward",
        ),
        (lambda context: context.current_stream_time_ms(), "has no stream time"),
        (
            lambda context: context.schedule(10, PunctuationType.WALL_CLOCK_TIME, print),
            "has no schedule",
        ),
        (lambda context: context.get_state_store("other"), "no access to store 'other'"),
    ],
)
def test_a_global_store_processor_refuses_operations_of_tasks(
    does: Callable[[ProcessorContext[Any, Any]], Any], message: str
) -> None:
    """No task runs it: Kafka Streams' GlobalProcessorContextImpl."""

    class Tries(Processor[str, str, None, None]):
        def process(self, record: Record[str, str]) -> None:
            does(self.context)

    process = Process(lambda builder: counts(builder, Tries))
    process.send("a", "1")
    with process.life() as life, pytest.raises(StreamsError, match=message):
        life.wait()


@pytest.mark.parametrize(
    "write",
    [
        lambda view: view.put("a", "1"),
        lambda view: view.delete("a"),
        lambda view: view.put_if_absent("a", "1"),
        lambda view: view.put_all({"a": "1"}),
        lambda view: view.__setitem__("a", "1"),
        lambda view: view.__delitem__("a"),
    ],
)
def test_only_its_processor_writes_a_global_store(write: Callable[[Any], Any]) -> None:
    process = Process()
    with process.life() as life:
        life.wait()
        with pytest.raises(
            StreamsError, match=r"store store is global.*write a record to topic rates"
        ):
            write(life.view)
