"""Hadoop's settings of object stores, told to obstore: which are understood, and what they mean for one location.

Owns their names and defaults. Reads no session and no environment, opens nothing, and puts no value into an error.
"""

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from tidegate.model.errors import OptionError
from tidegate.storage.access import StoreAccess

S3_SCHEMES = ("s3", "s3a")
GOOGLE_SCHEMES = ("gs",)
AZURE_SCHEMES = ("az", "abfs", "abfss")
# Everything that Hadoop's connectors for these stores can be told begins like this.
PREFIXES = ("fs.s3a.", "fs.gs.", "google.cloud.", "fs.azure.")

_S3 = "fs.s3a."
_S3_BUCKET = "fs.s3a.bucket."
_S3_NAMES = (
    "access.key",
    "secret.key",
    "session.token",
    "endpoint",
    "endpoint.region",
    "path.style.access",
    "connection.ssl.enabled",
    "aws.credentials.provider",
)
_GOOGLE_KEY_FILES = ("fs.gs.auth.service.account.json.keyfile", "google.cloud.auth.service.account.json.keyfile")
_AZURE_KEY = "fs.azure.account.key"
# How Hadoop reads, writes and commits its own files, or what Spark sets by itself: nothing that reaching a store needs.
_OF_NO_CONCERN = (
    "fs.s3a.impl",
    "fs.s3a.committer.",
    "fs.s3a.fast.upload",
    "fs.s3a.vectored.",
    "fs.s3a.downgrade.syncable.exceptions",
    "fs.gs.impl",
    "fs.azure.impl",
    "fs.gs.project.id",
    "fs.gs.auth.service.account.enable",
    "google.cloud.auth.service.account.enable",
)
_AWS_HOST = re.compile(r"s3[.-](?P<region>[a-z]{2}(?:-[a-z]+)+-\d+)\.amazonaws\.com(?:\.cn)?")
# A bucket's name can stand before a host name, under one certificate, only if it is a plain label.
_PLAIN_LABEL = re.compile(r"[a-z0-9][a-z0-9-]*")
# By the last part of the class's name, because each has lived in several packages.
_KEY_PROVIDERS = ("SimpleAWSCredentialsProvider", "BasicAWSCredentialsProvider")
_TOKEN_PROVIDERS = ("TemporaryAWSCredentialsProvider",)
_NO_KEY_PROVIDERS = ("AnonymousAWSCredentialsProvider", "AnonymousCredentialsProvider")
# obstore asks all of these in one go: environment, web identity, container, instance.
_ENVIRONMENT_PROVIDERS = (
    "EnvironmentVariableCredentialsProvider",
    "WebIdentityTokenFileCredentialsProvider",
    "WebIdentityTokenCredentialsProvider",
    "ContainerCredentialsProvider",
    "EC2ContainerCredentialsProviderWrapper",
    "IAMInstanceCredentialsProvider",
    "InstanceProfileCredentialsProvider",
    "DefaultCredentialsProvider",
    "DefaultAWSCredentialsProviderChain",
)

