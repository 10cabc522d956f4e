"""Field types of control records: the ranges and forms that `tidewheel.rebalance.protocol.decoding` enforces on everything read from a topic."""

from typing import Annotated, Final

from msgspec import Meta

from tidewheel.rebalance.model import BootstrapPhase, MemberPhase, TaskPhase, TaskRole

#: Epochs and sequence numbers stay far below this bound: a counter that starts near it comes from no member.
COUNT_MAX: Final = 1 << 53
#: Greatest number that a leader counts up (`counter_max`): no term reaches it.
_COUNTER_MAX: Final = 1 << 62
#: What a leader may count to in its first term, and how much further in each later one.
_COUNTED_AT_FIRST: Final = 1 << 32
_COUNTED_IN_A_TERM: Final = 1 << 20
#: Partitions of all topics together that one record may name.
PARTITIONS_MAX: Final = 1_000_000
_OFFSET_MAX: Final = (1 << 63) - 1
_HASH_MAX: Final = 1 << 32
_DAY_MS: Final = 86_400_000

_TOPIC: Final = "[A-Za-z0-9._-]{1,249}"
#: Control characters would steer the terminal on which a name is shown.
_PRINTABLE: Final = "[^\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029]"

Version = Annotated[int, Meta(ge=1, le=1 << 31)]
Epoch = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
#: What a leader counts up: task, step and target epochs, and learn epochs, which are step epochs.
Counter = Annotated[int, Meta(ge=0, le=_COUNTER_MAX)]
Sequence = Annotated[int, Meta(ge=-1, le=_OFFSET_MAX)]
Offset = Annotated[int, Meta(ge=0, le=_OFFSET_MAX)]
#: An offset or an amount, or -1 where it is not known.
OptionalOffset = Annotated[int, Meta(ge=-1, le=_OFFSET_MAX)]
KeyHash = Annotated[int, Meta(ge=0, le=_HASH_MAX)]
OptionalKeyHash = Annotated[int, Meta(ge=-1, le=_HASH_MAX)]
Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
Rate = Annotated[float, Meta(ge=0, le=1e15)]
DurationMs = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
SessionMs = Annotated[int, Meta(ge=1, le=_DAY_MS)]
#: Capacity of a member: threads of its key ranges.
Threads = Annotated[int, Meta(ge=1, le=65_536)]
PartitionCount = Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)]

#: Bounds of text patterns, and what a text of that form is, for people.
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
TopicText = Annotated[str, _form(f"\\A{_TOPIC}\\Z", "the name of a topic")]
PartitionText = Annotated[
    str, _form(f"\\A{_TOPIC}-[0-9]{{1,9}}\\Z", "a partition, such as orders-3")
]
Positions = dict[PartitionText, Offset]
#: The name of a member, a process or a machine.
Name = Annotated[str, _form(f"\\A{_PRINTABLE}{{1,1024}}\\Z", "a name without control characters")]
#: A name that may be empty.
Label = Annotated[
    str, _form(f"\\A{_PRINTABLE}{{0,1024}}\\Z", "text on one line without control characters")
]
#: A key's bytes; with their base64 they fit into a message.
KEY_BYTES_MAX: Final = 128 * 1024
KeyBytes = Annotated[bytes, Meta(max_length=KEY_BYTES_MAX)]
#: Number of bytes that a window takes behind a key.
TailBytes = Annotated[int, Meta(ge=0, le=16)]
#: Text for people; `tidewheel.rebalance.protocol.decoding` replaces control characters in it.
Text = Annotated[str, Meta(max_length=100_000)]
MemberPhaseText = Annotated[str, _one_of(MemberPhase, "a member's phase")]
TaskPhaseText = Annotated[str, _one_of(TaskPhase, "a task's phase")]
TaskRoleText = Annotated[str, _one_of(TaskRole, "a task's role")]
BootstrapPhaseText = Annotated[str, _one_of(BootstrapPhase, "a loading phase")]


def counter_max(leader_epoch: int) -> int:
    """Return the greatest counter that a record of a leader epoch may have.

    Each term may count further than the one before. So a leader that begins from a forged counter, as high as it may be,
    can still count on, and every reader accepts what it writes. The rule needs nothing but the record.

    >>> counter_max(2) - counter_max(1)
    1048576
    """
    return _COUNTED_AT_FIRST + _COUNTED_IN_A_TERM * leader_epoch
