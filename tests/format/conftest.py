"""Values for the property tests of the formats, by type, and a buffer longer than any field can say."""

from __future__ import annotations

import mmap
from pathlib import Path
from struct import pack

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from buffer.format import ManifestView, NewEntry, parse_manifest
from buffer.model import Metadata

# How long an example takes is the machine's affair.
settings.register_profile("format", deadline=None)
settings.load_profile("format")

st.register_type_strategy(
    Metadata,
    st.builds(
        Metadata,
        start_index=st.integers(0, 2**32 - 1),
        ingestion_time_ms=st.integers(-(2**63), 2**63 - 1),
        payload=st.binary(max_size=20),
    ),
)
# Many items with payloads of one length are what a busy producer writes.
_METADATA = st.lists(st.from_type(Metadata), max_size=4) | st.builds(
    lambda item, count: [item] * count, st.from_type(Metadata), st.integers(8, 12)
)
st.register_type_strategy(NewEntry, st.builds(NewEntry, st.text(max_size=12), _METADATA))
st.register_type_strategy(
    ManifestView,
    st.builds(
        lambda next_sequence, epoch, entries: parse_manifest(
            pack("<IQQH", 0, next_sequence, epoch, 1)
        ).append(entries),
        next_sequence=st.integers(0, 2**64 - 100),
        epoch=st.integers(0, 2**64 - 1),
        entries=st.lists(st.from_type(NewEntry), max_size=5),
    ),
)


@pytest.fixture
def four_gib(tmp_path: Path) -> memoryview:
    """One byte more than a 32-bit length can say; a hole in a file, so it takes no memory and no disk."""
    with (tmp_path / "hole").open("wb+") as file:
        file.truncate(2**32)
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
