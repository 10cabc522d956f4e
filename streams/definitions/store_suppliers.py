"""What kind of store the DSL's operators get where `Materialized` does not say: the setting `dsl_store_suppliers`."""

from typing import Literal

#: How a store of the DSL may be kept by default: on disk, or in memory and restored at every start.
DslStoreType = Literal["rocksdb", "in_memory"]

#: What the rows of a table's store keep by default: value and timestamp, or the record's headers, too.
DslStoreFormat = Literal["DEFAULT", "HEADERS"]


class DslStoreSuppliers:
    """Says per store of the DSL whether it is on disk or in memory; subclass it for the setting `dsl_store_suppliers`.

    Each method is given the store's name, once when the topology is made, and answers "rocksdb" or "in_memory". It is not
    asked about stores whose `Materialized` has a `store_type`.

    >>> class WindowsInMemory(DslStoreSuppliers):
    ...     def window_store(self, name: str) -> DslStoreType:
    ...         return "in_memory"
    >>> WindowsInMemory().window_store("counts"), WindowsInMemory().session_store("visits")
    ('in_memory', 'rocksdb')
    """

    def key_value_store(self, name: str) -> DslStoreType:  # noqa: ARG002 - for those who override it
        """Return how the store of a table without windows, of a join's waiting records or of subscriptions is kept."""
        return "rocksdb"

    def window_store(self, name: str) -> DslStoreType:  # noqa: ARG002 - for those who override it
        """Return how the store of a windowed table, or of one side of a join of streams, is kept."""
        return "rocksdb"

    def session_store(self, name: str) -> DslStoreType:  # noqa: ARG002 - for those who override it
        """Return how the store of a table by session is kept."""
        return "rocksdb"
