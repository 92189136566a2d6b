"""The examples of docs/format.md are bytes that can be read, and its programs speak of the same bytes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from buffer.format import DEFAULT_MAX_BATCH_BYTES, decode_batch, parse_manifest
from buffer.format.compression import LEVEL, MAX_WINDOW_BYTES

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(
    r"^```hex\n(?P<listing>.*?)^```\n+^```python\n(?P<program>.*?)^```", PAGE, re.MULTILINE | re.DOTALL
)


def bytes_of(listing: str) -> bytes:
    return b"".join(bytes.fromhex(line.partition("#")[0]) for line in listing.splitlines())


def test_every_listing_has_its_program() -> None:
    """No example escapes the test below."""
    assert len(EXAMPLES) == PAGE.count("```hex") == PAGE.count("```python") == 4


@pytest.mark.parametrize(("listing", "program"), EXAMPLES, ids=range(len(EXAMPLES)))
def test_a_listing_and_its_program_have_the_same_bytes(listing: str, program: str) -> None:
    """The annotated bytes are those the program has in one piece, and the program is right about them."""
    data = bytes_of(listing)
    assert data.hex() in re.sub(r'"\s+"', "", program)
    exec(program, {})  # noqa: S102 (our own documentation)
    read = parse_manifest if "parse_manifest" in program else decode_batch
    read(data)


def test_the_limits_of_the_page_are_those_of_the_library() -> None:
    """The numbers in the text are those in force."""
    assert f"at most `max_bytes` bytes, {DEFAULT_MAX_BATCH_BYTES >> 20} MiB by default" in PAGE
    assert f"at most 2^{MAX_WINDOW_BYTES.bit_length() - 1} bytes, which is what the reference reads" in PAGE
    assert f"at zstd level {LEVEL}" in PAGE
