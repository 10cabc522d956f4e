"""Topologies for batch runs, whose functions executors import from here."""

import os
import signal
import uuid
from collections import Counter
from functools import partial
from pathlib import Path

import msgspec
import psutil

from tidewheel import Materialized, Serdes, StreamsBuilder, TimeWindows, Topology

_EXECUTOR = "CoarseGrainedExecutorBackend"


def counted() -> Topology:
    """Counts by another key than that of the records."""
    builder = StreamsBuilder()
    lines = builder.stream("in", key_serde=str, value_serde=str)
    grouped = lines.select_key(_length).group_by_key(key_serde=str, value_serde=str)
    grouped.count(store="counts").to_stream().to("out", key_serde=str, value_serde=int)
    return builder.build()


def _length(key: str | None, value: str | None) -> str:
    return f"{key}-{len(value or '')}"


def windowed() -> Topology:
    builder = StreamsBuilder()
    lines = builder.stream("in", key_serde=str, value_serde=str)
    counts = lines.group_by_key().windowed_by(TimeWindows(10, grace=1_000)).count(store="windows")
    counts.to_stream().map(lambda window, count: (window.key, f"{window.start}: {count}")).to(
        "out", key_serde=str, value_serde=str
    )
    return builder.build()


def joined() -> Topology:
    builder = StreamsBuilder()
    users = builder.table("users", key_serde=str, value_serde=str, store="users")
    clicks = builder.stream("clicks", key_serde=str, value_serde=str)
    clicks.left_join(users, lambda click, user: f"{click} by {user}").to("out", value_serde=str)
    return builder.build()


def joined_by_foreign_key() -> Topology:
    builder = StreamsBuilder()
    users = builder.table("users", key_serde=str, value_serde=str, store="users")
    orders = builder.table("orders", key_serde=str, value_serde=str)
    both = orders.left_join(
        users,
        lambda order, user: f"{order} by {user}",
        foreign_key=_user,
        store=Materialized("joined", value_serde=str),
    )
    both.to_stream().to("out", key_serde=str, value_serde=str)
    return builder.build()


def _user(order: str) -> str:
    return "abcdef"[len(order) % 6]


class Payment(msgspec.Struct, frozen=True):
    city: str
    cents: int | None


def payments() -> Topology:
    """Fields as value, one output for each kind of column, and a global table."""
    builder = StreamsBuilder()
    names = builder.global_table("cities", key_serde=str, value_serde=str, store="cities")
    paid = builder.stream("payments", key_serde=int, value_serde=Serdes.json(Payment))
    paid.map_values(lambda payment: payment.cents).to("cents", value_serde=int)
    named = paid.left_join(
        names, lambda payment, name: name, key_selector=lambda _, payment: payment.city
    )
    named.to("names", value_serde=str)
    return builder.build()


#: Calls of `kill_in_call` in this process, by marker.
_calls: Counter[str] = Counter()


def kill_in_call(number: int, marker: str) -> None:
    """In one process, kill it and its executor in that call."""
    _calls[marker] += 1
    if _calls[marker] < number:
        return
    try:
        Path(marker).touch(exist_ok=False)
    except FileExistsError:
        return
    for process in psutil.Process().parents():
        if _EXECUTOR in " ".join(process.cmdline()):
            process.kill()
    os.kill(os.getpid(), signal.SIGKILL)


def drawn(folder: Path, prefix: str = "") -> Topology:
    """Draws a key for each record and counts it; executors are killed in both steps.

    `prefix` of its topics.
    """
    builder = StreamsBuilder()
    numbers = builder.stream(f"{prefix}numbers", key_serde=str, value_serde=int)
    keyed = numbers.select_key(partial(_drawn, str(folder / "drawing")))
    keyed.to(f"{prefix}drawn", key_serde=str, value_serde=int)
    counts = keyed.group_by_key(key_serde=str, value_serde=int).count(store="counts")
    counts.to_stream().map_values(partial(_seen, str(folder / "counting"))).to(
        f"{prefix}counted", key_serde=str, value_serde=int
    )
    return builder.build()


def _drawn(marker: str, _key: str, _number: int) -> str:
    kill_in_call(100, marker)
    return str(uuid.uuid4())  # noqa: TID251 - another key in each attempt


def _seen(marker: str, count: int) -> int:
    kill_in_call(50, marker)
    return count
