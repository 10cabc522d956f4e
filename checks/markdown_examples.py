"""Runs the Python examples in README.md and docs/: `python -m checks.markdown_examples [FILE ...]`.

The `python` blocks of a file run in order and share their names; each file starts in an empty
folder. A block below `<!-- not run: REASON -->` is compiled only. A block below `<!-- fragment:
REASON -->` is skipped.
"""

import contextlib
import inspect
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from checks.repository_files import ROOT, CodeBlock, code_blocks, repository_files


def main(arguments: Sequence[str] | None = None) -> int:
    named = sys.argv[1:] if arguments is None else arguments
    files = [Path(name).resolve() for name in named] or documents()
    failed = ran = 0
    for path in files:
        done, problem = run_file(path)
        ran += done
        if problem is not None:
            failed += 1
            print(problem, file=sys.stderr)
    print(f"{ran} examples ran in {len(files)} documents, {failed} documents failed")
    return 1 if failed else 0


def documents(root: Path = ROOT) -> list[Path]:
    return [path for path in repository_files(root) if path.suffix == ".md"]


def run_file(path: Path) -> tuple[int, str | None]:
    names: dict[str, object] = {"__name__": "__example__"}
    ran = 0
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        stack.callback(os.chdir, before)
        os.chdir(folder)
        for block in code_blocks(path.read_text(encoding="utf-8")):
            how = _how(block)
            if how is None:
                continue
            try:
                # Empty lines in front give the traceback the document's line numbers.
                code = compile("\n" * (block.line - 1) + block.text, str(path), "exec")
                if how == "run":
                    ran += 1
                    exec(code, names)  # noqa: S102 - our own documents, as a reader would run them
                    _run_tests(names)
            except Exception:  # noqa: BLE001 - every error of an example is reported
                return ran, f"{path}:{block.line}: this example fails\n{traceback.format_exc()}"
    return ran, None


def _run_tests(names: dict[str, object]) -> None:
    for name in [each for each in names if each.startswith("test_")]:
        test = names.pop(name)
        if callable(test) and not inspect.signature(test).parameters:
            test()


def _how(block: CodeBlock) -> str | None:
    if block.language != "python":
        return None
    note, _, reason = (block.comment or "").partition(":")
    if not reason.strip():
        return "run"
    return {"not run": "compile", "fragment": None}.get(note, "run")


if __name__ == "__main__":
    sys.exit(main())
