"""Suggestions for unknown names: "did you mean …?"."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Return "did you mean X?" for a similar known name, or "".

    Kafka's dotted spelling is understood.

    >>> did_you_mean("commit.interval.ms", ["commit_interval_ms", "state_dir"])
    'did you mean commit_interval_ms?'
    """
    spelled = name.lower().replace(".", "_").replace("-", "_")
    matches = get_close_matches(spelled, sorted(candidates), n=1, cutoff=0.7)
    return f"did you mean {matches[0]}?" if matches else ""
