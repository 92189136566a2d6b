"""What can be put into a manifest entry, and how a value that cannot is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buffer.errors import InvalidInputError
from buffer.format import ManifestView, NewEntry
from buffer.model import BatchDescriptor, Metadata


def stored(entry: NewEntry) -> BatchDescriptor:
    (descriptor,) = ManifestView.empty().append([entry])
    return descriptor


@pytest.mark.slow
@given(location=st.text(), metadata=st.lists(st.from_type(Metadata), max_size=10))
def test_an_entry_comes_back_as_it_was_given(location: str, metadata: list[Metadata]) -> None:
    """Location and metadata survive, and the size given in advance is the size the manifest grows by."""
    entry = NewEntry(location, metadata)
    view = ManifestView.empty().append([entry])
    assert list(view) == [BatchDescriptor(0, location, tuple(metadata))]
    assert entry.size_bytes == len(view.data) - len(ManifestView.empty().data)
    assert entry.location == location


@pytest.mark.parametrize("location", ["x" * 65_535, "\u00e9" * 32_767, "", "\0", "a/../b//", "\U0001f600"])
def test_any_location_of_65535_bytes_is_accepted(location: str) -> None:
    """The limit counts bytes of UTF-8, and what the text means is nobody's business here."""
    assert stored(NewEntry(location, [])).location == location


@pytest.mark.parametrize("location", ["x" * 65_536, "\u00e9" * 40_000])
def test_a_longer_location_is_refused_with_its_length(location: str) -> None:
    """The error gives the length in bytes, and comes before anything is encoded."""
    with pytest.raises(InvalidInputError, match=rf"location length .* 65535 .* {len(location.encode())}$"):
        NewEntry(location, [])


def test_a_location_that_is_no_text_is_refused() -> None:
    """Half of a surrogate pair has no bytes in UTF-8, and bytes are no text."""
    with pytest.raises(InvalidInputError, match="location must be valid Unicode"):
        NewEntry("a\ud800", [])
    with pytest.raises(InvalidInputError, match="location must be a string, but is b'a'"):
        NewEntry(b"a", [])  # type: ignore[arg-type]


@pytest.mark.parametrize("start_index", [0, 2**32 - 1])
@pytest.mark.parametrize("time_ms", [-(2**63), -1000, 2**63 - 1])
def test_the_ends_of_every_range_are_accepted(start_index: int, time_ms: int) -> None:
    """The first and the last value of each integer field round-trip."""
    item = Metadata(start_index, time_ms, b"")
    assert stored(NewEntry("a", [item])).metadata == (item,)


@pytest.mark.parametrize(
    ("item", "field", "value"),
    [
        (Metadata(-1, 0, b""), "start_index", "-1"),
        (Metadata(2**32, 0, b""), "start_index", "4294967296"),
        (Metadata(0, 2**63, b""), "ingestion_time_ms", "9223372036854775808"),
        (Metadata(0, -(2**63) - 1, b""), "ingestion_time_ms", "-9223372036854775809"),
        (Metadata(1.0, 0, b""), "start_index", "1.0"),  # type: ignore[arg-type]
        (Metadata(0, None, b""), "ingestion_time_ms", "None"),  # type: ignore[arg-type]
    ],
)
def test_a_number_out_of_range_is_refused_by_name_and_value(item: Metadata, field: str, value: str) -> None:
    """The error says which field of which item, what it may be, and what it is."""
    with pytest.raises(InvalidInputError, match=rf"^{field} of metadata item 1 must be .*, but is {value}$"):
        NewEntry("a", [Metadata(0, 0, b""), item])


def test_a_payload_over_32_bits_is_refused(four_gib: memoryview) -> None:
    """The length is looked at before the payload is copied."""
    with pytest.raises(InvalidInputError, match=r"payload length of metadata item 0 .* but is 4294967296$"):
        NewEntry("a", [Metadata(0, 0, four_gib)])  # type: ignore[arg-type]


def test_an_entry_over_32_bits_is_refused(four_gib: memoryview) -> None:
    """Items that fit one by one may not fit together; they are added up before they are joined."""
    half = Metadata(0, 0, four_gib[: 2**31])  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=r"^entry length .* 'a'$"):
        NewEntry("a", [half, half])


class Many(list[Metadata]):
    """As many items as nobody can have."""

    def __len__(self) -> int:
        return 2**32


def test_more_items_than_32_bits_can_count_are_refused() -> None:
    """The count is looked at before the items are."""
    with pytest.raises(InvalidInputError, match="metadata must have at most 4294967295 items"):
        NewEntry("a", Many())


@pytest.mark.parametrize("payload", [bytearray(b"abc"), memoryview(b"xabcx")[1:4], memoryview(b"")])
def test_a_payload_may_be_any_contiguous_buffer(payload: bytearray | memoryview) -> None:
    """Such a payload is copied, and comes back as bytes."""
    entry = NewEntry("a", [Metadata(0, 0, payload)])  # type: ignore[arg-type]
    assert stored(entry).metadata[0].payload == bytes(payload)


@pytest.mark.parametrize("payload", ["text", None, memoryview(b"a-b-c")[::2]])
def test_a_payload_that_is_no_contiguous_buffer_is_refused(payload: object) -> None:
    """Nothing is guessed: text has no encoding, and a buffer with gaps is most likely a mistake."""
    with pytest.raises(InvalidInputError, match="payload of metadata item 0 must be bytes"):
        NewEntry("a", [Metadata(0, 0, payload)])  # type: ignore[arg-type]


def test_later_changes_to_the_payload_do_not_reach_the_entry() -> None:
    """An entry is encoded when it is made."""
    payload = bytearray(b"abc")
    entry = NewEntry("a", [Metadata(0, 0, payload)])  # type: ignore[arg-type]
    payload[:] = b"xyz"
    assert stored(entry).metadata[0].payload == b"abc"
