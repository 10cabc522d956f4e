"""Run lifetimes: `python -m tests.simulation --seed N --verbose`, `--lifetimes N`, `--mutants`."""

import argparse
import gc
import sys
import time

from tests.simulation.metrics import Metrics
from tests.simulation.model.world import Violation
from tests.simulation.mutants import search
from tests.simulation.scenario import draw
from tests.simulation.simulator import Simulation
from tidewheel.rebalance.protocol.field_types import ShardCount

LAST_EVENTS = 60
_TOLD_EVERY = 200


def live(seed: int, *, faults: bool = True, refine: bool = True, shards: ShardCount = 1) -> Metrics:
    """Run one lifetime.

    Raises Violation with the seed, the replay command and the last events, also if a lifetime with
    faults was too quiet.
    """
    simulation = Simulation(draw(seed, faults=faults, refine=refine, shards=shards))
    try:
        metrics = simulation.run()
        if faults and (lacks := metrics.lacks()):
            simulation.world.fail(f"the lifetime is too quiet: {lacks}")
    except Exception as error:
        raise Violation(failure(simulation, error, faults=faults, refine=refine)) from error
    return metrics


def failure(simulation: Simulation, error: Exception, *, faults: bool, refine: bool) -> str:
    options = ("" if faults else " --no-faults") + ("" if refine else " --no-refiner")
    shards = simulation.scenario.shards
    options += f" --shards {shards}" if shards > 1 else ""
    seed = simulation.scenario.seed
    return "\n".join(
        (
            f"{type(error).__name__}: {error}",
            simulation.world.trace.text(LAST_EVENTS),
            f"seed {seed}; everything: python -m tests.simulation --seed {seed}{options} --verbose",
        )
    )


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    # No garbage collection inside a lifetime: its events stay referenced until the end.
    gc.set_threshold(100_000, 50, 100)
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", type=int, help="one lifetime")
    parser.add_argument("--first", type=int, default=1, help="first of several")
    parser.add_argument("--lifetimes", type=int, default=200, help="how many")
    parser.add_argument(
        "--no-faults", action="store_true", help="members only come and go in order"
    )
    parser.add_argument("--no-refiner", action="store_true", help="the baseline: cold hand-overs")
    parser.add_argument(
        "--shards", type=int, choices=(1, 2, 4), default=1, help="of each stateful partition"
    )
    parser.add_argument("--keep-going", action="store_true", help="count failures")
    parser.add_argument("--verbose", action="store_true", help="print every event")
    parser.add_argument(
        "--nightly",
        action="store_true",
        help="4,000 lifetimes, 1,000 each without faults and with shards, mutants",
    )
    parser.add_argument("--mutants", action="store_true", help="find seeds that kill each mutant")
    chosen = parser.parse_args()
    faults, refine = not chosen.no_faults, not chosen.no_refiner
    if chosen.nightly:
        return _nightly(parser)
    if chosen.mutants:
        return search(chosen.lifetimes)
    if chosen.seed is not None:
        return _one(
            chosen.seed,
            faults=faults,
            refine=refine,
            verbose=chosen.verbose,
            shards=chosen.shards,
        )
    return _many(chosen, faults=faults, refine=refine)


def _nightly(parser: argparse.ArgumentParser) -> int:
    """Run everything; return the number of failures."""
    failed = _many(
        parser.parse_args(["--lifetimes", "4000", "--keep-going"]), faults=True, refine=True
    )
    failed += _many(
        parser.parse_args(["--lifetimes", "1000", "--keep-going"]), faults=False, refine=True
    )
    for shards in ("2", "4"):
        failed += _many(
            parser.parse_args(["--lifetimes", "500", "--keep-going", "--shards", shards]),
            faults=True,
            refine=True,
        )
    return failed + search(4_000)


def _one(seed: int, *, faults: bool, refine: bool, verbose: bool, shards: ShardCount) -> int:
    simulation = Simulation(draw(seed, faults=faults, refine=refine, shards=shards))
    _say(simulation.scenario.describe())
    try:
        metrics = simulation.run()
    except Exception as error:
        _say(simulation.world.trace.text(None if verbose else LAST_EVENTS))
        _say(f"{type(error).__name__}: {error}")
        if not isinstance(error, Violation):
            raise
        return 1
    if verbose:
        _say(simulation.world.trace.text())
    total = Metrics()
    total.add(metrics)
    _say(total.text())
    return 0


def _many(chosen: argparse.Namespace, *, faults: bool, refine: bool) -> int:
    total, failed = Metrics(), 0
    began, used = time.monotonic(), time.process_time()
    for seed in range(chosen.first, chosen.first + chosen.lifetimes):
        try:
            total.add(live(seed, faults=faults, refine=refine, shards=chosen.shards))
        except Violation as error:
            failed += 1
            text = str(error)
            _say(f"seed {seed}: {text.splitlines()[0][:300]}" if chosen.keep_going else text)
            if not chosen.keep_going:
                return 1
        done = seed - chosen.first + 1
        if done % _TOLD_EVERY == 0:
            _say(f"{done} of {chosen.lifetimes} lifetimes, {failed} failed")
    took_s, used_s = time.monotonic() - began, time.process_time() - used
    _say(total.text())
    _say(
        f"{failed} failed; {took_s:.1f} s, of one core {used_s:.1f} s: "
        f"{chosen.lifetimes / used_s * 60:.0f} lifetimes in a core's minute"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
