"""Reads what is written below each setting in the source: when somebody asks, as parsing it at every start is dear."""

import ast
import inspect
from functools import cache
from itertools import pairwise
from textwrap import dedent


@cache
def attribute_docstrings(of: type) -> dict[str, str]:
    """Return the text below each annotated attribute of a class, on one line; nothing where the source is not at hand.

    >>> from tidewheel.streams.config import StreamsConfig
    >>> attribute_docstrings(StreamsConfig)["num_standby_replicas"]
    'Copies of each store kept up to date on other members.'
    """
    try:
        source = dedent(inspect.getsource(of))
    except OSError:
        return {}
    found: dict[str, str] = {}
    definition = ast.parse(source).body[0]
    assert isinstance(definition, ast.ClassDef), "it is the source of a class"
    for above, below in pairwise(definition.body):
        match above, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                value=ast.Constant(value=str(text))
            ):
                found[name] = " ".join(text.split())
            case _:
                pass
    return found
