"""Field types of control records: ranges and text patterns."""

from typing import Annotated, Final, Literal

from msgspec import Meta

from tidewheel.rebalance.model import BootstrapPhase, MemberPhase, TaskPhase, TaskRole
from tidewheel.rebalance.protocol.plain_text import UNPRINTABLE

#: Largest valid count or epoch; only forged records exceed it.
COUNT_MAX: Final = 1 << 53
#: Largest valid `Counter`, at any leader epoch.
_COUNTER_MAX: Final = 1 << 62
#: At leader epoch e, a counter above the first number + e * the second is forged: leaders do not
#: count that far.
_COUNTED_AT_FIRST: Final = 1 << 32
_COUNTED_IN_A_TERM: Final = 1 << 20
#: Maximum partitions in one record, over all topics.
PARTITIONS_MAX: Final = 1_000_000
OFFSET_MAX: Final = (1 << 63) - 1
_HASH_MAX: Final = 1 << 32
_DAY_MS: Final = 86_400_000

_TOPIC: Final = "[A-Za-z0-9._-]{1,249}"
_PRINTABLE: Final = f"[^{UNPRINTABLE}]"

Version = Annotated[int, Meta(ge=1, le=1 << 31)]
Epoch = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
#: Task, step, target and learn epochs.
Counter = Annotated[int, Meta(ge=0, le=_COUNTER_MAX)]
Sequence = Annotated[int, Meta(ge=-1, le=OFFSET_MAX)]
Offset = Annotated[int, Meta(ge=0, le=OFFSET_MAX)]
#: -1: unknown.
OptionalOffset = Annotated[int, Meta(ge=-1, le=OFFSET_MAX)]
KeyHash = Annotated[int, Meta(ge=0, le=_HASH_MAX)]
OptionalKeyHash = Annotated[int, Meta(ge=-1, le=_HASH_MAX)]
Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
Rate = Annotated[float, Meta(ge=0, le=1e15)]
DurationMs = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
SessionMs = Annotated[int, Meta(ge=1, le=_DAY_MS)]
#: Stream threads of a member: its capacity for tasks.
Threads = Annotated[int, Meta(ge=1, le=65_536)]
PartitionCount = Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)]

#: Description by text pattern, for rejection messages.
FORMS: Final[dict[str, str]] = {}


def _form(pattern: str, meaning: str) -> Meta:
    FORMS[pattern] = meaning
    return Meta(pattern=pattern)


def _one_of(values: type[MemberPhase | TaskPhase | TaskRole | BootstrapPhase], noun: str) -> Meta:
    return _form(f"\\A({'|'.join(values)})\\Z", f"{noun} ({', '.join(values)})")


TaskText = Annotated[
    str,
    _form(
        "\\A(0|[1-9][0-9]{0,8})_(0|[1-9][0-9]{0,8})\\Z",
        "a task id, such as 0_1 (sub-topology, partition)",
    ),
]
ShardText = Annotated[
    str,
    _form(
        "\\A(0|[1-9][0-9]{0,8})_(0|[1-9][0-9]{0,8})/"
        "([01]of2|[0-3]of4|[0-7]of8|([0-9]|1[0-5])of16|([0-9]|[12][0-9]|3[01])of32|([0-9]|[1-5][0-9]|6[0-3])of64)\\Z",
        "the task id of a shard, such as 0_1/2of4 (sub-topology, partition, shard)",
    ),
]
#: Task id in a message that only members of protocol version 2 send.
AnyTaskText = Annotated[
    str,
    _form(
        "\\A(0|[1-9][0-9]{0,8})_(0|[1-9][0-9]{0,8})"
        "(/([01]of2|[0-3]of4|[0-7]of8|([0-9]|1[0-5])of16|([0-9]|[12][0-9]|3[01])of32|([0-9]|[1-5][0-9]|6[0-3])of64))?\\Z",
        "a task id, such as 0_1 (sub-topology, partition) or 0_1/2of4 (and shard)",
    ),
]
#: Number of shards of each partition; 1: whole tasks.
ShardCount = Literal[1, 2, 4, 8, 16, 32, 64]
TopicText = Annotated[str, _form(f"\\A{_TOPIC}\\Z", "the name of a topic")]
PartitionText = Annotated[
    str, _form(f"\\A{_TOPIC}-[0-9]{{1,9}}\\Z", "a partition, such as orders-3")
]
Positions = dict[PartitionText, Offset]
Name = Annotated[str, _form(f"\\A{_PRINTABLE}{{1,1024}}\\Z", "a name of printable characters")]
Label = Annotated[
    str, _form(f"\\A{_PRINTABLE}{{0,1024}}\\Z", "text on one line of printable characters")
]
#: Longest key in an erasure request: encoded in base64 it fits into a message.
KEY_BYTES_MAX: Final = 128 * 1024
KeyBytes = Annotated[bytes, Meta(max_length=KEY_BYTES_MAX)]
#: Number of bytes that a windowed store appends to a key.
TailBytes = Annotated[int, Meta(ge=0, le=16)]
#: Text for people; the decoder replaces unprintable characters.
Text = Annotated[str, Meta(max_length=100_000)]
MemberPhaseText = Annotated[str, _one_of(MemberPhase, "a member's phase")]
TaskPhaseText = Annotated[str, _one_of(TaskPhase, "a task's phase")]
TaskRoleText = Annotated[str, _one_of(TaskRole, "a task's role")]
BootstrapPhaseText = Annotated[str, _one_of(BootstrapPhase, "a loading phase")]


def counter_max(leader_epoch: int) -> int:
    """Return the greatest `Counter` (such as a task epoch) allowed at a leader epoch.

    It grows with that epoch: after a forged counter the next leader can still use higher ones.

    >>> counter_max(2) - counter_max(1)
    1048576
    """
    return _COUNTED_AT_FIRST + _COUNTED_IN_A_TERM * leader_epoch
