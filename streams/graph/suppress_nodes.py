"""The buffer store of `KTable.suppress`, and the search for the windows that it waits for."""

from dataclasses import dataclass

from tidewheel.state_stores.spec import StoreKind, StoreSpec
from tidewheel.streams.definitions.call import Call
from tidewheel.streams.definitions.default_serdes import KEY_DEFAULT, VALUE_DEFAULT, filled
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.graph.logical_graph import GraphNode, TableStore
from tidewheel.streams.serdes.buffered import CHANGELOG_HEADERS, BufferedSerde
from tidewheel.streams.windows import UnlimitedWindows, Windows


@dataclass(eq=False, kw_only=True)
class BufferStore(TableStore):
    """The store of suppressed rows; always created, never queryable."""

    @property
    def takes_default(self) -> bool:
        """Return False: it is always on disk."""
        return False

    def takes_format(self, spec: StoreSpec) -> bool:  # noqa: ARG002 - the signature of a table's store
        """Return True: the format decides how row sizes are counted."""
        return True

    def spec(self, context: str) -> StoreSpec:  # noqa: ARG002 - no error to report
        return StoreSpec(
            name=self.name,
            kind=StoreKind.KEY_VALUE,
            key_serde=filled(self.key_serde, KEY_DEFAULT),
            value_serde=BufferedSerde(filled(self.value_serde, VALUE_DEFAULT)),
            changelog_headers=CHANGELOG_HEADERS,
        )


def windows_above(node: GraphNode, call: Call) -> tuple[Windows, ...]:
    """Return the windows of the nearest aggregations above a node.

    Raise `TopologyError` if there is none, or for windows that never close (Kafka Streams'
    GraphGraceSearchUtil).
    """
    declared = node.table_windows()
    if any(isinstance(windows, UnlimitedWindows) for windows in declared):
        raise TopologyError(
            f"{call.context}: unlimited windows never close, so until_window_closes would emit nothing; use "
            "until_time_limit, or windows that end"
        )
    if declared:
        return declared
    if not node.parents:
        raise TopologyError(
            f"{call.context}: until_window_closes needs a windowed table, but {node.name!r} has no windows; group the "
            "stream and aggregate it with windowed_by(...) before, or use until_time_limit"
        )
    above = [windows for parent in node.parents for windows in windows_above(parent, call)]
    return tuple(dict.fromkeys(above))
