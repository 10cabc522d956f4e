"""Objects named by settings."""

from typing import Any

from tidewheel.streams.serdes import Serde
from tidewheel.tasks.processing.api.handlers import ErrorContext, ErrorResponse
from tidewheel.tasks.processing.api.record import ConsumedRecord, Record

CELSIUS = Serde[float](
    lambda _, value: str(value).encode(), lambda _, data: float(data), name="celsius"
)


def assignor(members: Any) -> Any:
    return members


def handler(context: ErrorContext, record: Record[Any, Any], exception: Exception) -> ErrorResponse:
    return ErrorResponse(action="continue")


async def async_extractor(record: ConsumedRecord, highest: int) -> int:
    return max(record.timestamp, highest)


def extractor(record: ConsumedRecord, highest: int) -> int:
    return record.timestamp


def token(config: str) -> tuple[str, float]:
    return config, 0.0


class Assigning:
    @classmethod
    def build(cls) -> None: ...

    def method(self) -> None: ...

    @staticmethod
    def static() -> None: ...
