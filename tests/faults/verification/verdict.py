"""Verification of a counting job: its results are computed again from the committed input.

The checks are those of a Jepsen queue: nothing acknowledged is lost, nothing appears twice, nothing
aborted is seen, and committed offsets never go back.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.faults.verification.committed_offsets import offset_commits
from tests.integration.cluster import Cluster
from tests.integration.outcome import number_of
from tests.integration.programs.jobs import STORE
from tidewheel.rebalance.model import TopicPartition

#: Examples in each list of a verdict.
SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Differences from the expected result; each list has at most `SHOWN` examples.

    Attributes:
        records: Number of input records.
        missing_input: Acknowledged input records that the topic lacks.
        lost: Updates that the output lacks.
        repeated: Updates that the output has more than once.
        wrong: Keys whose output is out of order, or has a count that never was.
        wrong_state: Keys whose changelog differs from the result.
        wrong_copies: Keys of RocksDB copies that differ from the changelog.
        backwards: Commits that moved an offset back.
    """

    records: int
    keys: int
    missing_input: int = 0
    lost: int = 0
    repeated: int = 0
    wrong: list[str] = field(default_factory=list)
    wrong_state: list[str] = field(default_factory=list)
    wrong_copies: list[str] = field(default_factory=list)
    backwards: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not (
            self.missing_input
            or self.lost
            or self.repeated
            or self.wrong
            or self.wrong_state
            or self.wrong_copies
            or self.backwards
        )


def verify(
    cluster: Cluster, application_id: str, source: str, sink: str, acknowledged: Counter[bytes]
) -> Verdict:
    """Verify a job that counts by key under exactly_once and forwards every update.

    `acknowledged` has the number of input records per key that the brokers have acknowledged.
    """
    expected = Counter(record.key for record in cluster.read(source))
    lost = repeated = 0
    wrong: list[str] = []
    output = cluster.values_by_key(sink)
    for key in expected.keys() | output.keys():
        numbers = [number_of(value or b"") for value in output.get(key, [])]
        times = Counter(numbers)
        wanted = range(1, expected[key] + 1)
        lost += sum(times[number] == 0 for number in wanted)
        repeated += sum(count - 1 for count in times.values())
        if numbers != list(wanted):
            wrong.append(f"{key!r}: {numbers[:20]} instead of 1 to {len(wanted)}")
    changelog = {
        key: number_of(value)
        for key, (value, _) in cluster.folded(f"{application_id}-{STORE}-changelog").items()
    }
    wrong_state = [
        f"{key!r}: {changelog.get(key)} instead of {expected.get(key)}"
        for key in expected.keys() | changelog.keys()
        if changelog.get(key) != expected.get(key)
    ]
    return Verdict(
        records=expected.total(),
        keys=len(expected),
        missing_input=(acknowledged - expected).total(),
        lost=lost,
        repeated=repeated,
        wrong=wrong[:SHOWN],
        wrong_state=wrong_state[:SHOWN],
        backwards=list(_backwards(cluster, application_id))[:SHOWN],
    )


def _backwards(cluster: Cluster, application_id: str) -> Iterator[str]:
    last: defaultdict[TopicPartition, int] = defaultdict(int)
    for partition, offset in offset_commits(cluster, application_id):
        if offset < last[partition]:
            yield f"{partition}: {offset} after {last[partition]}"
        last[partition] = offset
    if not last:
        yield "no commit was read"
