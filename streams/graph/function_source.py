"""Function sources as text that is equal in every Python version, to detect changed functions."""

import ast
import linecache
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any, Final, TypeAlias, cast

_Node: TypeAlias = ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef
_Span: TypeAlias = tuple[tuple[int, int], tuple[int, int]]

#: Syntax tree fields that do not affect a function's result.
_WITHOUT_EFFECT: Final = frozenset(
    {"annotation", "ctx", "kind", "returns", "type_comment", "type_params"}
)


class FunctionSources:
    """Cache of parsed source files."""

    def __init__(self) -> None:
        self._parsed: dict[str, tuple[list[_Node], frozenset[CodeType]]] = {}

    def of(self, function: FunctionType) -> object | None:
        """Return a function's parameters and operations for `==`, without comments and annotations.

        None: the source is missing, differs from the running code, or lacks the function.

        >>> sums = [lambda a, v: a + v, lambda a, v: a * v, lambda a, v: (a + v)]
        >>> plus, times, again = map(FunctionSources().of, sums)
        >>> plus == again != times
        True
        """
        code = function.__code__
        linecache.checkcache(code.co_filename)
        text = "".join(linecache.getlines(code.co_filename, function.__globals__))
        try:
            if text not in self._parsed:
                self._parsed[text] = _parsed(text)
            functions, codes = self._parsed[text]
            nodes = _nodes_of(code, functions) if code in codes else []
            texts = [
                (_without_positions(node.args), _without_positions(_body(node))) for node in nodes
            ]
        except (SyntaxError, ValueError, RecursionError):
            return None
        # In Python 3.12 the code of `lambda: 0` has no columns: it matches all such lambdas on its
        # line. The source is then known only if all are equal.
        return texts[0] if texts and all(text == texts[0] for text in texts) else None


def _parsed(text: str) -> tuple[list[_Node], frozenset[CodeType]]:
    functions = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    module = compile(text, "<source>", "exec", dont_inherit=True)
    return functions, frozenset(_codes(module))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _nodes_of(code: CodeType, functions: Iterable[_Node]) -> list[_Node]:
    candidates = [
        node
        for node in functions
        if _first_line(node) == code.co_firstlineno
        and ("<lambda>" if isinstance(node, ast.Lambda) else node.name) == code.co_name
        and _parameters(node) == code.co_varnames[: len(_parameters(node))]
    ]
    if len(candidates) < 2:  # noqa: PLR2004 - several lambdas on one line
        return candidates
    spans = [
        ((line, column), (end_line, end_column))
        for line, end_line, column, end_column in code.co_positions()
        if line and end_line and column is not None and end_column
    ]
    candidates = [node for node in candidates if _contains_span(node, spans)]
    # The last lambda is the innermost: it starts after the outer ones.
    return candidates[-1:] if spans else candidates


def _parameters(node: _Node) -> tuple[str, ...]:
    plain = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    rest = (node.args.vararg, node.args.kwarg)
    return tuple(argument.arg for argument in (*plain, *rest) if argument is not None)


def _contains_span(node: _Node, spans: Iterable[_Span]) -> bool:
    if not isinstance(node, ast.Lambda):
        return False
    body = node.body
    first = (body.lineno, body.col_offset)
    last = (body.end_lineno or 0, body.end_col_offset or 0)
    return all(first <= start and end <= last for start, end in spans)


def _body(node: _Node) -> list[ast.stmt] | ast.expr:
    if isinstance(node, ast.Lambda):
        return node.body
    return node.body if ast.get_docstring(node, clean=False) is None else node.body[1:]


def _first_line(node: _Node) -> int:
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _without_positions(item: Any) -> object:
    if isinstance(item, ast.AST):
        fields = [
            (name, _without_positions(value))
            for name, value in ast.iter_fields(item)
            if name not in _WITHOUT_EFFECT and not (value is None or value == [])
        ]
        return (type(item).__name__, fields)
    if isinstance(item, list):
        return [_without_positions(part) for part in cast("list[object]", item)]
    return (type(item).__name__, repr(item))
