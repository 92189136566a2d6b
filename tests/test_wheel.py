"""What users install: built, put into an empty environment without extras, and used from there."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("buffer", "pyspark_opendata_buffer")

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
from importlib import resources
from importlib.metadata import version

import anyio
import buffer
import buffer.testing
from buffer import Compression, Consumer, Producer, ProducerConfig, decode_batch, encode_batch, open_store

assert "site-packages" in buffer.__file__, buffer.__file__
assert resources.files("buffer").joinpath("py.typed").is_file()
assert version("opendata-buffer")

records = [b"one", b"", b"x" * 1000]
for compression in Compression:
    assert decode_batch(encode_batch(records, compression)) == records


async def main(url: str) -> None:
    async with open_store(url) as store:
        async with Producer(store, ProducerConfig(batch_compression=Compression.ZSTD)) as producer:
            handle = await producer.produce(records, b"metadata")
            assert (await handle.watcher.await_durable()).sequence == 0
        async with Consumer(store) as consumer:
            batch = await consumer.next_batch()
            assert batch is not None and batch.entries == tuple(records)
            await consumer.ack(batch.sequence)
            assert await consumer.next_batch() is None


for number, backend in enumerate(("asyncio", "trio")):
    anyio.run(main, "memory://", backend=backend)
    anyio.run(main, f"{sys.argv[1]}/{number}", backend=backend)
"""


def run(*command: str | Path, cwd: Path, expect: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command that must end with the given exit code."""
    ended = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, check=False)
    assert ended.returncode == expect, f"{command}\n{ended.stdout}\n{ended.stderr}"
    return ended


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as it would be published."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel, what it depends on, and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin/python", "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-input", wheel, cwd=folder)
    return folder / "bin"


def test_it_holds_the_package_and_nothing_else(wheel: Path) -> None:
    """Every module, the marker for type checkers and the license are in it; tests and benchmarks are not."""
    with zipfile.ZipFile(wheel) as archive:
        names = [PurePosixPath(name) for name in archive.namelist()]
    package = {str(name) for name in names if name.parts[0] in PACKAGES}
    others = {name for name in names if name.parts[0] not in PACKAGES}
    sources = {str(path.relative_to(ROOT)) for top in PACKAGES for path in (ROOT / top).rglob("*.py")}
    assert package == sources | {"buffer/py.typed"}
    assert all(name.parts[0].endswith(".dist-info") for name in others)
    assert {"METADATA", "WHEEL", "RECORD", "LICENSE", "entry_points.txt"} == {name.name for name in others}


def test_it_works_where_nothing_else_is_installed(installed: Path, tmp_path: Path) -> None:
    """Both stores, both formats and both event loops, without any extra."""
    # Isolated: neither this checkout nor the user's own packages can be found.
    run(installed / "python", "-I", "-W", "error", "-c", PROGRAM, tmp_path.as_uri(), cwd=tmp_path)
    assert (tmp_path / "1" / "ingest" / "manifest").is_file()


@pytest.mark.parametrize("command", [["opendata-buffer"], ["python", "-I", "-m", "buffer"]])
def test_the_command_line_says_what_it_needs(installed: Path, tmp_path: Path, command: list[str]) -> None:
    """Without its extra it gives one line that tells how to get it, and fails."""
    program, *arguments = command
    ended = run(installed / program, *arguments, "status", cwd=tmp_path, expect=1)
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert "pip install 'opendata-buffer[cli]'" in line
