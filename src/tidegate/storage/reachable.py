"""Whether a remote location can be used, asked before a query starts: one sentence if not.

Owns that sentence. Leaves nothing behind at the location, and never waits as long as a running job would.
"""

import os
import secrets
from typing import NoReturn

from tidegate.model.errors import OptionError, StorageFailure
from tidegate.storage import layout
from tidegate.storage.access import FROM_ENVIRONMENT, StoreAccess
from tidegate.storage.hadoop_settings import AZURE_SCHEMES, GOOGLE_SCHEMES, S3_SCHEMES, has_credentials
from tidegate.storage.store import AlreadyThere, Created, Patience, Store, local_path, open_store

_ADVICE = {
    **dict.fromkeys(
        S3_SCHEMES,
        (
            "spark.hadoop.fs.s3a.access.key and spark.hadoop.fs.s3a.secret.key, or AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY in the environment of the driver and of the executors",
            ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
        ),
    ),
    **dict.fromkeys(
        GOOGLE_SCHEMES,
        (
            "spark.hadoop.fs.gs.auth.service.account.json.keyfile, or GOOGLE_APPLICATION_CREDENTIALS in the "
            "environment of the driver and of the executors",
            ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY"),
        ),
    ),
    **dict.fromkeys(
        AZURE_SCHEMES,
        (
            "spark.hadoop.fs.azure.account.key.ACCOUNT.dfs.core.windows.net, or AZURE_STORAGE_ACCOUNT_KEY in the "
            "environment of the driver and of the executors",
            ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_CLIENT_ID", "AZURE_CLIENT_ID"),
        ),
    ),
}

# The services' own words; without one of them the advice is general.
_FIXES = (
    ("NoSuchBucket", "make the bucket, or correct its name"),
    ("404 Not Found", "make the bucket or container, or correct its name"),
    ("InvalidAccessKeyId", "correct the access key, or the endpoint that it belongs to"),
    ("SignatureDoesNotMatch", "correct the secret key"),
    ("403 Forbidden", "let these credentials list, read, write and delete there"),
    ("401 Unauthorized", "correct the credentials"),
    ("HTTP error", "check the endpoint and the network"),
)


def check_readable(location: str, access: StoreAccess = FROM_ENVIRONMENT) -> None:
    """Raises `OptionError` if a remote location cannot be looked at. A local one is checked where it is opened."""
    if local_path(location) is None:
        _look(location, access)


def check_writable(location: str, access: StoreAccess = FROM_ENVIRONMENT) -> None:
    """The same, and if it cannot be written to, or lets two writers create one file.

    The last is what a job log relies on: a service that knows no conditional writes would lose data in silence.
    """
    if local_path(location) is None:
        _try_to_create(_look(location, access), location, access)


def _look(location: str, access: StoreAccess) -> Store:
    store = open_store(location, access, patience=Patience.SHORT)
    try:
        store.list(layout.LOG_SUMMARIES)
    except StorageFailure as error:
        _refuse(error, location, access)
    return store


def _try_to_create(store: Store, location: str, access: StoreAccess) -> None:
    path = layout.trial(secrets.token_hex(8))
    try:
        first = store.create(path, b"first")
        second = store.create(path, b"second")
        store.delete(path)
    except StorageFailure as error:
        _refuse(error, location, access)
    if (first, second) != (Created(), AlreadyThere()):
        raise OptionError(
            f"Location {location!r} replaces a file that was to be created only if it is absent (for S3: "
            f"If-None-Match), so two drivers could both believe that they own the job: use a service or a version "
            f"that has conditional writes."
        )


def _refuse(error: StorageFailure, location: str, access: StoreAccess) -> NoReturn:
    # Before the last dash stands what was asked for, which says nothing to a user.
    why = str(error).rstrip(".").rsplit(" - ", 1)[-1]
    raise OptionError(f"Location {location!r} cannot be used ({why}): {_fix(why, location, access)}.") from error


def _fix(why: str, location: str, access: StoreAccess) -> str:
    advice, in_environment = _ADVICE.get(location.split(":", 1)[0].lower(), ("", ()))
    if advice and not has_credentials(location, access) and not any(os.environ.get(name) for name in in_environment):
        return f"no credentials were given, so set {advice}"
    return next((fix for sign, fix in _FIXES if sign in why), "check its name, the endpoint and the network")
