"""Wrong keys, joiners, and sides that may be None."""

from tidewheel import JoinWindows, StreamsBuilder

builder = StreamsBuilder()
clicks = builder.stream("clicks", key_serde=str, value_serde=str)
amounts = builder.stream("amounts", key_serde=str, value_serde=int)
numbers = builder.stream("numbers", key_serde=int, value_serde=int)
users = builder.table("users", key_serde=str, value_serde=str)
ages = builder.table("ages", key_serde=str, value_serde=int)
rooms = builder.table("rooms", key_serde=int, value_serde=str)
cities = builder.global_table("cities", key_serde=int, value_serde=str)
near = JoinWindows(10)


def pair(left: str, right: int) -> tuple[str, int]:
    return left, right


clicks.join(amounts, pair)  # error
clicks.join(numbers, pair, within=near)  # error
amounts.join(clicks, pair, within=near)  # error
clicks.left_join(amounts, pair, within=near)  # error
clicks.outer_join(amounts, lambda page, cents: page.upper(), within=near)  # error
clicks.join(amounts, pair, within=10)  # error
clicks.join(ages, pair, within=near)  # error
clicks.left_join(ages, pair)  # error
clicks.join(rooms, lambda page, room: room)  # error
clicks.join(cities, lambda page, city: city)  # error
clicks.join(cities, lambda page, city: city, key_selector=lambda page: page)  # error
users.join(rooms, lambda user, room: room)  # error
users.left_join(ages, pair)  # error
users.join(rooms, lambda user, room: room, foreign_key=lambda user: user)  # error
users.outer_join(ages, lambda user, age: user.upper())  # error
users.group_by(lambda user: user)  # error
users.group_by(lambda user: (user, 1)).reduce(pair, pair)  # error
