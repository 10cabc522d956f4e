"""Final checks of counting jobs: exact changelog, and output by guarantee."""

import struct
from collections.abc import Mapping

from tests.integration.cluster import Cluster, until
from tests.integration.programs.jobs import STORE
from tidewheel import KafkaStreams, ValueAndTimestamp


def assert_counted(
    cluster: Cluster,
    guarantee: str,
    application_id: str,
    sink: str,
    expected: Mapping[bytes, int],
) -> None:
    """Check changelog and output of a job that forwards every update.

    The changelog has exactly these counts. Under exactly_once the output of each key is 1, 2, … n
    in order. Under at_least_once it has each of these at least once and no others.
    """
    changelog = cluster.folded(f"{application_id}-{STORE}-changelog")
    assert {key: number_of(value) for key, (value, _) in changelog.items()} == expected
    output = {
        key: [number_of(value or b"") for value in values]
        for key, values in cluster.values_by_key(sink).items()
    }
    if guarantee == "exactly_once":
        assert output == {key: list(range(1, count + 1)) for key, count in expected.items()}
    else:
        assert {key: set(values) for key, values in output.items()} == {
            key: set(range(1, count + 1)) for key, count in expected.items()
        }


def number_of(data: bytes) -> int:
    """Decode a number of Kafka's LongSerializer."""
    (number,) = struct.unpack(">q", data)
    return int(number)


def wait_for_counts(app: KafkaStreams, store: str, total: int) -> dict[str, ValueAndTimestamp[int]]:
    """Return the store once its counts add up to `total`; offsets are visible before its rows."""
    content: dict[str, ValueAndTimestamp[int]] = {}

    def are_there() -> bool:
        content.update(app.store(store).all())
        return sum(row.value for row in content.values()) >= total

    until(are_there, "the store has what was committed")
    return content
