import pytest

from tidewheel.streams import errors


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_is_a_streams_error(name: str) -> None:
    assert issubclass(getattr(errors, name), errors.StreamsError)


@pytest.mark.parametrize(
    "name",
    [
        "TopologyError", "ConfigError", "SerializationError", "StateStoreError", "TaskCorruptedError", "FencedError",
        "MissingSourceTopicError", "IncompatibleMemberError", "StoreLockedError", "InvalidStateStoreError",
    ],
)  # fmt: skip
def test_documented_errors_exist(name: str) -> None:
    assert name in errors.__all__


def test_store_errors_are_below_state_store_error() -> None:
    assert issubclass(errors.StoreLockedError, errors.StateStoreError)
    assert issubclass(errors.InvalidStateStoreError, errors.StateStoreError)
