from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tidewheel.state_stores.spec import StoreKind, StoreSpec
from tidewheel.streams.definitions.materialized import Materialized
from tidewheel.streams.definitions.stores import Stores
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.serdes import Serdes


def test_defaults_of_a_table() -> None:
    spec = Materialized("s").spec("s", Serdes.string(), Serdes.int64())
    assert spec.kind is StoreKind.TIMESTAMPED_KEY_VALUE
    assert (spec.persistent, spec.caching, spec.logging) == (True, True, True)
    assert spec.changelog_config == {}


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (Stores.key_value, StoreKind.KEY_VALUE),
        (Stores.timestamped_key_value, StoreKind.TIMESTAMPED_KEY_VALUE),
    ],
)
def test_stores_of_processors(make: Callable[..., Any], kind: StoreKind) -> None:
    plain = make("s", key_serde=str, value_serde=int)
    assert plain.spec.kind is kind
    assert (plain.spec.persistent, plain.spec.caching, plain.spec.logging) == (True, False, True)
    assert (plain.spec.key_serde, plain.spec.value_serde) == (Serdes.string(), Serdes.int64())
    assert "test_materialized.py:" in plain.location
    tuned = make(
        "s",
        key_serde=str,
        value_serde=int,
        persistent=False,
        caching=True,
        changelog_config={"retention.ms": "1"},
    )
    assert (tuned.spec.persistent, tuned.spec.caching, tuned.spec.logging) == (False, True, True)
    assert tuned.spec.changelog_config == {"retention.ms": "1"}
    assert not make("s", key_serde=str, value_serde=int, logging=False).spec.logging


def test_every_kind_of_store_of_a_processor() -> None:
    serdes: dict[str, Any] = {"key_serde": str, "value_serde": int}
    ended = Stores.key_value("s", ttl=timedelta(seconds=1), **serdes).spec
    assert (ended.kind, ended.ttl_ms) == (StoreKind.KEY_VALUE, 1_000)
    ended = Stores.timestamped_key_value("s", ttl=5, **serdes).spec
    assert (ended.kind, ended.ttl_ms) == (StoreKind.TIMESTAMPED_KEY_VALUE, 5)
    recent = Stores.lru("s", max_entries=7, **serdes).spec
    assert (recent.kind, recent.max_entries, recent.persistent) == (StoreKind.KEY_VALUE, 7, False)
    assert Stores.lru("s", max_entries=7, persistent=True, **serdes).spec.persistent
    versions = Stores.versioned("s", history_retention=timedelta(minutes=1), **serdes).spec
    assert (versions.kind, versions.history_retention_ms) == (StoreKind.VERSIONED, 60_000)
    window = Stores.window("s", retention=9, window_size=5, retain_duplicates=True, **serdes).spec
    assert (window.kind, window.retention_ms, window.window_size_ms) == (StoreKind.WINDOW, 9, 5)
    assert window.retain_duplicates
    window = Stores.timestamped_window("s", retention=9, window_size=5, **serdes).spec
    assert window.kind is StoreKind.TIMESTAMPED_WINDOW
    session = Stores.session("s", retention=9, **serdes).spec
    assert (session.kind, session.retention_ms) == (StoreKind.SESSION, 9)


def table_spec(**options: Any) -> StoreSpec:
    return Materialized("s", **options).spec("s", Serdes.string(), Serdes.int64(), context="count")


def window_spec(**options: Any) -> StoreSpec:
    return Materialized("s", **options).window_spec(
        "s",
        Serdes.string(),
        Serdes.int64(),
        needed_retention_ms=15,
        window_size_ms=10,
        context="count (app.py:1)",
    )


def test_the_store_types_of_tables() -> None:
    versions = table_spec(store_type="versioned", history_retention=50)
    assert (versions.kind, versions.history_retention_ms) == (StoreKind.VERSIONED, 50)
    assert (versions.persistent, versions.caching) == (True, False)
    recent = table_spec(store_type="lru", max_entries=5)
    assert (recent.kind, recent.max_entries) == (StoreKind.TIMESTAMPED_KEY_VALUE, 5)
    assert (recent.persistent, recent.caching) == (False, False)
    ended = table_spec(ttl=timedelta(seconds=2))
    assert (ended.ttl_ms, ended.caching, ended.persistent) == (2_000, True, True)
    assert not table_spec(store_type="in_memory").persistent


