"""Coverage-guided fuzzing: `python -m tests.fuzz.fuzz TARGET [libFuzzer options] [corpus folders]`.

Needs the extra `fuzz`. New inputs go into the first folder; without one, nothing is kept. A crash is written to the
current folder; once it is fixed, it belongs into `tests/fuzz/corpus/TARGET`, from where every run of the tests
replays it.
"""

from __future__ import annotations

import sys

import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

with atheris.instrument_imports(include=["buffer.format", "buffer.store"]):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    """Fuzz until stopped."""
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name not in TARGETS:
        sys.exit(
            f"usage: python -m tests.fuzz.fuzz {{{','.join(TARGETS)}}} [libFuzzer options] [corpus folders]"
        )
    atheris.Setup(sys.argv, TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
