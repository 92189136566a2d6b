"""The JSON that scripts read."""

from __future__ import annotations

import json

import pytest

from buffer import ConsumedBatch, ManifestView, Metadata
from buffer.cli.views import batch_json, manifest_json, pretty, record_lines
from buffer.format import NewEntry

LARGEST = 2**64 - 1


def batch_of(records: int, *starts: int) -> ConsumedBatch:
    entries = tuple(b"%d" % n for n in range(records))
    metadata = tuple(Metadata(start, 1000 + n, b"meta %d" % n) for n, start in enumerate(starts))
    return ConsumedBatch(entries, 7, "ingest/a.batch", metadata)


def test_a_manifest_has_the_members_of_the_reference() -> None:
    """Names, order and base64 are what scripts for the reference's tool expect."""
    view = ManifestView.empty().append(
        [NewEntry("ingest/a.batch", [Metadata(0, 1_700_000_000_000, b"my-metadata")]), NewEntry("b", [])]
    )
    assert list(manifest_json(view).items()) == [
        ("version", 1),
        ("epoch", 0),
        ("next_sequence", 2),
        (
            "entries",
            [
                {
                    "sequence": 0,
                    "location": "ingest/a.batch",
                    "metadata": [
                        {
                            "start_index": 0,
                            "ingestion_time_ms": 1_700_000_000_000,
                            "payload_base64": "bXktbWV0YWRhdGE=",
                        }
                    ],
                },
                {"sequence": 1, "location": "b", "metadata": []},
            ],
        ),
    ]


def test_the_largest_integers_are_written_exactly() -> None:
    """64 bits do not become a float."""
    text = pretty(manifest_json(ManifestView.empty().with_epoch(LARGEST)))
    assert b'"epoch": 18446744073709551615,' in text
    assert json.loads(text)["epoch"] == LARGEST


def test_documents_are_utf_8_and_end_with_a_newline() -> None:
    """A location with other letters is readable, and a terminal's prompt stands on its own line."""
    text = pretty({"location": "münchen"})
    assert text.decode() == '{\n  "location": "münchen"\n}\n'


@pytest.mark.parametrize(
    ("starts", "expected"),
    [
        ((0,), [0, 0, 0, 0]),
        ((0, 1, 3), [0, 1, 1, 2]),
        ((2,), [None, None, 0, 0]),
        ((), [None] * 4),
        ((0, 0, 2), [1, 1, 2, 2]),
        ((0, 9), [0, 0, 0, 0]),
        ((0, 3, 2), [0, 0, 0, 2]),
        ((9, 10), [None] * 4),
    ],
)
def test_each_record_has_the_metadata_that_covers_it(
    starts: tuple[int, ...], expected: list[int | None]
) -> None:
    """An item reaches to the next one's start; records before the first have none."""
    lines = [json.loads(line) for line in record_lines(batch_of(4, *starts))]
    times = [None if n is None else 1000 + n for n in expected]
    assert [line["ingestion_time_ms"] for line in lines] == times
    assert [line["metadata_base64"] is None for line in lines] == [n is None for n in expected]


def test_a_record_says_where_it_comes_from() -> None:
    """Sequence, index and location are all that is needed to find it again."""
    (line,) = record_lines(ConsumedBatch((b"\xff\n",), LARGEST, "x", (Metadata(0, -1, b"m"),)))
    assert line == (
        b'{"sequence": 18446744073709551615, "record_index": 0, "location": "x", "ingestion_time_ms": -1, '
        b'"metadata_base64": "bQ==", "payload_base64": "/wo="}'
    )


def test_a_batch_tells_its_sizes() -> None:
    """Stored size and record size differ by framing and compression."""
    assert batch_json(version=1, compression="none", stored_bytes=20, records=[b"a", b"bc"]) == {
        "version": 1,
        "compression": "none",
        "record_count": 2,
        "stored_bytes": 20,
        "record_bytes": 3,
        "records_base64": ["YQ==", "YmM="],
    }
