"""What Hadoop's settings of object stores mean, and that their values are shown nowhere."""

import pickle
from typing import Any

import pytest

from tidegate.model.errors import OptionError
from tidegate.storage.access import FROM_ENVIRONMENT, StoreAccess
from tidegate.storage.hadoop_settings import ForObstore, for_obstore, not_understood, understood
from tidegate.storage.object_store import ObjectStore
from tidegate.storage.store import open_store

KEYS = {"fs.s3a.access.key": "the-key", "fs.s3a.secret.key": "the-secret"}
TOKEN = {**KEYS, "fs.s3a.session.token": "the-token"}
PROVIDER = "fs.s3a.aws.credentials.provider"
HADOOP = "org.apache.hadoop.fs.s3a."
LOCATION = "s3a://bucket/chk"


def told(settings: dict[str, str], location: str = LOCATION) -> ForObstore:
    return for_obstore(location, StoreAccess(settings))


def credentials(settings: dict[str, str], location: str = LOCATION) -> Any:
    provider = told(settings, location).credentials
    return (
        None
        if provider is None
        else (provider()["access_key_id"], provider()["secret_access_key"], provider()["token"])
    )


def test_without_settings_everything_comes_from_the_environment() -> None:
    for location in (LOCATION, "s3://b/x", "gs://b/x", "abfss://c@a.dfs.core.windows.net/x"):
        assert for_obstore(location, FROM_ENVIRONMENT) == ForObstore()


def test_keys_are_taken_whole_so_that_no_token_of_the_environment_joins_them() -> None:
    assert credentials(KEYS) == ("the-key", "the-secret", None)
    assert credentials(TOKEN) == ("the-key", "the-secret", "the-token")
    assert credentials({"fs.s3a.access.key": "half"}) is None


@pytest.mark.parametrize(
    ("provider", "settings", "expected"),
    [
        (f"{HADOOP}SimpleAWSCredentialsProvider", TOKEN, ("the-key", "the-secret", None)),
        (f"{HADOOP}TemporaryAWSCredentialsProvider", TOKEN, ("the-key", "the-secret", "the-token")),
        (
            f"{HADOOP}TemporaryAWSCredentialsProvider, {HADOOP}SimpleAWSCredentialsProvider",
            KEYS,
            ("the-key", "the-secret", None),
        ),
        ("com.amazonaws.auth.EnvironmentVariableCredentialsProvider", KEYS, None),
        (f"{HADOOP}SimpleAWSCredentialsProvider,com.example.Vault", KEYS, ("the-key", "the-secret", None)),
    ],
)
def test_the_first_provider_that_has_what_it_needs_is_asked(
    provider: str, settings: dict[str, str], expected: object
) -> None:
    assert credentials({**settings, PROVIDER: provider}) == expected


def test_an_anonymous_request_is_not_signed() -> None:
    anonymous = told({**KEYS, PROVIDER: f"{HADOOP}AnonymousAWSCredentialsProvider"})
    assert anonymous.config == {"skip_signature": "true"}
    assert anonymous.credentials is None


def test_a_provider_that_cannot_be_asked_is_refused_by_name() -> None:
    with pytest.raises(OptionError, match=r"names com\.example\.Vault, which Tidegate cannot ask: name Simple"):
        told({PROVIDER: "com.example.Vault", **KEYS})
    with pytest.raises(OptionError, match=r"keys that are not set: set fs\.s3a\.access\.key"):
        told({PROVIDER: f"{HADOOP}SimpleAWSCredentialsProvider"})


def test_a_bucket_of_its_own_settings_wins() -> None:
    settings = {
        **KEYS,
        "fs.s3a.bucket.my.bucket.access.key": "another-key",
        "fs.s3a.bucket.my.bucket.secret.key": "another-secret",
        "fs.s3a.bucket.my.bucket.endpoint.region": "eu-west-1",
    }
    assert credentials(settings, "s3a://my.bucket/x") == ("another-key", "another-secret", None)
    assert told(settings, "s3a://my.bucket/x").config["region"] == "eu-west-1"
    assert credentials(settings, "s3a://bucket/x") == ("the-key", "the-secret", None)
    assert "region" not in told(settings, "s3a://bucket/x").config


