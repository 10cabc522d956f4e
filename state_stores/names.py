"""Name checks for applications, stores and topics. Pure."""

import re
from typing import Final

#: Kafka's limit for topic names.
MAX_TOPIC_LENGTH: Final = 249

#: Most characters of an id or store name: directory names with affixes may have 255 bytes.
MAX_NAME_LENGTH: Final = 200

_ALLOWED: Final = re.compile(r"[A-Za-z0-9._-]")
_FIRST: Final = re.compile(r"[A-Za-z0-9]")


def check_application_id(name: str) -> str:
    return _check_name("application id", name)


def check_store_name(name: str) -> str:
    """Return a valid store name, else raise ValueError with the reason.

    >>> check_store_name("word-counts")
    'word-counts'
    """
    return _check_name("store name", name)


def check_topic_name(name: str) -> str:
    _check_characters("topic name", name, MAX_TOPIC_LENGTH)
    if name in {".", ".."}:
        raise ValueError(f"topic name {name!r} is not allowed: Kafka would take it for a directory")
    return name


def check_internal_topics(application_id: str, stores: list[str], repartitions: list[str]) -> None:
    for store in stores:
        _check_derived(f"{application_id}-{store}-changelog", "store", store)
    for repartition in repartitions:
        _check_derived(f"{application_id}-{repartition}-repartition", "repartition", repartition)


def _check_derived(topic: str, noun: str, name: str) -> None:
    over = len(topic) - MAX_TOPIC_LENGTH
    if over > 0:
        raise ValueError(
            f"the topic of {noun} {name!r} would be called {topic!r}: {len(topic)} characters, {over} more than "
            f"Kafka's {MAX_TOPIC_LENGTH}; shorten the application id or the {noun}'s name"
        )


def _check_name(noun: str, name: str) -> str:
    _check_characters(noun, name, MAX_NAME_LENGTH)
    if not _FIRST.match(name):
        raise ValueError(
            f"{noun} {name!r} starts with {name[0]!r}; start it with a letter or a digit"
        )
    return name


def _check_characters(noun: str, name: str, longest: int) -> None:
    if not name:
        raise ValueError(f"{noun} is empty; give it a name")
    for position, character in enumerate(name):
        if not _ALLOWED.match(character):
            raise ValueError(
                f"{noun} {name!r} has {character!r} at position {position}; "
                "use letters a-z A-Z, digits, dot, dash and underscore"
            )
    if len(name) > longest:
        raise ValueError(f"{noun} {name[:40]!r}… has {len(name)} characters; {longest} are allowed")
