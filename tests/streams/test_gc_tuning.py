import gc

import pytest

from tidewheel.streams.gc_tuning import collect_by_batches, collection_paused


def test_the_garbage_collector_is_enabled_again_after_an_error() -> None:
    with pytest.raises(RuntimeError):
        _fail_inside_a_pause()
    assert gc.isenabled()


def test_a_garbage_collector_disabled_by_the_user_stays_disabled() -> None:
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


@pytest.mark.parametrize(
    ("chosen", "then"), [(700, 50_000), (2_000, 50_000), (0, 0), (5_000, 5_000)]
)
def test_only_pythons_own_threshold_is_raised(chosen: int, then: int) -> None:
    before = gc.get_threshold()
    try:
        gc.set_threshold(chosen, 10, 10)
        collect_by_batches()
        assert gc.get_threshold() == (then, 10, 10)
    finally:
        gc.set_threshold(*before)
