"""Wrong grouped tables, suppress and transform_values."""

from tidewheel import BufferConfig, StreamsBuilder, Suppressed, ValueTransformerWithKey

builder = StreamsBuilder()
users = builder.table("users", key_serde=str, value_serde=str)
stock = builder.table("stock", key_serde=str, value_serde=int)


class Length(ValueTransformerWithKey[str, str, int]):
    def transform(self, key: str, value: str | None) -> int | None:
        return len(value)  # error


users.group_by(lambda name, city: city)  # error
users.group_by(lambda city: (len(city), city), key_serde=str, value_serde=str)  # error
users.group_by(lambda name, city: (len(city), city), key_serde=str)  # error
stock.group_by(lambda item, pieces: (item, pieces)).reduce(max)  # error
stock.suppress(BufferConfig.unbounded())  # error
stock.suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))  # error
Suppressed.until_window_closes(BufferConfig.max_records(10))  # error
Suppressed.until_window_closes(5)  # error
BufferConfig.max_records("many")  # error
stock.transform_values(Length)  # error
users.transform_values(Length())  # error
