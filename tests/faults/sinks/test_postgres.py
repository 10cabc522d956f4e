"""Rows in a real PostgreSQL, each exactly once, while workers and the database fail."""

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from tests.faults.conftest import MakeRun
from tests.faults.fault_run import PATIENT, WORKERS, FaultRun, eventually
from tests.integration.postgres_server import PostgresServer

pytestmark = [pytest.mark.timeout(900), pytest.mark.broker, pytest.mark.slow]

KILLS: Final = 10
RATE: Final = 1_000
#: A job's rows are numbered by its own feed.
_TABLES: Final = (
    "create table rows (id text primary key, value bigint check (value >= 0))",
    "create table writes (id text, value bigint)",
    """create function log_write() returns trigger language plpgsql as
    $$ begin insert into writes values (new.id, new.value); return new; end $$""",
    """create trigger log_write after insert or update on rows
    for each row execute function log_write()""",
)


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        for statement in _TABLES:
            server.execute(statement)
        yield server


def numbered_feed(run: FaultRun) -> None:
    """Feed records with a key of their own, so that each is one row."""
    run.feed._make = lambda number: (b"row-%08d" % number, b"%d" % number)


def make(make_run: MakeRun, postgres: PostgresServer, **settings: Any) -> FaultRun:
    target = json.dumps({"kind": "postgres", "conninfo": postgres.conninfo, "table": "rows"})
    run = make_run(job="write_outside", target=target, rate=RATE, **settings)
    numbered_feed(run)
    return run


def check_each_once(run: FaultRun, postgres: PostgresServer) -> int:
    """Stop the feed, wait for the end, and compare every row and every write."""
    run.feed.stop()
    run.until(run._is_consumed, "everything is flushed and committed")
    run.stop()
    expected = {key.decode(): int(value) for key, value in run.feed.records}
    assert dict(postgres.execute("select id, value from rows")) == expected
    writes = Counter(postgres.execute("select id, value from writes"))
    assert writes == Counter(expected.items()), "no row was written twice"
    return len(expected)


@pytest.mark.fault("SINK-KILL")
def test_every_row_is_written_once_while_workers_are_killed(
    make_run: MakeRun, postgres: PostgresServer, record_property: Callable[..., None]
) -> None:
    run = make(make_run, postgres)
    run.begin()
    chance = random.Random(34)
    times: list[float] = []
    for _ in range(KILLS):
        time.sleep(chance.uniform(0.2, 1.5))  # kills strike anywhere
        name = chance.choice(sorted(run.workers))
        run.kill(name)
        run.start(name)
        times.append(run.until_progress())
    record_property("times", KILLS)
    record_property("recovery_s", max(times))
    record_property("records", check_each_once(run, postgres))


@pytest.mark.fault("SINK-KILL")
@pytest.mark.parametrize("place", ["before", "in", "after"])
def test_worker_that_dies_at_a_flush_repeats_and_loses_no_row(
    make_run: MakeRun, postgres: PostgresServer, place: str, record_property: Callable[..., None]
) -> None:
    run = make(make_run, postgres)
    run.begin("a", failpoints=f"{place}_sink_flush:5:kill9")
    run.until(lambda: run.workers["a"].has_ended, "the failpoint kills the worker")
    assert run.workers["a"].wait() == -signal.SIGKILL
    run.dead.append(run.workers.pop("a"))
    run.start("b")
    record_property("recovery_s", run.until_progress())
    record_property("records", check_each_once(run, postgres))


