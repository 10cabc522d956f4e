"""Validating decoder of the control topics.

Records may be damaged, or written by anyone with access. All bytes pass here, and the result
depends on the bytes alone: all readers skip the same records.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, Generic, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import replace

from tidewheel.rebalance.protocol.field_types import FORMS, Text
from tidewheel.rebalance.protocol.plain_text import plain_text

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
    Unprintable characters of `Text` fields, also in nested structs, are replaced.
    """

    def __init__(
        self,
        kinds: Any,
        *,
        noun: str,
        bytes_max: int,
        version: int,
        check: Callable[[_T], Rejection | None],
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
        return self._check(record) or with_plain_texts(record)

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


def with_plain_texts(record: _T) -> _T:
    """Return a struct without unprintable characters in its `Text` fields."""
    changed: dict[str, Any] = {}
    for field, clean in _cleaners(type(record)).items():
        value = getattr(record, field)
        if value and (cleaned := clean(value)) != value:
            changed[field] = cleaned
    return replace(record, **changed) if changed else record


@cache
def _cleaners(kind: type[msgspec.Struct]) -> Mapping[str, Callable[[Any], Any]]:
    """Return a function for each field whose value can contain a `Text`."""
    hints = get_type_hints(kind, include_extras=True)
    cleaners = {field: _cleaner(hints[field]) for field in kind.__struct_fields__}
    return {field: clean for field, clean in cleaners.items() if clean is not None}


def _cleaner(annotation: Any) -> Callable[[Any], Any] | None:
    if annotation == Text:
        return plain_text
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return with_plain_texts if _cleaners(annotation) else None
    inner = [clean for clean in map(_cleaner, get_args(annotation)) if clean is not None]
    if not inner:
        return None
    (clean,) = inner  # An array of texts or structs, or an optional struct.
    if get_origin(annotation) is tuple:
        return lambda values: tuple(map(clean, values))
    return clean


def _plain(text: str) -> str:
    return plain_text(text)[:_PROBLEM_CHARACTERS]
