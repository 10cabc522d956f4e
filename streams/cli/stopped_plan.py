"""Output of the plan of a command that changes an application at rest."""

from collections.abc import Iterable, Sequence

from tidewheel.streams.cli.output import print_error, print_table, text_console
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.group.reset import StoppedPlan


def print_steps(
    plan: StoppedPlan,
    title: str,
    steps: Iterable[tuple[str, str, str]],
    *,
    nothing: str,
    notes: Sequence[str] = (),
    next_step: str = "",
    done: bool,
) -> None:
    """Print steps with those of local state; `nothing` if there are none, `next_step` once done."""
    rows = [*steps]
    rows += [
        ("local state", str(slot.path), f"delete tasks {', '.join(slot.tasks)}")
        for slot in plan.slots
        if slot.tasks
    ]
    console = text_console()
    if rows:
        verb = "done" if done else "would do"
        print_table(f"{title}: {verb}", ["what", "where", "change"], rows)
    elif not plan.refusals:
        console.print(nothing, markup=False, highlight=False)
    for note in notes:
        console.print(f"note: {note}", markup=False, highlight=False)
    if rows and not done and not plan.refusals:
        next_step = "Nothing was touched. Add --execute to do it."
    if rows and next_step and not plan.refusals:
        console.print(next_step, markup=False, highlight=False)


def exit_code_of_plan(plan: StoppedPlan) -> int:
    """Print the refusals; return the command's exit code."""
    for refusal in plan.refusals:
        print_error(refusal)
    return ExitCode.REFUSED if plan.refusals else ExitCode.OK
