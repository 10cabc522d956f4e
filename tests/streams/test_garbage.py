"""The garbage collector, where it is kept out."""

import gc

import pytest

from streams.garbage import collection_paused


def test_the_collector_is_back_whatever_happens() -> None:
    """Also when the client raises; and one pause inside another ends with the outer one."""
    with pytest.raises(RuntimeError):
        _fail_inside_a_pause()
    assert gc.isenabled()


def test_a_collector_that_the_user_has_switched_off_stays_off() -> None:
    """It's the program's own choice."""
    gc.disable()
    try:
        with collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def _fail_inside_a_pause() -> None:
    with collection_paused():
        with collection_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise RuntimeError
