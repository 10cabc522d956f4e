"""Module-level objects that settings name: an assignor, handlers, callbacks, serdes."""

from typing import Any

from tidewheel.streams.serdes import Serde
from tidewheel.tasks.processing.api.handlers import ErrorContext, ErrorResponse
from tidewheel.tasks.processing.api.record import ConsumedRecord, Record

CELSIUS = Serde[float](
    lambda _, value: str(value).encode(), lambda _, data: float(data), name="celsius"
)


def assignor(members: Any) -> Any:
    """Place tasks."""
    return members


def handler(context: ErrorContext, record: Record[Any, Any], exception: Exception) -> ErrorResponse:
    """Skip."""
    return ErrorResponse(action="continue")


async def async_extractor(record: ConsumedRecord, highest: int) -> int:
    """What no setting can be."""
    return max(record.timestamp, highest)


def extractor(record: ConsumedRecord, highest: int) -> int:
    """Take the record's."""
    return record.timestamp


def token(config: str) -> tuple[str, float]:
    """Return a token."""
    return config, 0.0


class Assigning:
    """A class with members of all kinds."""

    @classmethod
    def build(cls) -> None:
        """Build."""

    def method(self) -> None:
        """Do."""

    @staticmethod
    def static() -> None:
        """Do."""