CredentialProvider: TypeAlias = Callable[[], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ForObstore:
    """What obstore's `from_url` takes beside the URL; what is not in it comes from the environment."""

    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    client: Mapping[str, Any] = field(default_factory=dict)
    credentials: CredentialProvider | None = field(default=None, repr=False)


def understood(settings: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in settings.items() if _is_understood(name)}


def not_understood(names: Iterable[str], location: str) -> list[str]:
    """Those of `names` that concern the location's store, and that Tidegate has no use for though they may matter."""
    scheme, bucket = _scheme(location), urlsplit(location).netloc
    match scheme:
        case "s3" | "s3a":
            concerned = [n for n in names if n.startswith(_S3) and _is_for_bucket(n, bucket)]
        case "gs":
            concerned = [n for n in names if n.startswith(("fs.gs.", "google.cloud."))]
        case "az" | "abfs" | "abfss":
            concerned = [n for n in names if n.startswith("fs.azure.")]
        case _:
            concerned = []
    return sorted(n for n in concerned if not _is_understood(n) and not n.startswith(_OF_NO_CONCERN))


def for_obstore(location: str, access: StoreAccess) -> ForObstore:
    """Raises `OptionError` if the settings name a way to get credentials that Tidegate does not have."""
    match _scheme(location):
        case "s3" | "s3a":
            return _for_s3(location, access.settings)
        case "gs":
            return _for_google(access.settings)
        case "az" | "abfs" | "abfss":
            return _for_azure(location, access.settings)
        case _:
            return ForObstore()


def has_credentials(location: str, access: StoreAccess) -> bool:
    """Whether the settings say who asks, or that nobody in particular does."""
    told = for_obstore(location, access)
    return told.credentials is not None or any(
        name in told.config for name in ("skip_signature", "service_account", "account_key")
    )


def _scheme(location: str) -> str:
    return location.split(":", 1)[0].lower()


def _is_understood(name: str) -> bool:
    if name.startswith(_S3_BUCKET):
        return any(name.endswith(f".{known}") for known in _S3_NAMES)
    if name.startswith(_S3):
        return name.removeprefix(_S3) in _S3_NAMES
    return name in _GOOGLE_KEY_FILES or name.startswith(f"{_AZURE_KEY}.")


def _is_for_bucket(name: str, bucket: str) -> bool:
    return not name.startswith(_S3_BUCKET) or name.startswith(f"{_S3_BUCKET}{bucket}.")


def _for_s3(location: str, settings: Mapping[str, str]) -> ForObstore:
    bucket = urlsplit(location).netloc
    said = {name: value for name in _S3_NAMES if (value := _of_bucket(settings, bucket, name))}
    config: dict[str, str] = {}
    client: dict[str, Any] = {}
    if endpoint := said.get("endpoint"):
        config |= _endpoint(endpoint, bucket, said)
        if config.get("endpoint", "").startswith("http://"):
            client["allow_http"] = True
    if region := said.get("endpoint.region"):
        config["region"] = region
    credentials: CredentialProvider | None = None
    match _who_asks(said):
        case "nobody":
            config["skip_signature"] = "true"
        case "environment":
            pass
        case "key":
            credentials = _always(said["access.key"], said["secret.key"], None)
        case "key and token":
            credentials = _always(said["access.key"], said["secret.key"], said["session.token"])
    return ForObstore(config, client, credentials)


def _of_bucket(settings: Mapping[str, str], bucket: str, name: str) -> str:
    return (settings.get(f"{_S3_BUCKET}{bucket}.{name}") or settings.get(f"{_S3}{name}") or "").strip()


def _endpoint(endpoint: str, bucket: str, said: Mapping[str, str]) -> dict[str, str]:
    is_secure = said.get("connection.ssl.enabled", "true").lower() != "false"
    url = endpoint if "://" in endpoint else f"{'https' if is_secure else 'http'}://{endpoint}"
    parts = urlsplit(url.rstrip("/"))
    config: dict[str, str] = {}
    if aws := _AWS_HOST.fullmatch(parts.hostname or ""):
        config["region"] = aws["region"]
    is_path_style = said.get("path.style.access", "false").lower() == "true"
    if is_path_style or _PLAIN_LABEL.fullmatch(bucket) is None or _is_address(parts.hostname or ""):
        return {**config, "endpoint": parts.geturl(), "virtual_hosted_style_request": "false"}
    # obstore wants the bucket in the endpoint itself then.
    with_bucket = parts._replace(netloc=f"{bucket}.{parts.netloc}").geturl()
    return {**config, "endpoint": with_bucket, "virtual_hosted_style_request": "true"}


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _who_asks(said: Mapping[str, str]) -> str:
    """The first provider that has what it needs, in the order in which they are named, as Hadoop asks them."""
    has_key = "access.key" in said and "secret.key" in said
    has_token = has_key and "session.token" in said
    named = [name.strip() for name in said.get("aws.credentials.provider", "").split(",") if name.strip()]
    if not named:
        return "key and token" if has_token else "key" if has_key else "environment"
    for provider in named:
        kind = re.split(r"[.$]", provider)[-1]
        if kind in _TOKEN_PROVIDERS and has_token:
            return "key and token"
        if kind in _KEY_PROVIDERS and has_key:
            return "key"
        if kind in _NO_KEY_PROVIDERS:
            return "nobody"
        if kind in _ENVIRONMENT_PROVIDERS:
            return "environment"
        if kind not in _TOKEN_PROVIDERS and kind not in _KEY_PROVIDERS:
            raise OptionError(
                f"fs.s3a.aws.credentials.provider names {provider}, which Tidegate cannot ask: name "
                f"{_KEY_PROVIDERS[0]}, {_TOKEN_PROVIDERS[0]}, {_NO_KEY_PROVIDERS[0]} or {_ENVIRONMENT_PROVIDERS[0]}."
            )
    raise OptionError(
        "fs.s3a.aws.credentials.provider asks for keys that are not set: set fs.s3a.access.key and fs.s3a.secret.key "
        "(and fs.s3a.session.token for a temporary one), or name another provider."
    )


def _always(key: str, secret: str, token: str | None) -> CredentialProvider:
    # Given as a whole, because obstore would join a key from here with a token from the environment.
    return lambda: {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": None}


def _for_google(settings: Mapping[str, str]) -> ForObstore:
    for name in _GOOGLE_KEY_FILES:
        if path := settings.get(name, "").strip():
            return ForObstore({"service_account": path})
    return ForObstore()


def _for_azure(location: str, settings: Mapping[str, str]) -> ForObstore:
    """Keys are named by account, as in `fs.azure.account.key.ACCOUNT.dfs.core.windows.net`."""
    host = urlsplit(location).hostname or ""
    key = settings.get(f"{_AZURE_KEY}.{host}", "").strip()
    return ForObstore({"account_key": key}) if key else ForObstore()
