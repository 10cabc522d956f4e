"""Docstrings of the public API."""

import inspect
from collections.abc import Iterator
from types import FunctionType

import pytest

import tidewheel


@pytest.mark.parametrize("name", tidewheel.__all__)
def test_public_names_have_a_runnable_example(name: str) -> None:
    docstring = getattr(tidewheel, name).__doc__ or ""
    assert ">>> " in docstring
    assert docstring.partition("\n")[0].endswith((".", "?"))


def _public_members() -> Iterator[tuple[type, str]]:
    """Yield the methods and properties that public classes of configuration and serdes define."""
    for name in tidewheel.__all__:
        public = getattr(tidewheel, name)
        if not inspect.isclass(public):
            continue
        for owner in public.__mro__:
            if owner.__module__.startswith(
                ("tidewheel.streams.config", "tidewheel.streams.serdes")
            ):
                for member, value in vars(owner).items():
                    if not member.startswith("_") and isinstance(
                        value, (property, classmethod, staticmethod, FunctionType)
                    ):
                        yield public, member


@pytest.mark.parametrize(("public", "member"), list(_public_members()))
def test_public_members_of_configuration_and_serdes_have_docstrings(
    public: type, member: str
) -> None:
    assert inspect.getdoc(getattr(public, member))
