"""Only settings, the command line and the program name modules that are imported."""

import ast
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[3]

#: Who imports by a name that is not in its own source: names of the program and its settings.
_BY_NAME: Final = {
    "streams/cli/app.py": "its table of commands",
    "streams/cli/commands/records/line_serdes.py": "serdes named by --key and --value",
    "streams/config/__init__.py": "its table of names",
    "streams/config/names.py": "options: callbacks, assignors, handlers, serdes",
    "streams/config/secrets.py": "client properties that end with _cb",
    "streams/config/validators.py": "options",
    "streams/processes/user_program.py": "the program of the command line",
    "streams/processes/watchdog/assignor_process.py": "the option task_assignor of this process",
    "streams/serdes/__init__.py": "its table of names",
    "streams/sinks/arguments.py": "packages of the extras",
}
_IMPORTERS: Final = frozenset({"import_module", "__import__", "import_object", "exec", "eval"})


def _imports_by_name(path: Path) -> bool:
    return any(
        isinstance(node, ast.Call)
        and getattr(node.func, "id", getattr(node.func, "attr", "")) in _IMPORTERS
        and not (node.args and isinstance(node.args[0], ast.Constant))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    ) or any(
        isinstance(node, ast.Name) and node.id == "import_object" and isinstance(node.ctx, ast.Load)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    )


def test_only_these_modules_import_by_a_name_that_is_not_their_own() -> None:
    found = {
        str(path.relative_to(_ROOT))
        for package in ("streams", "tasks", "rebalance", "state_stores")
        for path in (_ROOT / package).rglob("*.py")
        if _imports_by_name(path)
    }
    assert found == set(_BY_NAME)
