"""Rows under other bytes than their keys have now: those written before keys of JSON were sorted (ADR 14)."""

from collections.abc import Callable
from itertools import islice

from state_stores.errors import StoredRowError
from state_stores.ports import Database
from state_stores.spec import StoreSpec
from state_stores.stored_values import key_hash

#: A program fills its keys in one order, so the first rows tell.
_ROWS = 100


def refuse_unsorted_keys(
    spec: StoreSpec, database: Database, topic: str, key_of: Callable[[bytes], bytes]
) -> None:
    """Raise `StoredRowError` if a store with sorted keys has a row under the bytes of another order of fields.

    `key_of` returns the key's bytes of a row.
    """
    serde = spec.key_serde
    if not getattr(serde, "sorts_keys", False):
        return
    for disk_key, _ in islice(database.iterate(spec.name, None, None), _ROWS):
        key = key_of(disk_key)
        try:
            is_sorted = serde.serialize(topic, serde.deserialize(topic, key)) == key
        except Exception:  # noqa: BLE001, S112 - whoever reads the row meets the error, with its reason
            continue
        if not is_sorted:
            raise StoredRowError(
                spec.name,
                "it was written with the fields of its key in the order given, and keys are looked up with their fields sorted",
                key_hash=key_hash(key),
                advice="keep the order with Serdes.json(sort_keys=False) as the key serde, or run tidewheel reset and read the "
                "input again (docs/adr/0014-equal-keys-have-equal-bytes.md)",
            )
