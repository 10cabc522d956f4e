"""Validating decoder of the control topics.

Records may be damaged, or written by anyone with access. All bytes pass here, and the result
depends on the bytes alone: all readers skip the same records.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from tidewheel.rebalance.protocol.field_types import FORMS

_T = TypeVar("_T", bound=msgspec.Struct)

#: Suffix of msgspec's validation errors: the path of the field.
_PLACE: Final = re.compile(r" - at `(?P<key>key)?.*?(?:` in `)?\$\.?(?P<path>[^`]*)`\Z")
_PATTERN: Final = re.compile(r"Expected `str` matching regex '(?P<pattern>.*)'\Z", re.DOTALL)
_PROBLEM_CHARACTERS: Final = 300


class Rejection(msgspec.Struct, frozen=True):
    """Reason to skip a record; it quotes none of the record's content."""

    field: str  # Path of the faulty field, or "record" or "message".
    problem: str

    def __str__(self) -> str:
        return f"field {self.field}: {self.problem}"


class RejectedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A skipped record; `timestamp_ms` is -1 if unknown."""

    topic: str
    partition: int
    offset: int
    rejection: Rejection
    timestamp_ms: int = -1

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offset {self.offset}, {self.rejection}"


class _Header(msgspec.Struct):
    """Readable part of a record that can't be decoded."""

    kind: str = ""
    v: int = 1


class RecordDecoder(Generic[_T]):
    """Decoder of a union of record kinds.

    Larger inputs than `bytes_max` are rejected unread. `check` validates fields against each other.
    `texts` names the free-text fields of each struct, to replace their unprintable characters.
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
            str(kind.__struct_config__.tag) for kind in getattr(kinds, "__args__", (kinds,))
        )
        self._noun = noun
        self._bytes_max = bytes_max
        self._version = version
        self._check = check
        self._texts = texts

    def read(self, data: bytes) -> _T | Rejection | None:
        """Return the record or a rejection; None for a kind that only later versions know."""
        if len(data) > self._bytes_max:
            return Rejection(
                self._noun, f"has {len(data)} bytes, and at most {self._bytes_max} are read"
            )
        try:
            record = self._decoder.decode(data)
        except msgspec.ValidationError as error:
            return self._unfit(data, str(error))
        except msgspec.DecodeError as error:
            return Rejection(self._noun, f"is not JSON: {_plain(str(error))}")
        except UnicodeDecodeError:
            return Rejection(self._noun, "has text that is not UTF-8")
        except RecursionError:
            return Rejection(self._noun, "is nested too deeply")
        return self._check(record) or self._with_plain_texts(record)

    def _unfit(self, data: bytes, error: str) -> Rejection | None:
        """Return the rejection for a validation error, without the content that it may quote."""
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
                if not all(line.isprintable() for line in text):
                    changed[field] = tuple(map(_plain_text, text))
            elif not text.isprintable():
                changed[field] = _plain_text(text)
        return replace(record, **changed) if changed else record


def _plain_text(text: str) -> str:
    r"""Return text with a space for each unprintable character, which could steer a terminal.

    >>> _plain_text("no\ndisk \x1b[2J")
    'no disk  [2J'
    """
    return "".join(character if character.isprintable() else " " for character in text)


def _plain(text: str) -> str:
    return _plain_text(text)[:_PROBLEM_CHARACTERS]
