"""`Materialized` and `Stores`: what they make, and what they refuse."""

from collections.abc import Callable
from typing import Any

import pytest

from state_stores.spec import StoreKind
from streams.errors import TopologyError
from streams.materialized import Materialized, Stores
from streams.serdes import Serdes


def test_defaults_of_a_table() -> None:
    """A table is in RocksDB, cached and logged."""
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
    """A processor's store is in RocksDB and logged but not cached, and every option reaches the spec."""
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
        logging=False,
        changelog_config={"retention.ms": "1"},
    )
    assert (tuned.spec.persistent, tuned.spec.caching, tuned.spec.logging) == (False, True, False)
    assert tuned.spec.changelog_config == {"retention.ms": "1"}


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "name": (lambda: Materialized("a b"), "Materialized.*: store name 'a b' has ' '"),
    "name of another type": (lambda: Materialized(7), "store is of type int, not a name"),
    "store type": (
        lambda: Materialized(store_type="disk"),
        "store_type='disk' is not a store type; give 'rocksdb' or 'in_memory'",
    ),
    "serde": (lambda: Materialized(value_serde="json"), "value_serde=<str> is not a serde"),
    "changelog": (lambda: Materialized(changelog_config=["a"]), "changelog_config is of type list"),
    "changelog value": (
        lambda: Materialized(changelog_config={"retention.ms": 1}),
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
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    """What can't be a store is refused where it is written down."""
    make, message = REFUSED[what]
    with pytest.raises(TopologyError, match=message):
        make()
