"""The model's command: `python -m buffer.testing.explore --producers 2 --consumers 2`.

Visits every state of a small world, shows how far it has come, and prints how many states there were. A broken
promise is shown with the choices that lead to it; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from buffer.testing.model import Exploration, Setup, explore

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0 if every promise was kept."""
    parser = argparse.ArgumentParser(prog="python -m buffer.testing.explore", description=__doc__)
    defaults = Setup()
    for name, what in (
        ("producers", "number of producers"),
        ("appends", "batches that each of them appends"),
        ("consumers", "number of consumers"),
        ("rounds", "how often each of them reads and acks"),
        ("collectors", "number of collectors"),
        ("lost_answers", "answers that may be lost"),
        ("ticks", "how often time may pass; from 3 on, new objects get old enough to be deleted"),
    ):
        default = getattr(defaults, name)
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=int, default=default, help=f"{what} (default {default})"
        )
    parser.add_argument("--lost-uploads", action="store_true", help="let answers to uploads be lost too")
    parser.add_argument("--fresh", action="store_true", help="begin without a manifest")
    parser.add_argument("--max-depth", type=int, default=None, help="take so many choices at most")
    parser.add_argument("--max-states", type=int, default=None, help="stop after so many states")
    parser.add_argument("--max-seconds", type=float, default=None, help="stop after so much time")
    given = vars(parser.parse_args(arguments))
    limits = {name: given.pop(name) for name in ("max_depth", "max_states", "max_seconds")}

    result = explore(Setup(**given), on_progress=_show_progress, **limits)
    print(_summary(result))
    if result.violation is None:
        return 0
    for number, step in enumerate(result.path, start=1):
        print(f"{number:4}  {step}")
    print(f"      {result.violation}")
    return 1


def _show_progress(result: Exploration) -> None:
    end = "\r" if sys.stderr.isatty() else "\n"
    print(f"{result.states:,} states in {result.seconds:.0f} s", end=end, file=sys.stderr, flush=True)


def _summary(result: Exploration) -> str:
    how = "all of them" if result.complete else "not all of them"
    if result.cut:
        how += f", {result.cut:,} of which lead further"
    return (
        f"{result.states:,} states ({how}), {result.transitions:,} transitions, {result.ends:,} ends, "
        f"paths of up to {result.depth} steps, {result.steps_of_code:,} steps of code, {result.seconds:.1f} s, "
        f"{0 if result.violation is None else 1} violations"
    )


if __name__ == "__main__":
    sys.exit(main())
