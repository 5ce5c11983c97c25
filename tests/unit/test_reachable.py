"""What is said of a remote location that cannot be used, before anything starts."""

import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from tests.s3_server import SECRET, Application, S3Server, s3_server
from tidegate.model.errors import EnvironmentProblem, OptionError
from tidegate.storage.access import StoreAccess
from tidegate.storage.reachable import check_readable, check_writable
from tidegate.storage.store import open_store


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as served:
        served.make_bucket("tests")
        yield served


@pytest.fixture(autouse=True)
def _nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{closed_port()}")


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_a_location_that_can_be_used_is_left_as_it_was(server: S3Server) -> None:
    access = StoreAccess(server.settings())
    check_writable("s3a://tests/fine", access)
    check_readable("s3a://tests/fine", access)
    assert open_store("s3a://tests/fine", access).list() == []


def test_a_local_location_needs_no_asking() -> None:
    check_writable("/no/such/folder")


def test_keys_of_the_environment_still_work(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-outside")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "also-from-outside")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    check_writable("s3://tests/environment")


def test_a_bucket_that_is_not_there_is_said(server: S3Server) -> None:
    with pytest.raises(
        OptionError, match=r"^Location 's3a://nowhere/chk' cannot be used .*NoSuchBucket\): make the buc"
    ):
        check_writable("s3a://nowhere/chk", StoreAccess(server.settings()))


def test_missing_credentials_are_said(server: S3Server) -> None:
    settings = {name: value for name, value in server.settings().items() if not name.endswith(".key")}
    with pytest.raises(
        OptionError, match=r"'s3a://tests/chk' cannot be used .*no credentials were given, so set spark\."
    ):
        check_readable("s3a://tests/chk", StoreAccess(settings))


def test_a_service_that_does_not_answer_is_said(server: S3Server) -> None:
    settings = {**server.settings(), "fs.s3a.endpoint": f"127.0.0.1:{closed_port()}"}
    with pytest.raises(
        OptionError, match=r"'s3a://tests/chk' cannot be used .*check the endpoint and the network\.$"
    ) as no:
        check_writable("s3a://tests/chk", StoreAccess(settings))
    assert SECRET not in str(no.value)


def test_a_service_without_conditional_writes_is_refused() -> None:
    def without_conditions(application: Application) -> Application:
        def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            environ.pop("HTTP_IF_NONE_MATCH", None)
            return application(environ, start_response)

        return serve

    with s3_server(without_conditions) as server:
        server.make_bucket("careless")
        access = StoreAccess(server.settings())
        with pytest.raises(OptionError, match=r"'s3a://careless/chk' replaces a file .*has conditional writes"):
            check_writable("s3a://careless/chk", access)
        assert open_store("s3a://careless/chk", access).list() == []


@pytest.mark.parametrize("location", ["hdfs://name-node:8020/chk", "viewfs://cluster/chk"])
def test_hdfs_without_hadoops_native_client_is_said(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    monkeypatch.delenv("ARROW_LIBHDFS_DIR", raising=False)
    with pytest.raises(
        EnvironmentProblem, match=rf"^Location '{location}' needs Hadoop's native client.*set HADOOP_HOME"
    ):
        check_writable(location)
