"""The door of the control topics: decodes one record or message, or names the field that makes it unusable. Pure.

Anybody with write access to a topic may have written anything into it, and a disk may have damaged it. So nothing else
reads control records from bytes. The answer depends on the bytes alone: every reader of a log skips the same records and
folds the same group.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from tidewheel.rebalance.protocol.field_types import FORMS

_T = TypeVar("_T", bound=msgspec.Struct)

#: What msgspec appends to a validation error.
_PLACE: Final = re.compile(r" - at `(?P<key>key)?.*?(?:` in `)?\$\.?(?P<path>[^`]*)`\Z")
_PATTERN: Final = re.compile(r"Expected `str` matching regex '(?P<pattern>.*)'\Z", re.DOTALL)
#: The version that a record claims; read on its own where the rest can't be decoded.
_PROBLEM_CHARACTERS: Final = 300


class Rejection(msgspec.Struct, frozen=True):
    """Why a record is skipped. Holds no content of the record.

    Attributes:
        field: Path of the field, or "record" for the whole of it.
        problem: What is wrong with the field.
    """

    field: str
    problem: str

    def __str__(self) -> str:
        return f"field {self.field}: {self.problem}"


class RejectedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record of a control topic that is skipped.

    Attributes:
        topic, partition, offset: Where it is.
        timestamp_ms: When it was written (ms since the epoch); -1 if unknown.
        rejection: Why.
    """

    topic: str
    partition: int
    offset: int
    rejection: Rejection
    timestamp_ms: int = -1

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offset {self.offset}, {self.rejection}"


class _Header(msgspec.Struct):
    """What is read of a record that can't be decoded."""

    kind: str = ""
    v: int = 1


class Door(Generic[_T]):
    """Decodes records of some kinds.

    Args:
        kinds: Union of the structs.
        noun: What one is called ("record").
        bytes_max: Larger ones are rejected unread.
        version: Newest version of the protocol that this code speaks.
        check: Returns what is wrong between the fields of a decoded record.
        texts: Fields with text for people, by struct.
    """

    def __init__(
        self,
        kinds: Any,
        *,
        noun: str,
        bytes_max: int,
        version: int,
        check: Callable[[_T], Rejection | None],
        texts: Mapping[type[Any], tuple[str, ...]],
    ) -> None:
        self._decoder: msgspec.json.Decoder[_T] = msgspec.json.Decoder(kinds)
        self._header = msgspec.json.Decoder(_Header)
        self._kinds = frozenset(
            str(each.__struct_config__.tag) for each in getattr(kinds, "__args__", (kinds,))
        )
        self._noun = noun
        self._bytes_max = bytes_max
        self._version = version
        self._check = check
        self._texts = texts

    def read(self, data: bytes) -> _T | Rejection | None:
        """Return the record in `data`, or why it is skipped; None for a kind that only a later version knows (N14)."""
        if len(data) > self._bytes_max:
            return Rejection(
                self._noun, f"has {len(data)} bytes, and at most {self._bytes_max} are read"
            )
        try:
            record = self._decoder.decode(data)
        except msgspec.ValidationError as error:
            return self._unfit(data, str(error))
        except msgspec.DecodeError as error:
            return Rejection(self._noun, f"is no JSON: {_plain(str(error))}")
        except UnicodeDecodeError:
            return Rejection(self._noun, "holds text that is no UTF-8")
        except RecursionError:
            return Rejection(self._noun, "is nested too deeply")
        return self._check(record) or self._with_plain_texts(record)

    def _unfit(self, data: bytes, error: str) -> Rejection | None:
        """Return what a validation error says, without the content that it may quote."""
        try:
            header = self._header.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            header = _Header()
        if header.kind and header.kind not in self._kinds:
            if header.v > self._version:
                return None
            return Rejection("kind", "is not known to this version")
        place = _PLACE.search(error)
        if place is None:
            return Rejection(self._noun, _plain(error))
        problem = error[: place.start()]
        pattern = _PATTERN.fullmatch(problem)
        if pattern is not None:
            expected = FORMS.get(pattern["pattern"].replace("\\\\", "\\"), "text of another form")
            problem = f"is not {expected}"
        field = f"{place['path']} (key)" if place["key"] else place["path"]
        return Rejection(field or self._noun, _plain(problem))

    def _with_plain_texts(self, record: _T) -> _T:
        changed: dict[str, Any] = {}
        for field in self._texts.get(type(record), ()):
            text: str | tuple[str, ...] = getattr(record, field)
            if isinstance(text, tuple):
                if not all(each.isprintable() for each in text):
                    changed[field] = tuple(map(_plain_text, text))
            elif not text.isprintable():
                changed[field] = _plain_text(text)
        return replace(record, **changed) if changed else record


def _plain_text(text: str) -> str:
    r"""Return text on one line, with a space for each character that would steer a terminal.

    >>> _plain_text("no\ndisk \x1b[2J")
    'no disk  [2J'
    """
    return "".join(each if each.isprintable() else " " for each in text)


def _plain(text: str) -> str:
    return _plain_text(text)[:_PROBLEM_CHARACTERS]
