"""Where a bucket is reached, from settings, URL and environment."""

from __future__ import annotations

from typing import Any

import pytest

from buffer.errors import InvalidInputError
from buffer.store.s3.config import S3Config
from buffer.store.s3.endpoint import locate


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({"bucket": "data"}, "https://data.s3.eu-west-1.amazonaws.com/k"),
        ({"bucket": "my.data"}, "https://s3.eu-west-1.amazonaws.com/my.data/k"),
        ({"bucket": "My_Bucket"}, "https://s3.eu-west-1.amazonaws.com/My_Bucket/k"),
        ({"bucket": "data", "addressing": "path"}, "https://s3.eu-west-1.amazonaws.com/data/k"),
        ({"bucket": "data", "endpoint": "http://[::1]:9000"}, "http://[::1]:9000/data/k"),
        ({"bucket": "data", "endpoint": "https://s3.x:443"}, "https://s3.x/data/k"),
        ({"bucket": "data", "endpoint": "http://h:80"}, "http://h/data/k"),
        ({"bucket": "data", "endpoint": "http://H.Example:9000/"}, "http://h.example:9000/data/k"),
        ({"bucket": "data", "endpoint": "http://h:9000/base/"}, "http://h:9000/base/data/k"),
        (
            {"bucket": "data", "endpoint": "http://h:9000/base", "addressing": "virtual"},
            "http://data.h:9000/base/k",
        ),
        ({"bucket": "my.data", "endpoint": "http://h", "addressing": "virtual"}, "http://my.data.h/k"),
    ],
)
def test_the_address_of_an_object(settings: dict[str, Any], url: str) -> None:
    """Host and path follow addressing, region and endpoint; what no host name can hold goes into the path."""
    endpoint = locate(S3Config(**settings), "eu-west-1")
    assert endpoint.origin + endpoint.path("k") == url


def test_china_has_its_own_domain() -> None:
    """Regions of China are below amazonaws.com.cn."""
    assert locate(S3Config(bucket="data"), "cn-north-1").host == "data.s3.cn-north-1.amazonaws.com.cn"


@pytest.mark.parametrize(
    "settings",
    [
        {"endpoint": "h:9000"},
        {"endpoint": "ftp://h"},
        {"endpoint": "http://h?x=1"},
        {"endpoint": "http://bücher.example"},
        {"endpoint": "http://h:port"},
        {"endpoint": "http://127.0.0.1:1", "addressing": "virtual"},
        {"endpoint": "http://[::1]:1", "addressing": "virtual"},
        {"bucket": "my.data", "addressing": "virtual"},
        {"bucket": "My_Bucket", "addressing": "virtual"},
    ],
)
def test_addresses_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    """An endpoint that is no plain URL, and a bucket that cannot be a host name, are errors at once."""
    with pytest.raises(InvalidInputError):
        locate(S3Config(**({"bucket": "data"} | settings)), "eu-west-1")


def test_a_password_in_the_endpoint_is_refused_and_not_repeated() -> None:
    """The message about a user name in an endpoint does not hold what was there."""
    with pytest.raises(InvalidInputError) as caught:
        locate(S3Config(bucket="data", endpoint="http://user:hidden@h"), "eu-west-1")
    assert "hidden" not in str(caught.value)


def test_the_url_and_the_environment_fill_the_settings() -> None:
    """Code wins over the URL, the URL over the environment, the narrower variable over the wider."""
    environ = {
        "AWS_REGION": "eu-west-1",
        "AWS_DEFAULT_REGION": "eu-west-2",
        "AWS_ENDPOINT_URL": "http://wide",
        "AWS_ENDPOINT_URL_S3": "http://narrow",
        "AWS_ACCESS_KEY_ID": "key-id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_SESSION_TOKEN": "token",
        "AWS_PROFILE": "prod",
    }
    config = S3Config.from_url("s3://data/a/b%20c/?region=eu-central-1", environ, max_connections=7)
    assert (config.bucket, config.prefix, config.region) == ("data", "a/b c", "eu-central-1")
    assert (config.endpoint, config.profile, config.max_connections) == ("http://narrow", "prod", 7)
    assert (config.access_key_id, config.secret_access_key, config.session_token) == (
        "key-id",
        "secret",
        "token",
    )
    assert S3Config.from_url("s3://data", environ).region == "eu-west-1"
    given = S3Config.from_url(
        "s3://data?region=a-b", environ, region="c-d", access_key_id="x", secret_access_key="y"
    )
    assert (given.region, given.access_key_id, given.session_token) == ("c-d", "x", None)


@pytest.mark.parametrize(
    "url",
    [
        "s3:///prefix",
        "http://data",
        "s3://user:hidden@data",
        "s3://data:9000",
        "s3://data?secret_access_key=hidden",
        "s3://data?regoin=x",
        "s3://data#hidden",
        "s3://data?addressing=sideways",
    ],
)
def test_urls_that_say_too_much_or_too_little_are_refused(url: str) -> None:
    """A URL without a bucket, with a secret or with an unknown option is an error that repeats no secret."""
    with pytest.raises(InvalidInputError) as caught:
        S3Config.from_url(url, {})
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"bucket": ""},
        {"bucket": "a/b"},
        {"prefix": "/x"},
        {"access_key_id": "only"},
        {"max_connections": 0},
        {"max_connections": 4, "reserved_connections": 4},
        {"request_timeout": 0},
        {"retry_cap": float("nan")},
        {"region": "eu west"},
    ],
)
def test_settings_that_cannot_be_used_are_refused(settings: dict[str, Any]) -> None:
    """Every field is checked when the settings are made."""
    with pytest.raises(InvalidInputError):
        S3Config(**({"bucket": "data"} | settings))


def test_unknown_settings_are_named() -> None:
    """A misspelt name is an error that tells the right one, in code as in the URL."""
    with pytest.raises(InvalidInputError, match=r"max_conections \(did you mean 'max_connections'\?\)"):
        S3Config.from_url("s3://data", {}, max_conections=3)
    with pytest.raises(InvalidInputError, match=r"regoin in an S3 URL \(did you mean 'region'\?\)"):
        S3Config.from_url("s3://data?regoin=x", {})
