"""PostgresUpsert on a real server: rows, positions, owners, refused rows, and errors."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from tests.integration.postgres_server import PostgresServer
from tidewheel import ConfigError, FencedError, StreamsError
from tidewheel.sinks import PostgresUpsert, RowsRefused, SinkBatch, SinkTaskInfo, TopicPartition

pytestmark = pytest.mark.slow

AT = TopicPartition("orders", 0)
_NUMBERS = itertools.count()


@pytest.fixture
def table(postgres: PostgresServer) -> str:
    name = f"totals_{next(_NUMBERS)}"
    postgres.execute(
        f"create table {name} (id text primary key, total int check (total >= 0), about jsonb)"
    )
    return name


def info(start: int = 0, application: str = "shop") -> SinkTaskInfo:
    return SinkTaskInfo(application_id=application, sink="s", task_id="0_0", start={AT: start})


def batch(first: int, rows: Sequence[tuple[Any, Any]]) -> SinkBatch:
    keys, values = zip(*rows, strict=True)
    offsets = range(first, first + len(rows))
    return SinkBatch(AT.topic, AT.partition, offsets, keys, values, [0] * len(rows))


Upsert = Callable[..., PostgresUpsert]


@pytest.fixture
def upsert(postgres: PostgresServer, table: str) -> Iterator[Upsert]:
    sinks: list[PostgresUpsert] = []

    def make(conninfo: str = postgres.conninfo, **options: Any) -> PostgresUpsert:
        options = {"table": table, "key": "id", "columns": ["total"], **options}
        sinks.append(PostgresUpsert(conninfo, **options))
        return sinks[-1]

    yield make
    for sink in sinks:
        sink.close()


def rows(postgres: PostgresServer, table: str) -> list[tuple[Any, ...]]:
    return [row[:2] for row in postgres.execute(f"table {table} order by id")]


def test_last_row_of_each_key_wins_and_a_null_value_deletes(
    postgres: PostgresServer, table: str, upsert: Upsert
) -> None:
    sink = upsert()
    assert sink.open(info()) == {AT: 0}
    sink.write(batch(0, [("a", {"total": 1}), ("b", {"total": 2}), ("a", {"total": 3})]))
    sink.write(batch(3, [("c", {"total": 4}), ("d", {"total": 5}), ("d", None)]))
    sink.flush({AT: 6})
    assert rows(postgres, table) == [("a", 3), ("b", 2), ("c", 4)]
    sink.write(batch(6, [("b", None), ("c", None), ("c", {"total": 9}), ("x", None)]))
    sink.flush({AT: 10})
    sink.close()
    assert rows(postgres, table) == [("a", 3), ("c", 9)]
    assert upsert().open(info()) == {AT: 10}


def test_null_values_may_be_ignored(postgres: PostgresServer, table: str, upsert: Upsert) -> None:
    sink = upsert(tombstones="ignore")
    sink.open(info())
    sink.write(batch(0, [("a", {"total": 1}), ("a", None)]))
    sink.flush({AT: 2})
    assert rows(postgres, table) == [("a", 1)]


@dataclass
class Total:
    total: int
    about: dict[str, Any]


def test_objects_functions_json_and_keys_of_several_columns(
    postgres: PostgresServer, table: str, upsert: Upsert
) -> None:
    sink = upsert(columns=["total", "about"])
    sink.open(info())
    sink.write(batch(0, [("a", Total(1, {"tags": ["x"]}))]))
    sink.flush({AT: 1})
    sink.close()
    assert postgres.execute(f"table {table}") == [("a", 1, {"tags": ["x"]})]
    postgres.execute(f"create unique index on {table} (id, total)")
    sink = upsert(key=["id", "total"], columns=["about"], to_row=lambda key, value: {
        "id": key[0], "total": key[1], "about": value,
    })  # fmt: skip
    sink.open(info())
    sink.write(batch(1, [(("b", 2), [1])]))
    sink.flush({AT: 2})
    sink.write(batch(2, [(("b", 2), None)]))
    sink.flush({AT: 3})
    assert rows(postgres, table) == [("a", 1)]


def test_later_owner_fences_the_earlier_one(
    postgres: PostgresServer, table: str, upsert: Upsert
) -> None:
    earlier, later = upsert(), upsert()
    earlier.open(info())
    earlier.write(batch(0, [("a", {"total": 1})]))
    later.open(info())
    later.write(batch(0, [("a", {"total": 1}), ("b", {"total": 1})]))
    later.flush({AT: 2})
    with pytest.raises(FencedError, match="orders-0"):
        earlier.flush({AT: 1})
    assert rows(postgres, table) == [("a", 1), ("b", 1)]
    assert postgres.execute(
        "select next_offset from tidewheel_positions where target = %s", table
    ) == [(2,)]


def test_earlier_owner_without_a_later_flush_is_fenced_too(
    postgres: PostgresServer, table: str, upsert: Upsert
) -> None:
    earlier, later = upsert(), upsert()
    earlier.open(info())
    earlier.write(batch(0, [("a", {"total": 1})]))
    later.open(info())
    with pytest.raises(FencedError):
        earlier.flush({AT: 1})
    assert rows(postgres, table) == []


def test_refused_rows_are_found_and_nothing_is_stored(
    postgres: PostgresServer, table: str, upsert: Upsert
) -> None:
    sink = upsert()
    sink.open(info())
    values: list[tuple[Any, Any]] = [(f"k{number}", {"total": number}) for number in range(50)]
    values[7] = ("k7", {"total": -1})  # a constraint
    values[20] = ("k20", {"total": 2**40})  # too large for the column
    values[21] = ("nul\0", {"total": 1})  # no text of PostgreSQL
    values[30] = ("k30", {"sum": 1})  # lacks the column
    values[31] = (None, {"total": 1})
    values[40] = ("k40", {"total": "many"})
    sink.write(batch(100, values))
    with pytest.raises(RowsRefused) as mapped:
        sink.flush({AT: 150})
    assert [row.row for row in mapped.value.rows] == [30, 31]
    sink.close()
    assert sink.open(info()) == {AT: 0}
    good = [value for number, value in enumerate(values) if number not in (30, 31)]
    sink.write(batch(100, good))
    with pytest.raises(RowsRefused) as refused:
        sink.flush({AT: 150})
    assert [row.row for row in refused.value.rows] == [7, 20, 21, 38]
    assert not any("k7" in str(row.error) for row in refused.value.rows), "no row is quoted"
    assert rows(postgres, table) == []
    sink.close()
    sink.open(info())
    sink.write(batch(100, [good[n] for n in range(len(good)) if n not in (7, 20, 21, 38)]))
    sink.flush({AT: 150})
    assert len(rows(postgres, table)) == 44


def test_row_that_conflicts_with_an_earlier_one_is_refused(
    postgres: PostgresServer, table: str, upsert: Upsert
) -> None:
    postgres.execute(f"create unique index on {table} (total)")
    sink = upsert()
    sink.open(info())
    sink.write(batch(0, [("a", {"total": 1}), ("b", {"total": 2}), ("c", {"total": 1})]))
    with pytest.raises(RowsRefused) as refused:
        sink.flush({AT: 3})
    assert [row.row for row in refused.value.rows] == [2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "nowhere"}, "no such table"),
        ({"columns": ["total", "colour"]}, "no column colour"),
        ({"key": "total", "columns": ["id"]}, "create unique index"),
        ({"positions_table": "nowhere.positions"}, "positions_table="),
    ],
)
def test_wrong_table_is_a_final_error_with_the_next_step(
    postgres: PostgresServer, table: str, upsert: Upsert, options: dict[str, Any], message: str
) -> None:
    name = options.pop("table", table)
    with pytest.raises(StreamsError, match=message):
        upsert(table=name, **options).open(info())


@pytest.mark.parametrize("name", ["", "a..b", "database.shop.orders"])
def test_text_that_names_no_table_is_rejected(name: str) -> None:
    with pytest.raises(ConfigError, match="names no table"):
        PostgresUpsert(table=name, key="id")
    with pytest.raises(ConfigError, match="names no table"):
        PostgresUpsert(table="orders", key="id", positions_table=name)


def test_table_is_found_by_its_exact_name(postgres: PostgresServer, upsert: Upsert) -> None:
    postgres.execute('create table "Exact" (id text primary key, total int)')
    sink = upsert(table="Exact")
    sink.open(info())
    sink.write(batch(0, [("a", {"total": 1})]))
    sink.flush({AT: 1})
    assert rows(postgres, '"Exact"') == [("a", 1)]
    postgres.execute("create table folded (id text primary key, total int)")
    with pytest.raises(StreamsError, match="no such table"):
        upsert(table="Folded").open(info())


def test_missing_rights_and_generated_columns_end_the_worker(
    postgres: PostgresServer, table: str, upsert: Upsert
) -> None:
    postgres.execute("create role reader login")
    postgres.execute(f"grant select on {table} to reader")
    upsert().open(info())
    postgres.execute("grant select, insert, update, delete on tidewheel_positions to reader")
    sink = upsert(f"{postgres.conninfo} user=reader")
    sink.open(info())
    sink.write(batch(0, [("a", {"total": 1})]))
    with pytest.raises(StreamsError, match="grant the role"):
        sink.flush({AT: 1})
    postgres.execute(f"alter table {table} add twice int generated always as (total * 2) stored")
    generated = upsert(columns=["total", "twice"])
    generated.open(info())
    generated.write(batch(0, [("a", {"total": 1, "twice": 2})]))
    with pytest.raises(StreamsError, match="columns="):
        generated.flush({AT: 1})


def test_password_is_in_no_error() -> None:
    with pytest.raises(ConfigError) as wrong:
        PostgresUpsert("postgresql://app:s3cret@db/?nonsense=1", table="t", key="id")
    assert "s3cret" not in str(wrong.value)
    assert wrong.value.__cause__ is None
    assert "s3cret" not in PostgresUpsert("host=db password=s3cret", table="t", key="id").target


def test_reset_deletes_the_positions_of_one_application(
    postgres: PostgresServer, table: str, upsert: Upsert
) -> None:
    for application in ("shop", "other"):
        sink = upsert()
        sink.open(info(application=application))
        sink.flush({AT: 5})
    upsert().reset("shop")
    assert upsert().open(info()) == {AT: 0}
    assert upsert().open(info(application="other")) == {AT: 5}


def test_first_tasks_may_create_the_table_of_positions_together(
    postgres: PostgresServer, upsert: Upsert
) -> None:
    waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
    sink = upsert(positions_table="first_positions")
    with psycopg.connect(postgres.conninfo) as other, ThreadPoolExecutor(1) as pool:
        other.execute(
            "create table first_positions (application text, target text, topic text, partition int, "
            "next_offset bigint not null, owner text not null, updated_at timestamptz not null default now(), "
            "primary key (application, target, topic, partition))"
        )
        opened = pool.submit(sink.open, info())
        deadline = time.monotonic() + 120
        while postgres.execute(waiting) != [(1,)] and not opened.done():
            assert time.monotonic() < deadline, "the sink does not wait for the other transaction"
            time.sleep(0.01)
        other.commit()
        assert opened.result(120) == {AT: 0}
