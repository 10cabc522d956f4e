"""Global stores on a fake cluster: restore, updates, crashes."""

import threading
from collections import Counter
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tasks.restore.global_bench import PARTITIONS, TOPIC, CountRecords, Process, counts, table
from tidewheel import (
    Stores,
)
from tidewheel.state_stores.errors import InvalidStateStoreError, StoreCorruptedError
from tidewheel.state_stores.stores.key_value_store import ValueAndTimestamp
from tidewheel.tasks.errors import GlobalStoreDamagedError, MissingSourceTopicError

# -- restoring and following ------------------------------------------------------------------------------------------


def test_the_whole_topic_is_restored_before_tasks_run() -> None:
    process = Process()
    for key, value in [("a", "1"), ("b", "2"), ("c", "3"), ("a", "4"), ("b", None)]:
        process.send(key, value, timestamp=7)
    with process.life() as life:
        life.wait()
        assert life.rows() == {"a": "4", "c": "3"}
        assert life.view.get("a") == ValueAndTimestamp("4", 7)
        assert life.view.get("b") is None
        assert life.view.key_bytes("a") == b"a"
        assert life.view.plain_values([b"a", b"zz", b"c"]) == ["4", None, "3"]


def test_the_restore_listener_is_notified_of_each_partition() -> None:
    process = Process()
    for number in range(20):
        process.send("a", str(number))
    with process.life() as life:
        life.wait()
        assert life.updater.remaining_records == 0
        told = [(event.kind, event.store, event.restored) for event in process.events]
    assert told == [("start", "store", 0), ("batch", "store", 20), ("end", "store", 20)]
    (start, *_) = process.events
    assert (start.topic, start.start, start.end) == (TOPIC, 0, 20)


def test_an_empty_topic_is_restored_immediately() -> None:
    process = Process()
    with process.life() as life:
        life.wait()
        assert life.rows() == {}
    assert process.events == []


@pytest.mark.parametrize("use", [table, counts])
def test_later_records_are_followed(use: Any) -> None:
    process = Process(use)
    process.send("a", "1")
    with process.life() as life:
        life.wait()
        scan = life.view.all()
        next(scan)
        process.send("a", "2")
        process.send("b", "3")
        life.until(lambda: len(life.rows()) == 2)
        expected = {"a": "2", "b": "3"} if use is table else {"a": 2, "b": 1}
        life.until(lambda: life.rows() == expected)
        assert list(scan) == []


def test_F1_restoring_waits_for_open_transactions_and_logs_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    process = Process()
    producer = process.clients.transactional_producer("writer", 60_000)
    producer.init()
    process.send("a", "before", partition=0)
    open_one = process.broker.open_transaction("writer")
    process.broker._append(TOPIC, 0, b"a", b"aborted", 5, (), open_one)
    process.send("a", "behind", partition=0)

    def is_logged() -> bool:
        process.clock.advance(2_000)
        return "an open transaction of transactional id writer" in caplog.text

    with process.life() as life:
        life.until(is_logged)
        assert life.updater.remaining_records == 2
        assert "end" not in [event.kind for event in process.events]
        process.broker.abort("writer")
        life.wait()
        assert life.rows() == {"a": "behind"}
        open_one = process.broker.open_transaction("writer")
        process.broker._append(TOPIC, 0, b"a", b"undecided", 5, (), open_one)
        process.send("b", "other", partition=1)
        life.until(lambda: life.rows() == {"a": "behind", "b": "other"})


@pytest.mark.parametrize("use", [table, counts])
def test_the_next_process_reads_only_new_records(use: Any) -> None:
    process = Process(use)
    for number in range(30):
        process.send(f"k{number % 7}", str(number))
    with process.life() as life:
        life.wait()
        before = life.rows()
    assert process.restored() == 30
    process.send("new", "1")
    with process.life() as life:
        life.wait()
        assert life.rows() == before | {"new": "1" if use is table else 1}
    assert process.restored() == 1


def written(process: Process, known: int) -> bool:
    return len(process.disk.versions["global"]) > known


def test_positions_followed_for_days_are_never_too_old() -> None:
    process = Process()
    process.send("a", "1")
    with process.life() as life:
        life.wait()
        for _ in range(60):
            known = len(process.disk.versions["global"])
            process.clock.advance(3_600_000)
            life.until(partial(written, process, known))
    with process.life() as life:
        life.wait()
        assert life.rows() == {"a": "1"}
    assert process.events == []


def test_a_position_that_is_too_old_is_not_followed() -> None:
    process = Process()
    process.send("gone", "1")
    process.send("a", "1")
    with process.life() as life:
        life.wait()
    process.clock.advance(48 * 3_600_000)
    process.broker.delete_topic(TOPIC)
    process.broker.create_topic(TOPIC, PARTITIONS)
    process.broker.topics[TOPIC].topic_id = (1).to_bytes(
        16, "big"
    )  # the same topic, compacted meanwhile
    process.send("a", "2")
    with process.life() as life:
        life.wait()
        assert life.rows() == {"a": "2"}


