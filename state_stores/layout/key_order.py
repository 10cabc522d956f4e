"""Check for keys written before dict keys were sorted (ADR 14)."""

from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from tidewheel.state_stores.errors import StoredRowError
from tidewheel.state_stores.layout.stored_values import key_hash
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.spec import StoreSpec

#: Rows checked per store: a program builds all its keys in one field order, so a few suffice.
_ROWS = 100


RESET: Final = (
    "keep the order with sort_keys=False of the key serde (Serdes.json, Serdes.msgpack), or run tidewheel reset and read the "
    "input again (docs/adr/0014-equal-keys-have-equal-bytes.md)"
)


def reject_unsorted_keys(
    spec: StoreSpec,
    database: Database,
    topic: str,
    key_of: Callable[[bytes], bytes],
    advice: str = RESET,
) -> None:
    """Raise `StoredRowError` if a row's key has unsorted fields: lookups would not find it."""
    serde: Any = spec.key_serde
    if not getattr(serde, "sorts_keys", False):
        return
    for disk_key, _ in islice(database.iterate(spec.name, None, None), _ROWS):
        key = key_of(disk_key)
        try:
            again = serde.sorted_key(topic, key)
        except Exception:  # noqa: BLE001, S112 - reads of the row raise this error with its reason
            continue
        # The same bytes in another sequence mean another field order; a newer class or schema
        # changes the bytes.
        is_sorted = again is None or again == key or sorted(again) != sorted(key)
        if not is_sorted:
            raise StoredRowError(
                spec.name,
                "it was written with unsorted fields in its key, and reads use sorted fields",
                key_hash=key_hash(key),
                advice=advice,
            )
