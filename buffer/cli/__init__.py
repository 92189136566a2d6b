"""The command `opendata-buffer`: see docs/cli.md for what it does, and for its exit codes.

The library does not need it, nor what it needs: click and rich come with the extra `cli`.

* `app` has the commands in one group, and turns errors into one line and an exit code (`exits`);
* `produce`, `consume`, `status`, `dump`, `collect` and `demo` are the commands;
* `feed` and `record_groups` bring inputs to a producer, `drain` and `peek` what is queued to standard output;
  `sources`, `sinks` and `framing` are the bytes in and out;
* `interrupts` is what signals do, `outage` what is said of a store that fails; `options` and `progress` are what
  commands share with the user.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process and exit with its code."""
    missing = [name for name in ("click", "rich") if find_spec(name) is None]
    if missing:
        print(
            f"opendata-buffer: error: the command line needs {' and '.join(missing)}: "
            "pip install 'opendata-buffer[cli]'",
            file=sys.stderr,
        )
        sys.exit(1)
    from buffer.cli.app import application  # noqa: PLC0415 - needs what may be missing

    application.main(prog_name="opendata-buffer")
