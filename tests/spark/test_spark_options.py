"""Options: what is accepted, and what is said of what is not."""

from __future__ import annotations

import re
import traceback
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from buffer import Compression, InvalidInputError
from buffer.spark import AckMode, OpendataBufferDataSource, Options
from buffer.spark.options import OPTIONS, Purpose

PATH = {"path": "s3://bucket/prefix"}


def test_options_have_the_documented_defaults() -> None:
    """With a path alone everything else is the library's default."""
    options = Options.parse(PATH)
    assert options == Options(path="s3://bucket/prefix")
    assert options.ack_mode is AckMode.EAGER and options.fail_on_data_loss and options.start_sequence == 0
    assert options.consumer_config.manifest_path == options.producer_config.manifest_path == "ingest/manifest"


def test_every_option_is_read_in_the_case_that_spark_gives_it() -> None:
    """Spark lowers the case of all names."""
    given = {
        "manifest_path": "q/m",
        "data_path_prefix": "q/data",
        "startsequence": "18446744073709551615",
        "endsequence": "18446744073709551615",
        "maxbatchespertrigger": "7",
        "maxbytespertrigger": "8",
        "batchesperpartition": "9",
        "minpollinterval": "0.5",
        "ackmode": "Commit",
        "failondataloss": "false",
        "fetchworkers": "3",
        "maxbatchbytes": "1000",
        "metadatacolumns": "FALSE",
        "compression": "zstd",
        "flushsizebytes": "100",
        "commitwithin": "60",
        "idempotencykey": "night 7",
    }
    assert Options.parse(PATH | given) == Options(
        path="s3://bucket/prefix",
        manifest_path="q/m",
        data_path_prefix="q/data",
        start_sequence=2**64 - 1,
        end_sequence=2**64 - 1,
        max_batches_per_trigger=7,
        max_bytes_per_trigger=8,
        batches_per_partition=9,
        min_poll_interval=0.5,
        ack_mode=AckMode.COMMIT,
        fail_on_data_loss=False,
        fetch_workers=3,
        max_batch_bytes=1000,
        metadata_columns=False,
        compression=Compression.ZSTD,
        flush_size_bytes=100,
        commit_within=60.0,
        idempotency_key="night 7",
    )


def test_every_field_has_its_option() -> None:
    """None of them can be set in code only."""
    assert {option.field for option in OPTIONS} | {"given"} == {each.name for each in fields(Options)}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("startSequence", "-1"),
        ("startSequence", "18446744073709551616"),
        ("startSequence", "1.0"),
        ("startSequence", ""),
        ("startSequence", "٣"),
        ("startSequence", "9" * 5000),
        ("maxBatchesPerTrigger", "0"),
        ("minPollInterval", "0"),
        ("minPollInterval", "nan"),
        ("minPollInterval", "inf"),
        ("minPollInterval", "1s"),
        ("ackMode", "always"),
        ("failOnDataLoss", "yes"),
        ("compression", "gzip"),
        ("fetchWorkers", "1000"),
        ("maxBatchBytes", "2147483648"),
        ("flushSizeBytes", "268435457"),
        ("commitWithin", "1e9"),
        ("idempotencyKey", ""),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, value: str) -> None:
    """The message has the option, what it must be, and what it is."""
    with pytest.raises(InvalidInputError, match=f"{name!r} must be .*{re.escape(repr(value))}"):
        Options.parse(PATH | {name: value})


@pytest.mark.parametrize("value", [None, 5, True])
def test_a_value_that_is_no_text_is_refused_by_name(value: Any) -> None:
    """Spark makes text of all that it is given; nothing else gets further than here."""
    with pytest.raises(InvalidInputError, match=f"'startSequence' must be text, but is {value}"):
        Options.parse(PATH | {"startSequence": value})


def test_zeros_in_front_do_not_matter() -> None:
    """However many there are."""
    assert Options.parse(PATH | {"startSequence": "0" * 5000 + "7"}).start_sequence == 7
    assert Options.parse(PATH | {"startSequence": "000"}).start_sequence == 0


