"""Commands run by tests: inside this process for speed, or as real processes for what only those have."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from buffer.cli.app import application
from buffer.cli.options import STORE_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60


@dataclass(frozen=True)
class Outcome:
    """How a command ended, and what it wrote."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def document(self) -> Any:
        """Standard output as one JSON document."""
        return json.loads(self.stdout)

    @property
    def error(self) -> str:
        """The error message, of which there must be exactly one, on one line, as the last thing said."""
        *_, last = self.stderr.splitlines()
        assert self.stderr.count(": error: ") == 1, self.stderr
        assert self.stderr.endswith(last + "\n")
        return last.removeprefix("opendata-buffer: error: ")


@dataclass(frozen=True)
class Cli:
    """The command line with one store."""

    store: str

    def run(
        self, *arguments: str, stdin: bytes = b"", environment: Mapping[str, str] | None = None
    ) -> Outcome:
        """Run a command inside this process."""
        runner = CliRunner(env={STORE_VARIABLE: self.store, **(environment or {})})
        result = runner.invoke(application, arguments, input=stdin)
        return Outcome(result.exit_code, result.stdout_bytes, result.stderr)

    def ok(self, *arguments: str, stdin: bytes = b"") -> Outcome:
        """Run a command inside this process; it must succeed."""
        outcome = self.run(*arguments, stdin=stdin)
        assert outcome.code == 0, outcome
        return outcome

    @contextmanager
    def start(
        self,
        *arguments: str,
        executable: str = sys.executable,
        program: Sequence[str] = ("-m", "buffer"),
        **options: Any,
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run a command as a process with pipes; it is killed if the test leaves it behind."""
        streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        environment = {**os.environ, STORE_VARIABLE: self.store, "PYTHONPATH": str(ROOT)}
        # Whoever runs the tests in the background has made them ignore SIGINT, and their children with them. A
        # signal with a handler, however, is back to its default in a new program.
        previous = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            process = subprocess.Popen(
                (executable, *program, *arguments),
                env=environment | options.pop("env", {}),
                **(streams | options),
            )
        finally:
            signal.signal(signal.SIGINT, previous)
        with process:
            try:
                yield process
            finally:
                process.kill()


def finish(process: subprocess.Popen[bytes], stdin: bytes | None = None) -> Outcome:
    """Wait for a process to end."""
    stdout, stderr = process.communicate(stdin, timeout=PATIENCE)
    return Outcome(process.returncode, stdout or b"", (stderr or b"").decode())