def test_a_windowed_table_is_kept_as_long_as_it_may_change() -> None:
    spec = window_spec()
    assert (spec.kind, spec.retention_ms, spec.window_size_ms) == (
        StoreKind.TIMESTAMPED_WINDOW,
        15,
        10,
    )
    assert window_spec(retention=15).retention_ms == 15
    assert window_spec(retention=timedelta(seconds=1), store_type="in_memory").retention_ms == 1_000
    message = (
        r"count \(app.py:1\): retention=14 \(14 ms\) is too short, windows may change for 15 ms"
    )
    with pytest.raises(TopologyError, match=message):
        window_spec(retention=14)
    session = Materialized("s").session_spec(
        "s", Serdes.string(), Serdes.int64(), needed_retention_ms=7, context="count"
    )
    assert (session.kind, session.retention_ms, session.caching) == (StoreKind.SESSION, 7, True)


#: Untyped, for wrong calls.
ANY_TABLE: Any = Materialized
ANY_STORES: Any = Stores

REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "name": (lambda: Materialized("a b"), "Materialized.*: store name 'a b' has ' '"),
    "name of another type": (lambda: ANY_TABLE(7), "store is of type int, not a name"),
    "store type": (
        lambda: ANY_TABLE(store_type="disk"),
        "store_type='disk' is not a store type; give 'rocksdb' or 'in_memory'",
    ),
    "serde": (lambda: ANY_TABLE(value_serde="json"), "value_serde=<str> is not a serde"),
    "changelog": (lambda: ANY_TABLE(changelog_config=["a"]), "changelog_config is of type list"),
    "changelog value": (
        lambda: ANY_TABLE(changelog_config={"retention.ms": 1}),
        r"changelog_config\['retention.ms'\] is of type int; Kafka takes topic settings as text",
    ),
    "stores name": (
        lambda: Stores.key_value("", key_serde=str, value_serde=int),
        r"Stores.key_value \(.*test_materialized.py:\d+\): store name is empty",
    ),
    "stores serde": (
        lambda: Stores.key_value("s", key_serde=str, value_serde=object),
        "value_serde=object: there is no plain serde of this type",
    ),
    "versions without history": (
        lambda: Materialized(store_type="versioned"),
        "store_type='versioned' and history_retention= go together, .* history_retention is None",
    ),
    "history without versions": (
        lambda: Materialized(history_retention=5),
        "go together, but store_type is 'rocksdb' and history_retention is 5",
    ),
    "lru without a maximum": (
        lambda: Materialized(store_type="lru"),
        "store_type='lru' and max_entries= go together",
    ),
    "maximum": (
        lambda: Materialized(store_type="lru", max_entries=0),
        "max_entries=0 must be an int of at least 1",
    ),
    "ttl of versions": (
        lambda: Materialized(store_type="versioned", history_retention=5, ttl=5),
        "a versioned table has no ttl",
    ),
    "ttl": (lambda: Materialized(ttl=0), "ttl=0 is too short; give at least 1 ms"),
    "retention": (
        lambda: ANY_TABLE(retention="one hour"),
        "retention='one hour' is not a duration",
    ),
    "retention of a table": (lambda: table_spec(retention=5), "retention= is for windowed tables"),
    "ttl of windows": (lambda: window_spec(ttl=5), "ttl= is not for windowed tables"),
    "lru windows": (
        lambda: window_spec(store_type="lru", max_entries=5),
        r"count \(app.py:1\): store_type='lru' is not for windowed tables",
    ),
    "stores option": (
        lambda: ANY_STORES.session("s", retention=5, key_serde=str, value_serde=int, size=5),
        "there is no option size; every kind of store takes persistent, caching",
    ),
    "stores lru": (
        lambda: ANY_STORES.lru("s", max_entries=None, key_serde=str, value_serde=int),
        "max_entries=None must be an int of at least 1",
    ),
    "stores versioned cache": (
        lambda: Stores.versioned(
            "s", history_retention=5, caching=True, key_serde=str, value_serde=int
        ),
        "a versioned store has no cache",
    ),
    "stores window": (
        lambda: Stores.window("s", retention=4, window_size=5, key_serde=str, value_serde=int),
        r"Stores.window \(.*test_materialized.py:\d+\): retention=4 is shorter than a window of 5 ms",
    ),
    "stores duplicates cache": (
        lambda: Stores.window(
            "s",
            retention=5,
            window_size=5,
            retain_duplicates=True,
            caching=True,
            key_serde=str,
            value_serde=int,
        ),
        "a store that retains duplicates has no cache",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    make, message = REFUSED[what]
    with pytest.raises(TopologyError, match=message):
        make()