def test_a_recreated_topic_is_read_from_its_beginning() -> None:
    process = Process()
    process.send("old", "1")
    with process.life() as life:
        life.wait()
    process.broker.delete_topic(TOPIC)
    process.broker.create_topic(TOPIC, PARTITIONS)
    process.send("new", "1")
    with process.life() as life:
        life.wait()
        assert life.rows() == {"new": "1"}


def test_in_memory_stores_are_restored_at_each_start() -> None:
    process = Process(
        lambda builder: builder.add_global_store(
            Stores.key_value("store", key_serde=str, value_serde=int, persistent=False),
            TOPIC,
            CountRecords,
            key_serde=str,
            value_serde=str,
        )
    )
    for _ in range(2):
        process.send("a", "1")
        with process.life() as life:
            life.wait()
    assert life.stores.counters.applied == 2
    assert process.disk.versions == {}


# -- crashes ----------------------------------------------------------------------------------------------------------

KEYS = st.sampled_from("abcde")
RUNS = st.lists(
    st.lists(st.tuples(KEYS, st.none() | st.sampled_from("xyz")), max_size=12),
    min_size=1,
    max_size=4,
)


@given(RUNS, st.lists(st.integers(0, 25), max_size=4), st.booleans())
def test_stores_are_exact_after_any_crash(
    runs: list[list[tuple[str, str | None]]], crashes: list[int], of_processor: bool
) -> None:
    process = Process(counts if of_processor else table)
    for number, run in enumerate(runs):
        for key, value in run:
            process.send(key, value)
        for crash_after in crashes[number : number + 1]:
            with process.life(crash_after=crash_after) as life:
                life.wait()
    with process.life() as life:
        life.wait()
        everything = [record for run in runs for record in run]
        expected: dict[str, Any] = dict(Counter(key for key, _ in everything))
        if not of_processor:
            expected = {key: value for key, value in dict(everything).items() if value is not None}
        assert life.rows() == expected


def test_a_damaged_database_is_wiped_and_restored() -> None:
    process = Process()
    process.send("a", "1")
    with process.life() as life:
        life.wait()
    process.disk.corrupted.add("global")
    with process.life() as life:
        life.wait()
        assert life.rows() == {"a": "1"}
    assert process.wiped == 1


def test_damage_found_by_a_query_is_an_error_of_the_global_store() -> None:
    process = Process()
    process.send("a", "1")
    with process.life() as life:
        life.wait()
        database = life.stores.manager.database("store")

        def damaged(*_arguments: Any, **_options: Any) -> Any:
            raise StoreCorruptedError("a block is damaged")

        database.get_many = database.iterate = damaged  # type: ignore[method-assign]
        for read in (
            lambda: life.view.get("a"),
            lambda: list(life.view.all()),
            lambda: life.view.plain_values([b"a"]),
        ):
            with pytest.raises(GlobalStoreDamagedError, match="global store store: a block"):
                read()


def test_damage_found_while_writing_ends_the_process_the_same_way() -> None:
    process = Process()
    with process.life() as life:
        life.wait()

        def damaged(*_arguments: Any, **_options: Any) -> None:
            raise StoreCorruptedError("a block is damaged")

        life.stores.manager.database("store").write = damaged  # type: ignore[method-assign]
        process.send("a", "1")
        with pytest.raises(GlobalStoreDamagedError, match="a block is damaged"):
            life.until(lambda: False)
        assert life.rows() == {}  # running tasks meet no closed store


def test_records_deleted_before_they_were_read_end_the_process_the_same_way() -> None:
    process = Process()
    process.send("a", "1", partition=0)
    with process.life() as life:
        life.wait()
        with process.broker.lock:
            log = process.broker.topics[TOPIC].logs[0]
            log.entries.clear()
            log.start = 9
        with pytest.raises(GlobalStoreDamagedError, match="gone before they were read"):
            life.until(lambda: False)


def test_a_missing_topic_is_named() -> None:
    process = Process()
    process.broker.delete_topic(TOPIC)
    with process.life() as life, pytest.raises(MissingSourceTopicError, match=TOPIC):
        life.wait()


def test_a_stop_ends_the_wait() -> None:
    process = Process()
    stopped = threading.Event()
    stopped.set()
    with process.life() as life:
        assert not life.updater.wait(stopped)


def test_a_closed_store_raises() -> None:
    process = Process()
    with process.life() as life:
        life.wait()
    with pytest.raises(InvalidStateStoreError):
        life.view.get("a")
