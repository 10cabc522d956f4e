"""Stores with headers: model test, disk format, and changelog records."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.state_stores.stores.store_bench import TOPIC, StoreBench, begins, spec_of
from tidewheel.state_stores.errors import InvalidStateStoreError, StoreCorruptedError
from tidewheel.state_stores.layout.envelope import unwrap_value, unwrap_with_headers, wrap_value
from tidewheel.state_stores.layout.headers import Headers, encode_headers, split_headers
from tidewheel.state_stores.spec import StoreKind
from tidewheel.state_stores.stores.factory import make_committed_store
from tidewheel.state_stores.stores.key_value_store import ValueAndTimestamp, ValueTimestampHeaders
from tidewheel.state_stores.stores.session_store import AggregationWithHeaders
from tidewheel.state_stores.stores.windowed import Windowed

headers_of_records = st.lists(
    st.tuples(st.sampled_from(["", "trace", "é"]), st.none() | st.binary(max_size=70)), max_size=3
).map(tuple)

KINDS = [StoreKind.TIMESTAMPED_KEY_VALUE, StoreKind.TIMESTAMPED_WINDOW, StoreKind.SESSION]

#: Steps: a put or (None) a delete at a key and a time, a commit, or a reopening.
steps = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.integers(0, 3),
        st.none() | st.tuples(st.integers(-5, 5), headers_of_records),
    )
    | st.just("commit")
    | begins,
    max_size=25,
)


def bench_of(kind: StoreKind, *, rocksdb: bool, keeps_headers: bool = True, **changes: Any) -> Any:
    limits = {} if kind is StoreKind.TIMESTAMPED_KEY_VALUE else {"retention_ms": 1_000_000}
    spec = spec_of(kind, keeps_headers=keeps_headers, window_size_ms=10, **limits, **changes)
    return StoreBench(spec, rocksdb=rocksdb)


def put(bench: StoreBench, key: str, time: int, row: tuple[int, Headers] | None) -> Any:
    store = bench.store
    value: Any = None if row is None else ValueTimestampHeaders(row[0], time, row[1])
    match bench.spec.kind:
        case StoreKind.SESSION:
            session = Windowed(key, time, time + 1)
            store.put(session, None if row is None else AggregationWithHeaders(*row))
            return session
        case StoreKind.TIMESTAMPED_WINDOW:
            store.put(key, value, time)
            return Windowed(key, time, time + 10)
        case _:
            store.put(key, value)
            return key


def shown(kind: StoreKind, store: Any) -> dict[Any, tuple[int, Headers]]:
    found = dict[Any, tuple[int, Headers]]()
    if kind is StoreKind.SESSION:
        for session, each in store.fetch_range(None, None):
            found[session] = (each.aggregation, each.headers)
            assert store.fetch_session(session.key, session.start, session.end) == each
        return found
    for key, each in store.all():
        found[key] = (each.value, each.headers)
        at = (key,) if isinstance(key, str) else (key.key, key.start)
        assert (store.get if isinstance(key, str) else store.fetch)(*at) == each
    return found


@pytest.mark.parametrize("rocksdb", [False, True], ids=["in_memory", "rocksdb"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_store_with_headers_equals_a_dictionary(kind: StoreKind, rocksdb: bool) -> None:
    @settings(max_examples=20)
    @given(steps=steps)
    def check(steps: list[Any]) -> None:
        bench = bench_of(kind, rocksdb=rocksdb, caching=True)
        model: dict[Any, tuple[int, Headers]] = {}
        committed = dict(model)
        queried = make_committed_store(
            bench.spec, TOPIC, lambda: [bench.database], with_headers=True
        )
        try:
            for step in steps:
                match step:
                    case "commit":
                        bench.commit()
                        committed = dict(model)
                    case (str() as key, int() as time, row):
                        at = put(bench, key, time, row)
                        model.pop(at, None)
                        if row is not None:
                            model[at] = row
                    case _:
                        bench.reopen_or_restore(step)
                        model = dict(committed)
                assert shown(kind, bench.store) == model
                assert shown(kind, queried) == committed
        finally:
            bench.close()

    check()


@given(headers=headers_of_records, value=st.binary(max_size=20))
def test_headers_survive_encoding(headers: Headers, value: bytes) -> None:
    assert split_headers(encode_headers(headers) + value) == (headers, value)


@given(st.binary(max_size=40))
def test_invalid_headers_are_a_corrupted_store(data: bytes) -> None:
    for read in (split_headers, lambda each: unwrap_value(b"\x21" + bytes(8) + each)):
        with suppress(StoreCorruptedError):
            read(data)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_without_headers_is_the_same_in_every_store(kind: StoreKind) -> None:
    kept, plain = (bench_of(kind, rocksdb=False, keeps_headers=each) for each in (True, False))
    put(kept, "a", 2, (3, ()))
    match kind:
        case StoreKind.SESSION:
            plain.store.put(Windowed("a", 2, 3), 3)
        case StoreKind.TIMESTAMPED_WINDOW:
            plain.store.put("a", ValueAndTimestamp(3, 2), 2)
        case _:
            plain.store.put("a", ValueAndTimestamp(3, 2))
    for bench in (kept, plain):
        bench.commit()
    assert kept.disk_rows() == plain.disk_rows()
    assert kept.changelog == plain.changelog
    assert kept.headers == plain.headers == [()]


def test_the_changelog_has_the_bare_value_and_headers_in_the_record() -> None:
    """As Kafka Streams' ChangeLoggingTimestampedKeyValueBytesStoreWithHeaders writes it."""
    bench = bench_of(StoreKind.TIMESTAMPED_KEY_VALUE, rocksdb=False)
    trace = (("trace", b"1"), ("trace", None))
    put(bench, "a", 2, (3, trace))
    put(bench, "b", 2, (4, ()))
    bench.commit()
    assert bench.changelog == [(b"a", (3).to_bytes(8), 2), (b"b", (4).to_bytes(8), 2)]
    assert bench.headers == [trace, ()]
    assert dict(bench.disk_rows())[b"b"] == wrap_value((4).to_bytes(8), 2)
    assert unwrap_with_headers(dict(bench.disk_rows())[b"a"])[0].startswith(encode_headers(trace))


