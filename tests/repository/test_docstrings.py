"""Docstrings of the public API."""

import pytest

import tidewheel


@pytest.mark.parametrize("name", tidewheel.__all__)
def test_public_names_have_a_runnable_example(name: str) -> None:
    docstring = getattr(tidewheel, name).__doc__ or ""
    assert ">>> " in docstring
    assert docstring.partition("\n")[0].endswith((".", "?"))
