"""Wrong functions and arguments of streams and tables."""

from tidewheel import Processor, Record, Serdes, StreamsBuilder

builder = StreamsBuilder()
lines = builder.stream("lines", key_serde=str, value_serde=str)
numbers = builder.stream("numbers", key_serde=str, value_serde=int)
users = builder.table("users", key_serde=str, value_serde=str)


class Length(Processor[str, str, bytes, int]):
    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record)  # error


def joined(key: str, line: str, total: str) -> str:
    return key + line + total


def same(key: str, number: int) -> bool:
    return key == str(number)


lines.filter(lambda a, b, c: True)  # error
lines.map_values(lambda line: line + 1)  # error
numbers.filter(str.isspace)  # error
lines.map(len)  # error
numbers.flat_map_values(abs)  # error
lines.merge(numbers)  # error
numbers.process(Length)  # error
numbers.group_by_key().reduce(lambda total, n: f"{total}{n}")  # error
users.map_values(lambda user: user.nothing)  # error
lines.repartition("name")  # error
builder.stream(7)  # error
builder.stream("lines", key_serde=str, value_serde=Serdes.int64()).map_values(str.upper)  # error
lines.select_key(len).filter(lambda key, line: key.startswith(line))  # error
lines.to(7)  # error
lines.group_by_key().aggregate(int, joined)  # error
lines.foreach(print).map_values(len)  # error
users.filter(lambda user: user > 5)  # error
numbers.to_table().map_values(str.strip)  # error
numbers.split({"text": str.isspace})  # error
numbers.split({"text": lambda n: n.isspace()})  # error
numbers.split({"big": lambda n: n > 9, "text": lambda n: n.isspace()})  # error
numbers.split({"text": lambda key, n: n.isspace()})  # error
numbers.split({"own": same, "text": lambda key, n: n.isspace()})  # error
numbers.split({"whole": bool, "text": lambda n: n.isspace()})  # error
numbers.split({"own": same, "whole": bool, "text": str.isspace})  # error
numbers.split({"all": lambda a, b, c: True})  # error