@pytest.mark.fault("SINK-KILL")
@pytest.mark.nightly("TIDEWHEEL_FAULTS")
def test_counts_reach_the_table_through_an_internal_topic(
    make_run: MakeRun, postgres: PostgresServer, record_property: Callable[..., None]
) -> None:
    target = json.dumps({"kind": "postgres", "conninfo": postgres.conninfo, "table": "rows"})
    run = make_run(job="count_outside", target=target)
    run.cluster.create({run.source: 4})
    for name in WORKERS:
        run.start(name)
    run.feed.start()
    chance = random.Random(35)
    for _ in range(KILLS):
        time.sleep(chance.uniform(1.0, 3.0))
        name = chance.choice(sorted(run.workers))
        run.kill(name)
        run.start(name)
    run.feed.stop()
    internal = f"{run.application_id}-outside-sink-repartition"
    run.until(lambda: run.cluster.is_consumed(run.application_id, run.source), "the counts' end")
    run.until(lambda: run.cluster.is_consumed(run.application_id, internal), "the sink's end")
    run.stop()
    counts = Counter(key.decode() for key, _ in run.feed.records)
    assert dict(postgres.execute("select id, value from rows")) == counts
    writes = postgres.execute(
        "select id, count(*), count(distinct value), max(value) from writes group by 1"
    )
    assert all(count == distinct for _, count, distinct, _ in writes), "no count was written twice"
    record_property("times", KILLS)
    record_property("records", len(run.feed.records))


@pytest.mark.fault("SINK-AWAY")
@pytest.mark.parametrize(
    "away_s",
    [3, pytest.param(60, marks=pytest.mark.nightly("TIDEWHEEL_FAULTS"))],
)
def test_rows_wait_in_kafka_while_the_database_is_away(
    make_run: MakeRun, postgres: PostgresServer, away_s: int, record_property: Callable[..., None]
) -> None:
    run = make(make_run, postgres)
    run.begin(("a", "b"))
    run.until_progress()
    epochs = run.epochs()
    postgres.stop()
    time.sleep(away_s)
    assert all(worker.is_running for worker in run.workers.values()), "workers keep running"
    postgres.start()
    record_property("recovery_s", run.until_progress())
    record_property("away_s", away_s)
    assert run.epochs() == epochs, "no task moved"
    assert any("rows wait in Kafka" in worker.log for worker in run.workers.values())
    record_property("records", check_each_once(run, postgres))


@pytest.mark.fault("SINK-ZOMBIE")
@pytest.mark.parametrize("place", ["before", "in"])
def test_worker_that_was_stopped_in_a_flush_adds_nothing_later(
    make_run: MakeRun, postgres: PostgresServer, place: str, record_property: Callable[..., None]
) -> None:
    run = make(make_run, postgres, config=PATIENT)
    run.begin(("a", "b"))
    zombie = run.start("c", failpoints=f"{place}_sink_flush:8:stop")
    assert run.until_one_stops() == "c"
    zombie.signal_all(signal.SIGSTOP)  # the watchdog too
    del run.workers["c"]
    record_property("recovery_s", eventually(run.is_owned, "a and b own everything"))
    run.until_progress()
    zombie.signal_all(signal.SIGCONT)
    run.workers["c"] = zombie
    run.until_progress()
    record_property("records", check_each_once(run, postgres))


@pytest.mark.fault("SINK-REFUSED")
def test_refused_rows_are_dead_letters_and_no_other_row_is_missing(
    make_run: MakeRun, postgres: PostgresServer, record_property: Callable[..., None]
) -> None:
    run = make(
        make_run,
        postgres,
        config={"production_exception_handler": "continue", "dead_letter_queue_topic": "DLQ"},
    )
    letters = f"{run.application_id}-dead"
    run.config["dead_letter_queue_topic"] = letters
    run.cluster.create({letters: 1})

    def record(number: int) -> tuple[bytes, bytes]:
        return b"row-%08d" % number, b"%d" % (-1 if number % 300 == 7 else number)

    run.feed._make = record
    run.begin(("a", "b"))
    for _ in range(3):
        run.until_progress()
        name = min(run.workers)
        run.kill(name)
        run.start(name)
    run.until_progress()
    run.feed.stop()
    run.until(run._is_consumed, "everything is flushed and committed")
    run.stop()
    good = {key.decode(): int(value) for key, value in run.feed.records if value != b"-1"}
    bad = {key for key, value in run.feed.records if value == b"-1"}
    assert dict(postgres.execute("select id, value from rows")) == good
    found = run.cluster.read(letters)
    assert {each.key for each in found} == bad
    headers = dict(found[0].headers)
    assert headers["__streams.errors.topic"] == run.source.encode()
    assert b"CheckViolation" in (headers["__streams.errors.exception"] or b"")
    record_property("refused", len(bad))
    record_property("records", len(run.feed.records))
