"""Examples in documents run in their documents' order."""

from pathlib import Path

import pytest

from checks.markdown_examples import main, run_file


def document(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "page.md"
    path.write_text(text, encoding="utf-8")
    return path


def test_blocks_share_names_in_order(tmp_path: Path) -> None:
    page = document(
        tmp_path,
        "```python\nx = 1\n```\n\n```sh\nexit 1\n```\n\n```python\nassert x == 1\n```\n",
    )
    assert run_file(page) == (2, None)


def test_a_test_without_parameters_is_called(tmp_path: Path) -> None:
    page = document(tmp_path, "```python\ndef test_it():\n    assert 1 == 2\n```\n")
    ran, problem = run_file(page)
    assert (ran, problem is None) == (1, False)


def test_a_failing_block_reports_its_line(tmp_path: Path) -> None:
    page = document(tmp_path, "# Page\n\n```python\nx = 1\nassert x == 2\n```\n")
    ran, problem = run_file(page)
    assert ran == 1
    assert problem is not None
    assert 'page.md", line 5' in problem
    assert main([str(page)]) == 1


@pytest.mark.parametrize(
    ("comment", "fails"),
    [
        ("<!-- not run: needs a Kafka -->", False),
        ("<!-- not run: -->", True),
        ("<!-- a remark -->", True),
        ("<!-- run: really -->", True),
    ],
)
def test_a_block_is_skipped_only_for_a_reason(tmp_path: Path, comment: str, *, fails: bool) -> None:
    page = document(tmp_path, f"{comment}\n```python\nraise ValueError\n```\n")
    assert (run_file(page)[1] is not None) is fails


def test_blocks_that_are_not_run_are_compiled(tmp_path: Path) -> None:
    text = "<!-- {}: why -->\n```python\nx = = 1\n```\n"
    assert run_file(document(tmp_path, text.format("not run")))[1] is not None
    assert run_file(document(tmp_path, text.format("fragment"))) == (0, None)


def test_examples_leave_nothing_behind(tmp_path: Path) -> None:
    before = Path.cwd()
    page = document(tmp_path, "```python\nopen('x', 'w').close()\n```\n")
    assert run_file(page) == (1, None)
    assert Path.cwd() == before
    assert not Path("x").exists()
