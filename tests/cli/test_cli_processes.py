"""What only real processes have: pipes that close, signals, terminals, and a Python without the extra."""

from __future__ import annotations

import array
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import IO

import pytest

from tests.cli.support import PATIENCE, ROOT, Cli, finish

pytestmark = pytest.mark.slow

# More than a pipe holds, so that writing it waits for the reader.
BATCH = [b"".join(b"%d %06d\n" % (n, line) for line in range(20_000)) for n in range(3)]
SIGNALS = pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])


def length(cli: Cli) -> int:
    found: int = cli.ok("status", "--json").document["length"]
    return found


@pytest.fixture
def full_queue(cli: Cli) -> Cli:
    """A queue of three batches, each larger than a pipe."""
    for batch in BATCH:
        cli.ok("produce", "--flush-interval", "60", stdin=batch)
    assert length(cli) == 3
    return cli


def pipe_of(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


def wait_until_read(stream: IO[bytes]) -> None:
    """Wait until the other end has taken everything out of a pipe."""
    unread = array.array("i", [1])
    deadline = time.monotonic() + PATIENCE
    while unread[0]:
        assert time.monotonic() < deadline
        os.sched_yield()
        fcntl.ioctl(stream.fileno(), termios.FIONREAD, unread)


def insist(process: subprocess.Popen[bytes], signum: signal.Signals) -> None:
    """Send a signal again and again until the process is gone."""
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        process.send_signal(signum)
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue


@pytest.mark.parametrize("arguments", [(), ("--no-ack",), ("--json",)])
def test_a_reader_that_leaves_ends_the_command_quietly(full_queue: Cli, arguments: tuple[str, ...]) -> None:
    """Like any tool before `head`; a batch that was not written whole is not taken."""
    with full_queue.start("consume", *arguments, bufsize=0) as process:
        assert pipe_of(process.stdout).read(1) in {b"0", b"{"}
        pipe_of(process.stdout).close()
        assert process.wait(PATIENCE) == -signal.SIGPIPE
        assert pipe_of(process.stderr).read() == b""
    assert length(full_queue) == 3


def test_a_reader_that_leaves_is_noticed_while_nothing_comes(cli: Cli) -> None:
    """Otherwise `consume --follow | grep -m 1` would hang until the next record."""
    cli.ok("produce", stdin=b"one\n")
    with cli.start("consume", "--follow", "--poll-interval", "0.05") as process:
        assert pipe_of(process.stdout).readline() == b"one\n"
        pipe_of(process.stdout).close()
        assert process.wait(PATIENCE) == -signal.SIGPIPE
        assert pipe_of(process.stderr).read() == b""
    assert length(cli) == 0


def test_a_full_disk_is_an_error_and_takes_nothing(full_queue: Cli) -> None:
    """What could not be written is not acknowledged."""
    with open("/dev/full", "wb") as full, full_queue.start("consume", stdout=full) as process:
        outcome = finish(process)
    assert outcome.code == 1
    assert outcome.stderr == "opendata-buffer: error: <stdout>: No space left on device\n"
    assert length(full_queue) == 3


def test_text_that_cannot_be_written_is_an_error(full_queue: Cli) -> None:
    """Scripts must not go on with half a status."""
    with open("/dev/full", "wb") as full, full_queue.start("status", stdout=full) as process:
        outcome = finish(process)
    assert outcome.code == 1
    assert outcome.stderr == "opendata-buffer: error: No space left on device\n"


@pytest.mark.parametrize(
    ("redirection", "command", "message"),
    [
        ("<&-", "produce", "<stdin>: Bad file descriptor; nothing came before it"),
        (">&-", "consume", "<stdout>: Bad file descriptor"),
    ],
)
def test_a_closed_stream_is_an_error(full_queue: Cli, redirection: str, command: str, message: str) -> None:
    """As some service managers start programs."""
    with full_queue.start(
        executable="bash", program=("-c", f'exec "$0" -m buffer {command} {redirection}', sys.executable)
    ) as process:
        outcome = finish(process)
    assert (outcome.code, outcome.error) == (1, message)
    assert length(full_queue) == 3


@SIGNALS
def test_a_signal_ends_following_with_everything_written_taken(cli: Cli, signum: signal.Signals) -> None:
    """The process dies of the signal, as a shell and a service manager expect, and says nothing."""
    cli.ok("produce", stdin=b"one\n")
    with cli.start("consume", "--follow", "--poll-interval", "60") as process:
        assert pipe_of(process.stdout).readline() == b"one\n"
        process.send_signal(signum)
        outcome = finish(process)
    assert (outcome.code, outcome.stdout, outcome.stderr) == (-signum, b"", "")
    assert length(cli) == 0


@SIGNALS
def test_a_signal_within_a_batch_lets_it_be_finished(full_queue: Cli, signum: signal.Signals) -> None:
    """Exactly the batches that were written, all of them whole, are taken."""
    with full_queue.start("consume", bufsize=0) as process:
        beginning = pipe_of(process.stdout).read(1)
        process.send_signal(signum)
        outcome = finish(process)
    assert (outcome.code, outcome.stderr) == (-signum, "")
    written = 3 - length(full_queue)
    assert written >= 1
    assert beginning + outcome.stdout == b"".join(BATCH[:written])


def test_a_second_signal_ends_everything_at_once(full_queue: Cli) -> None:
    """A write that nobody reads does not hold it up; the batch comes again."""
    with full_queue.start("consume", bufsize=0) as process:
        assert pipe_of(process.stdout).read(1) == b"0"
        insist(process, signal.SIGTERM)
        assert process.wait(PATIENCE) == -signal.SIGTERM
    assert length(full_queue) == 3


def test_a_signal_that_was_ignored_stays_ignored(cli: Cli) -> None:
    """As `nohup` and background jobs of scripts want it."""
    cli.ok("produce", stdin=b"one\n")
    ignoring = (
        "import signal, sys",
        "signal.signal(signal.SIGINT, signal.SIG_IGN)",
        "import buffer.__main__ as m",
    )
    with cli.start(
        "consume",
        "--follow",
        "--poll-interval",
        "0.05",
        program=("-c", "\n".join((*ignoring, "m.main()"))),
    ) as process:
        assert pipe_of(process.stdout).readline() == b"one\n"
        process.send_signal(signal.SIGINT)
        cli.ok("produce", stdin=b"two\n")
        assert pipe_of(process.stdout).readline() == b"two\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == -signal.SIGTERM


@SIGNALS
def test_a_signal_makes_durable_what_was_read(cli: Cli, signum: signal.Signals) -> None:
    """Long before the flush interval is over, and the summary says so."""
    with cli.start("produce", "--flush-interval", "3600") as process:
        stdin = pipe_of(process.stdin)
        stdin.write(b"one\ntwo\nthr")
        stdin.flush()
        wait_until_read(stdin)
        process.send_signal(signum)
        process.wait(PATIENCE)
        outcome = finish(process)
    assert outcome.code == -signum
    assert outcome.stderr == "produced 2 records, 6 bytes, in 1 batch, sequence 0\n"
    assert cli.ok("consume").stdout == b"one\ntwo\n"


def test_records_of_a_pipe_are_durable_while_it_stays_open(cli: Cli) -> None:
    """A log that is piped in does not wait for its end."""
    with (
        cli.start("consume", "--follow", "--poll-interval", "0.05") as consumer,
        cli.start("produce") as producer,
    ):
        stdin = pipe_of(producer.stdin)
        for line in (b"one\n", b"two\n"):
            stdin.write(line)
            stdin.flush()
            assert pipe_of(consumer.stdout).readline() == line
        outcome = finish(producer)
        assert outcome.code == 0
        assert outcome.stderr.startswith("produced 2 records, 6 bytes, in 2 batches, sequences 0 to 1")
        consumer.terminate()
        assert consumer.wait(PATIENCE) == -signal.SIGTERM


def test_a_named_pipe_without_a_writer_can_be_interrupted(cli: Cli, tmp_path: Path) -> None:
    """And one with a writer is read to its end."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with cli.start("produce", str(path)) as process:
        with path.open("wb") as pipe:
            pipe.write(b"one\n")
        assert finish(process).code == 0
    with cli.start("produce", str(path), "-", str(path)) as process:
        with path.open("wb"):
            pass
        pipe_of(process.stdin).close()
        insist(process, signal.SIGINT)
        assert process.wait(PATIENCE) == -signal.SIGINT
    assert cli.ok("consume").stdout == b"one\n"


def test_an_interrupted_demo_leaves_nothing_behind(cli: Cli, tmp_path: Path) -> None:
    """Its folder goes also when it does not come to its end."""
    path, folder = tmp_path / "pipe", tmp_path / "temporary"
    os.mkfifo(path)
    folder.mkdir()
    with cli.start("demo", str(path), env={"TMPDIR": str(folder)}) as process, path.open("wb") as pipe:
        pipe.write(b"one\n")
        pipe.flush()
        wait_until_read(pipe)
        assert len(list(folder.iterdir())) == 1
        process.send_signal(signal.SIGINT)
        outcome = finish(process)
    assert (outcome.code, outcome.stdout, outcome.stderr) == (-signal.SIGINT, b"", "")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("arguments", [(), ("--no-ack",)])
def test_following_waits_for_a_queue_and_makes_none(cli: Cli, arguments: tuple[str, ...]) -> None:
    """A slip in a path is told at once, and `status` still says that nothing is there."""
    with cli.start("consume", "--follow", "--poll-interval", "0.05", *arguments) as process:
        line = pipe_of(process.stderr).readline()
        assert line.startswith(b"opendata-buffer: no manifest at ingest/manifest in file://")
        assert cli.run("status").code == 4
        cli.ok("produce", stdin=b"one\n")
        assert pipe_of(process.stdout).readline() == b"one\n"
        process.terminate()
        outcome = finish(process)
    assert (outcome.code, outcome.stderr) == (-signal.SIGTERM, "")


def test_looking_can_follow(cli: Cli) -> None:
    """From before there is a queue, past a consumer that takes, without taking anything itself."""
    with cli.start("consume", "--no-ack", "--follow", "--poll-interval", "0.05") as process:
        for line in (b"one\n", b"two\n"):
            cli.ok("produce", stdin=line)
            assert pipe_of(process.stdout).readline() == line
        assert length(cli) == 2
        cli.ok("consume")
        cli.ok("produce", stdin=b"three\n")
        assert pipe_of(process.stdout).readline() == b"three\n"
        process.terminate()
        assert process.wait(PATIENCE) == -signal.SIGTERM


def test_a_consumer_that_lost_the_queue_says_so(cli: Cli) -> None:
    """Exit code 3: somebody else has it now, so starting again at once would take it back."""
    cli.ok("produce", stdin=b"one\n")
    with cli.start("consume", "--follow", "--poll-interval", "0.05") as process:
        assert pipe_of(process.stdout).readline() == b"one\n"
        cli.ok("consume")
        outcome = finish(process)
    assert outcome.code == 3
    assert "another consumer has taken over the queue" in outcome.error


def test_a_bar_is_shown_on_a_terminal_and_gone_afterwards(cli: Cli, tmp_path: Path) -> None:
    """Only standard error decides; the summary follows."""
    path = tmp_path / "lines"
    path.write_bytes(b"one\n")
    ours, theirs = pty.openpty()
    try:
        with cli.start("produce", str(path), stderr=theirs, env={"TERM": "xterm"}) as process:
            assert finish(process, b"").code == 0
        shown = os.read(ours, 65536)
    finally:
        os.close(ours)
        os.close(theirs)
    assert b"\x1b[" in shown
    assert b"produced 1 record, 3 bytes, in 1 batch, sequence 0\r\n" in shown


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_the_extra_the_command_says_what_to_install(missing: str) -> None:
    """One line, while the library itself needs neither."""
    program = (
        f"import sys; sys.modules[{missing!r}] = None; import buffer; from buffer.cli import main; "
        "print('library works', flush=True); main()"
    )
    outcome = subprocess.run(
        (sys.executable, "-c", program),
        capture_output=True,
        check=False,
        timeout=PATIENCE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert outcome.returncode == 1
    assert outcome.stdout == b"library works\n"
    assert outcome.stderr.decode() == (
        f"opendata-buffer: error: the command line needs {missing}: pip install 'opendata-buffer[cli]'\n"
    )


def test_the_module_is_the_command(cli: Cli) -> None:
    """`python -m buffer` calls itself by the command's name."""
    with cli.start("--help") as process:
        outcome = finish(process)
    assert outcome.code == 0
    assert outcome.stdout.startswith(b"Usage: opendata-buffer [OPTIONS] COMMAND [ARGS]...")
