"""Wrong use of stores and the context in a processor."""

from tidewheel import (
    KeyValueStore,
    Processor,
    ProcessorContext,
    PunctuationType,
    Record,
    SessionStore,
    TimestampedKeyValueStore,
    ValueAndTimestamp,
    VersionedKeyValueStore,
    Windowed,
    WindowStore,
)


class Uses(Processor[str, str, str, int]):
    def init(self, context: ProcessorContext[str, int]) -> None:
        super().init(context)
        self.counts: KeyValueStore[str, int] = context.get_state_store("counts")
        self.windows: WindowStore[str, int] = context.get_state_store("windows")
        self.sessions: SessionStore[str, int] = context.get_state_store("sessions")
        self.stamped: TimestampedKeyValueStore[str, int] = context.get_state_store("stamped")
        self.prices: VersionedKeyValueStore[str, int] = context.get_state_store("prices")
        context.schedule(5.0, PunctuationType.STREAM_TIME, self.tick)  # error
        context.schedule(5, "stream_time", self.tick)  # error
        context.schedule(5, PunctuationType.STREAM_TIME, lambda: None)  # error

    def tick(self, now_ms: int) -> None: ...

    def process(self, record: Record[str, str]) -> None:
        self.counts.put(5, 5)  # error
        self.counts.put(record.key, record.value)  # error
        self.counts["a"] = "b"  # error
        total: int = self.counts.get(record.key)  # error
        self.windows.put(record.key, 5)  # error
        self.windows.put(record.key, "x", 5)  # error
        print([value.upper() for _, value in self.windows.fetch(record.key, 0, 10)])  # error
        self.sessions.put(record.key, 5)  # error
        self.sessions.put(Windowed("a", 0, 5), "x")  # error
        self.stamped.put("a", 5)  # error
        self.stamped.put("a", ValueAndTimestamp("x", 5))  # error
        self.prices.put("a", "x", 5)  # error
        print(self.prices.get("a").value)  # error
        self.context.forward(record.replace(value=record.value))  # error
        self.context.forward(record.replace(value=5, key=b"x"))  # error
        record.value = "x"  # error
        print(self.context.record_metadata.topic)  # error
        print(Record("a", total))  # error
        record.replace(vlaue=5)  # error
