from typing import Any

import pytest

from tidewheel.streams.kafka.admin.admin import metadata_text


class _Partition:
    def __init__(self, data: bytes | None) -> None:
        self._data = data

    @property
    def metadata(self) -> Any:
        return None if self._data is None else self._data.decode()


@pytest.mark.parametrize(
    ("data", "text"), [(None, ""), (b"", ""), (b"AgAA", "AgAA"), (b"AgAA\x88U", "AgAA\ufffdU")]
)
def test_commit_metadata_are_text_for_any_bytes(data: bytes | None, text: str) -> None:
    assert metadata_text(_Partition(data)) == text
