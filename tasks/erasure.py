"""Deletion of one key from a store, ordered by an operator."""

import threading

from tidewheel.state_stores.stores.custom_store_host import CustomStore
from tidewheel.state_stores.stores.factory import Store


class Erasure:
    """Deletion of a key, created by the loop's thread and ended by the store's thread.

    Attributes:
        tail: Number of bytes after the record's key in row keys.
        rows: Number of deleted rows.
        problem: Reason of a failure; empty otherwise.
    """

    def __init__(self, store: str, key: bytes, tail: int = 0) -> None:
        self.store = store
        self.key = key
        self.tail = tail
        self.rows = 0
        self.problem = ""
        self._over = threading.Event()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def end(self, *, rows: int = 0, problem: str = "") -> None:
        self.rows, self.problem = rows, problem
        self._over.set()


def refusal_of(store: Store) -> str:
    """Return the reason that forbids deleting keys from a store; empty if allowed."""
    if isinstance(store, CustomStore):
        return "it is a custom store, whose rows are known to its own class only"
    spec = store.buffer.spec
    if spec.internal_rows:
        return spec.internal_rows
    if spec.source_topic is not None:
        return f"it is restored from topic {spec.source_topic}, which still has the row"
    if not spec.logging:
        return "it has no changelog"
    return ""