def test_queries_return_values_and_timestamps() -> None:
    bench = bench_of(StoreKind.TIMESTAMPED_KEY_VALUE, rocksdb=False)
    put(bench, "a", 2, (3, (("trace", b"1"),)))
    bench.commit()
    assert list(bench.committed.all()) == [("a", ValueAndTimestamp(3, 2))]


@pytest.mark.parametrize(
    "bad", ["ab", (("a", "text"),), (["a", b"1"],), None, {"a": b"1"}, ((b"a", b"1"),), (("a",),)]
)
def test_headers_that_kafka_refuses_are_refused_at_the_put(bad: Any) -> None:
    for kind in KINDS:
        bench = bench_of(kind, rocksdb=False)
        with pytest.raises(TypeError, match="store store: header"):
            put(bench, "a", 1, (3, bad))
        assert shown(kind, bench.store) == {}


def test_values_without_headers_are_rejected() -> None:
    keyed, windows, sessions = (bench_of(kind, rocksdb=False).store for kind in KINDS)
    with pytest.raises(TypeError, match=r"store store holds ValueTimestampHeaders\(.*not int"):
        keyed.put("a", 3)
    with pytest.raises(TypeError, match=r"store store holds ValueTimestampHeaders\(.*not int"):
        windows.put("a", 3, 1)
    with pytest.raises(TypeError, match=r"store store holds AggregationWithHeaders\(.*not int"):
        sessions.put(Windowed("a", 1, 2), 3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_query_with_headers_of_a_store_without_them_is_refused(kind: StoreKind) -> None:
    bench = bench_of(kind, rocksdb=False, keeps_headers=False)
    with pytest.raises(
        InvalidStateStoreError, match="store store keeps no headers; set dsl_store_format"
    ):
        make_committed_store(bench.spec, TOPIC, lambda: [bench.database], with_headers=True)
    bench.close()