@pytest.mark.parametrize(
    ("location", "settings", "endpoint", "is_virtual"),
    [
        ("s3a://bucket/x", {"endpoint": "minio.local:9000"}, "https://bucket.minio.local:9000", "true"),
        ("s3a://bucket/x", {"endpoint": "http://10.0.0.1:9000"}, "http://10.0.0.1:9000", "false"),
        ("s3a://a.bucket/x", {"endpoint": "minio.local"}, "https://minio.local", "false"),
        (
            "s3a://bucket/x",
            {"endpoint": "minio.local", "path.style.access": "TRUE", "connection.ssl.enabled": "false"},
            "http://minio.local",
            "false",
        ),
    ],
)
def test_an_endpoint_is_asked_as_hadoop_would(
    location: str, settings: dict[str, str], endpoint: str, is_virtual: str
) -> None:
    found = told({f"fs.s3a.{name}": value for name, value in settings.items()}, location)
    assert (found.config["endpoint"], found.config["virtual_hosted_style_request"]) == (endpoint, is_virtual)
    assert found.client.get("allow_http", False) == endpoint.startswith("http://")


def test_the_region_is_read_from_an_endpoint_of_aws_unless_it_is_set() -> None:
    endpoint = {"fs.s3a.endpoint": "s3.eu-west-3.amazonaws.com"}
    assert told(endpoint).config["region"] == "eu-west-3"
    assert told({**endpoint, "fs.s3a.endpoint.region": "us-west-2"}).config["region"] == "us-west-2"


def test_keys_of_google_and_azure() -> None:
    keyfile = {"google.cloud.auth.service.account.json.keyfile": "/keys/one.json"}
    assert told(keyfile, "gs://bucket/x").config == {"service_account": "/keys/one.json"}
    azure = {"fs.azure.account.key.mine.dfs.core.windows.net": "bWluZQ=="}
    assert told(azure, "abfss://box@mine.dfs.core.windows.net/x").config == {"account_key": "bWluZQ=="}
    assert told(azure, "abfss://box@other.dfs.core.windows.net/x") == ForObstore()


def test_only_settings_that_concern_the_location_and_have_no_use_are_named() -> None:
    names = [
        *TOKEN,
        "fs.s3a.encryption.algorithm",
        "fs.s3a.bucket.bucket.assumed.role.arn",
        "fs.s3a.bucket.other.assumed.role.arn",
        "fs.s3a.impl",
        "fs.s3a.committer.name",
        "fs.azure.account.auth.type",
    ]
    assert not_understood(names, LOCATION) == ["fs.s3a.bucket.bucket.assumed.role.arn", "fs.s3a.encryption.algorithm"]
    assert not_understood(names, "abfss://c@a.dfs.core.windows.net/x") == ["fs.azure.account.auth.type"]
    assert not_understood(names, "/a/folder") == []
    assert understood(dict.fromkeys(names, "v")) == dict.fromkeys(TOKEN, "v")


def test_values_travel_and_are_not_shown() -> None:
    access = StoreAccess(TOKEN)
    assert pickle.loads(pickle.dumps(access)).settings == TOKEN
    shown = f"{access!r} {told(TOKEN)!r} {open_store(LOCATION, access)!r}"
    assert not [value for value in TOKEN.values() if value in shown]


def test_a_location_with_credentials_in_it_is_refused_without_showing_them() -> None:
    with pytest.raises(OptionError, match="take them out") as refused:
        ObjectStore.connect("s3a://the-key:the-secret@bucket/chk")
    assert "the-secret" not in str(refused.value)
