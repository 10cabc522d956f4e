"""Users' objects in random programs: processors with all kinds of stores, timers, transformers."""

from collections.abc import Callable
from typing import Any

from tests.language.pool import HISTORY_MS, TTL_MS, Pool, Stream, Table, mix, mix_later
from tidewheel import (
    FixedKeyProcessor,
    FixedKeyRecord,
    Processor,
    ProcessorContext,
    PunctuationType,
    Record,
    StoreBuilder,
    Stores,
    ValueTransformerWithKey,
    Windowed,
)

#: (store, record): parts of the result's value.
Look = Callable[[Any, Record[Any, Any]], object]

_TEXT: dict[str, Any] = {"key_serde": str, "value_serde": str}
_TIMER_MS = 10


class _Looks(Processor[Any, Any, Any, Any]):
    def __init__(self, store: str, look: Look) -> None:
        self._store = store
        self._look = look

    def process(self, record: Record[Any, Any]) -> None:
        if record.key is not None:
            found = self._look(self.context.get_state_store(self._store), record)
            self.context.forward(record.replace(value=mix(found, record.value)))


class _LooksLater(Processor[Any, Any, Any, Any]):
    async def process(self, record: Record[Any, Any]) -> None:
        self.context.forward(record.replace(value=await mix_later(record.value)))


class _Stamp(FixedKeyProcessor[Any, Any, Any]):
    def process(self, record: FixedKeyRecord[Any, Any]) -> None:
        self.context.forward(record.replace(value=mix(record.value, record.timestamp)))


class _Collector(Processor[Any, Any, Any, Any]):
    def __init__(self, store: str, clock: PunctuationType) -> None:
        self._store = store
        self._clock = clock

    def init(self, context: ProcessorContext[Any, Any]) -> None:
        super().init(context)
        # A grid through 0: otherwise a stream-time timer is due at the first record after a
        # restart.
        start = 0 if self._clock is PunctuationType.STREAM_TIME else None
        context.schedule(_TIMER_MS, self._clock, self._forward_all, start)

    def process(self, record: Record[Any, Any]) -> None:
        if record.key is not None:
            store = self.context.get_state_store(self._store)
            store.put(record.key, mix(record.value, record.timestamp))

    def _forward_all(self, now_ms: int) -> None:
        store = self.context.get_state_store(self._store)
        for key, value in list(store.all()):
            store.delete(key)
            self.context.forward(Record(key, value, now_ms))


class _Transform(ValueTransformerWithKey[Any, Any, Any]):
    def transform(self, key: Any, value: Any) -> Any:
        return None if value is None or value[0] in "01" else mix(key, value)


class _Numbers(ValueTransformerWithKey[Any, Any, Any]):
    def __init__(self, store: str) -> None:
        self._store = store

    def transform(self, key: Any, value: Any) -> Any:
        store = self.context.get_state_store(self._store)
        asked = mix(store.get(key))
        store.put(key, asked)
        return None if value is None else mix(asked, value)


def _last(store: Any, record: Record[Any, Any]) -> object:
    before = store.get(record.key)
    store.put(record.key, record.value)
    return before


def _all(store: Any, record: Record[Any, Any]) -> object:
    before = _last(store, record)
    return before, list(store.all())


def _versions(store: Any, record: Record[Any, Any]) -> object:
    valid_to = store.put(record.key, record.value, record.timestamp)
    return valid_to, store.get(record.key, record.timestamp - 4), list(store.history(record.key))


def _rows_of_windows(store: Any, record: Record[Any, Any]) -> object:
    store.put(record.key, record.value, record.timestamp)
    return list(store.fetch(record.key, max(record.timestamp - 9, 0), record.timestamp))


def _sessions(store: Any, record: Record[Any, Any]) -> object:
    now = record.timestamp
    found = list(store.find_sessions(record.key, max(now - 5, 0), now + 5))
    for windowed, _ in found:
        store.remove(windowed)
    start = min([now, *(windowed.start for windowed, _ in found)])
    end = max([now, *(windowed.end for windowed, _ in found)])
    store.put(Windowed(record.key, start, end), mix(found, record.value))
    return found


def processed(pool: Pool, s: Stream, make: Callable[..., StoreBuilder], look: Look) -> None:
    name = pool.name()
    pool.builder.add_state_store(make(name))
    pool.streams.append(s.process(lambda: _Looks(name, look), stores=[name]))


def processed_later(pool: Pool, s: Stream) -> None:
    pool.streams.append(s.process(_LooksLater))


def stamped(pool: Pool, s: Stream) -> None:
    pool.streams.append(s.process_values(_Stamp))


def gathered(pool: Pool, s: Stream, clock: PunctuationType) -> None:
    name = pool.name()
    pool.builder.add_state_store(Stores.key_value(name, **_TEXT))
    pool.streams.append(s.process(lambda: _Collector(name, clock), stores=[name]))


def transformed(pool: Pool, t: Table) -> None:
    pool.kept(t.transform_values(_Transform))


def numbered(pool: Pool, t: Table) -> None:
    name = pool.name()
    pool.builder.add_state_store(Stores.key_value(name, **_TEXT))
    pool.kept(t.transform_values(lambda: _Numbers(name), stores=[name], store=pool.name()))


#: (pool, stream): adds a processor with one kind of store.
WITH_STORES: dict[str, Callable[[Pool, Stream], None]] = {
    "process": lambda p, s: processed(p, s, lambda name: Stores.key_value(name, **_TEXT), _last),
    "process_in_memory": lambda p, s: processed(
        p, s, lambda name: Stores.key_value(name, persistent=False, **_TEXT), _all
    ),
    "process_ttl": lambda p, s: processed(
        p, s, lambda name: Stores.key_value(name, ttl=TTL_MS, **_TEXT), _all
    ),
    "process_lru": lambda p, s: processed(
        p, s, lambda name: Stores.lru(name, max_entries=p.most_entries, **_TEXT), _all
    ),
    "process_versioned": lambda p, s: processed(
        p, s, lambda name: Stores.versioned(name, history_retention=HISTORY_MS, **_TEXT), _versions
    ),
    "process_window": lambda p, s: processed(
        p,
        s,
        lambda name: Stores.window(
            name, retention=100, window_size=5, retain_duplicates=True, **_TEXT
        ),
        _rows_of_windows,
    ),
    "process_session": lambda p, s: processed(
        p, s, lambda name: Stores.session(name, retention=100, **_TEXT), _sessions
    ),
}
