"""What fuzzing has found so far, replayed: interesting inputs, and those that once broke a promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from buffer import FormatError, decode_batch, parse_manifest
from tests.fuzz.targets import TARGETS, BrokenPromiseError

CORPUS = Path(__file__).resolve().parent / "corpus"


@pytest.mark.parametrize("target", TARGETS)
def test_no_input_of_the_corpus_breaks_a_promise(target: str) -> None:
    """Every input is read alike by both readers, or refused by both."""
    inputs = sorted((CORPUS / target).iterdir())
    assert inputs
    for path in inputs:
        TARGETS[target](path.read_bytes())


def test_the_corpus_has_inputs_of_both_kinds() -> None:
    """Some are valid and some are not: from only one kind a reader could not be told from a constant."""
    for reader, folder in ((parse_manifest, "manifest"), (decode_batch, "batch")):
        refused = 0
        inputs = [path.read_bytes() for path in (CORPUS / folder).iterdir()]
        for data in inputs:
            try:
                reader(data)
            except FormatError:
                refused += 1
        assert 0 < refused < len(inputs)


def test_a_target_notices_a_wrong_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that finds no records anywhere is found by the first input that has some, or is no batch."""
    monkeypatch.setattr("tests.fuzz.targets.decode_batch", lambda data, max_bytes: [])
    noticed = 0
    for path in (CORPUS / "batch").iterdir():
        try:
            TARGETS["batch"](path.read_bytes())
        except (BrokenPromiseError, ValueError):
            noticed += 1
    assert noticed
