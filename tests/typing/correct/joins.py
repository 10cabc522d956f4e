"""All joins: joiner parameters, and sides that may be None."""

from dataclasses import dataclass
from datetime import timedelta
from typing import assert_type

from tidewheel import (
    GlobalKTable,
    JoinWindows,
    KGroupedTable,
    KStream,
    KTable,
    Materialized,
    Serdes,
    StreamsBuilder,
)


@dataclass
class Order:
    user: str
    cents: int


builder = StreamsBuilder()
clicks = builder.stream("clicks", key_serde=str, value_serde=str)
amounts = builder.stream("amounts", key_serde=str, value_serde=int)
users = builder.table("users", key_serde=str, value_serde=str)
orders = builder.table("orders", key_serde=int, value_serde=Serdes.json(Order))
ages = builder.table("ages", key_serde=str, value_serde=int)
cities = builder.global_table("cities", key_serde=int, value_serde=bytes)
assert_type(cities, GlobalKTable[int, bytes])


def is_missing(value: object | None) -> bool:
    return value is None


near = JoinWindows(timedelta(minutes=5), after=0, grace=10)
assert_type(
    clicks.join(amounts, lambda page, cents: (page.upper(), cents + 1), within=near),
    KStream[str, tuple[str, int]],
)
assert_type(
    clicks.join(amounts, lambda key, page, cents: len(key + page) + cents, within=near),
    KStream[str, int],
)
assert_type(
    clicks.left_join(amounts, lambda page, cents: page if cents is None else cents, within=near),
    KStream[str, str | int],
)
assert_type(
    clicks.outer_join(amounts, lambda page, cents: (page or "") * (cents or 0), within=near),
    KStream[str, str],
)

assert_type(amounts.join(users, lambda cents, user: f"{user.upper()}{cents}"), KStream[str, str])
assert_type(amounts.join(users, lambda key, cents, user: cents, grace=10), KStream[str, int])
assert_type(amounts.left_join(users, lambda cents, user: is_missing(user)), KStream[str, bool])
assert_type(
    clicks.join(cities, lambda page, city: page.encode() + city, key_selector=len),
    KStream[str, bytes],
)
assert_type(
    clicks.left_join(
        cities, lambda key, page, city: city or b"", key_selector=lambda key, page: len(key)
    ),
    KStream[str, bytes],
)
assert_type(
    clicks.join(
        cities,
        lambda key, mapped, page, city: page.encode() + bytes(mapped) + city,
        key_selector=len,
    ),
    KStream[str, bytes],
)
assert_type(
    clicks.left_join(
        cities,
        lambda key, mapped, page, city: (city or b"") + bytes(mapped or 0),
        key_selector=lambda key, page: len(key),
    ),
    KStream[str, bytes],
)

assert_type(users.join(ages, lambda user, age: (user, age + 1)), KTable[str, tuple[str, int]])
assert_type(users.left_join(ages, lambda user, age: user * (age or 0)), KTable[str, str])
assert_type(
    users.outer_join(ages, lambda user, age: is_missing(user) or is_missing(age)), KTable[str, bool]
)
assert_type(
    orders.join(
        users,
        lambda order, user: f"{user}{order.cents}",
        foreign_key=lambda order: order.user,
        store=Materialized("paid", value_serde=str),
    ),
    KTable[int, str],
)
assert_type(
    orders.left_join(
        users,
        lambda order, user: user or order.user,
        foreign_key=lambda number, order: order.user * number,
    ),
    KTable[int, str],
)

by_user = orders.group_by(lambda number, order: (order.user, order.cents))
assert_type(by_user, KGroupedTable[str, int])
assert_type(by_user.count(), KTable[str, int])
assert_type(by_user.reduce(lambda a, b: a + b, lambda a, b: a - b), KTable[str, int])
assert_type(
    by_user.aggregate(
        float, lambda user, cents, total: total + cents, lambda user, cents, total: total - cents
    ),
    KTable[str, float],
)
assert_type(
    orders.group_by(lambda order: (order.user, order) if order.cents else None),
    KGroupedTable[str, Order],
)