def test_an_unknown_option_is_refused_with_the_list_of_known_ones() -> None:
    """A misspelt option is an error, not a default."""
    with pytest.raises(InvalidInputError, match=r"'maxBatchPerTrigger' is unknown.*maxBatchesPerTrigger"):
        Options.parse(PATH | {"maxBatchPerTrigger": "1"})


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("maxbatchpertrigger", "maxBatchesPerTrigger"),
        ("start_sequence", "startSequence"),
        ("manifestpath", "manifest_path"),
        ("idempotencekey", "idempotencyKey"),
    ],
)
def test_an_option_that_is_nearly_right_is_answered_with_the_right_one(given: str, meant: str) -> None:
    """In the writing of the documentation; Spark hands over lower case."""
    with pytest.raises(
        InvalidInputError, match=rf"'{given}' is unknown \(did you mean '{meant}'\?\)\. Known"
    ):
        Options.parse(PATH | {given: "1"})


def test_an_option_that_is_like_no_other_gets_no_guess() -> None:
    """A wrong guess is worse than none."""
    with pytest.raises(InvalidInputError, match=r"'header' is unknown\. Known are: path"):
        Options.parse(PATH | {"header": "true"})


def test_secrets_given_as_options_are_not_repeated() -> None:
    """Neither an unknown option's value nor a URL with credentials reaches a message or a log."""
    no_urls = ({"path": "s3://key:hunter2@[::1/q"}, {"path": "s3://key:hunter2@buck\u2100t/q"})
    for wrong in ({"aws_secret_access_key": "hunter2"}, {"path": "s3://key:hunter2@bucket/q"}, *no_urls):
        with pytest.raises(InvalidInputError) as caught:
            Options.parse(PATH | wrong)
        assert "hunter2" not in "".join(traceback.format_exception(caught.value, limit=0))
        assert re.search("environment|credentials|no URL", str(caught.value))


def test_an_option_of_another_use_is_refused() -> None:
    """An option that would do nothing is an error too."""
    streaming = Options.parse(PATH | {"ackMode": "none"})
    assert streaming.check(Purpose.STREAM_READ) is streaming
    with pytest.raises(InvalidInputError, match=r"'ackMode' means nothing to a batch read.*endSequence"):
        streaming.check(Purpose.BATCH_READ)
    with pytest.raises(InvalidInputError, match="'idempotencyKey' means nothing to a stream write"):
        Options.parse(PATH | {"idempotencyKey": "x"}).check(Purpose.STREAM_WRITE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "'path' is missing"),
        ({"path": "memory://"}, "do not share"),
        ({"path": "gs://bucket"}, "must begin with one of"),
        ({"path": "s3a://bucket/q"}, "write s3://"),
        ({"path": "/data/q"}, "write file:///data/q"),
        ({"path": "file:/tmp/q"}, "write file:///tmp/q"),
        ({"path": "file:///q", "manifest_path": "a//b"}, "manifest_path must be names"),
        ({"path": "file:///q", "startSequence": "5", "endSequence": "4"}, "endSequence must be at least"),
    ],
)
def test_a_source_that_cannot_work_is_refused_when_it_is_made(options: dict[str, str], message: str) -> None:
    """Before Spark plans anything."""
    with pytest.raises(InvalidInputError, match=message):
        OpendataBufferDataSource(options)


def test_making_a_source_does_no_io(tmp_path: Path) -> None:
    """Not even the store's folder is created."""
    OpendataBufferDataSource({"path": f"file://{tmp_path}/queue"}).schema()
    assert not list(tmp_path.iterdir())


def test_spark_may_hand_over_its_own_option() -> None:
    """A streaming sink sees the checkpoint's location among its options."""
    assert Options.parse(PATH | {"checkpointlocation": "/cp"}) == Options.parse(PATH)
