"""An S3 service of this process: moto behind a loopback port.

Requests are served one at a time, because moto looks for a file and then writes it in two steps: S3's promise that a
conditional create has one winner holds only if nobody comes between.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

KEY, SECRET = "a-key-of-the-tests", "a-secret-of-the-tests"

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@dataclass(frozen=True, slots=True)
class S3Server:
    port: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def settings(self) -> dict[str, str]:
        """As a user of Hadoop's S3A names them."""
        return {
            "fs.s3a.endpoint": f"127.0.0.1:{self.port}",
            "fs.s3a.connection.ssl.enabled": "false",
            "fs.s3a.path.style.access": "true",
            "fs.s3a.endpoint.region": "eu-central-1",
            "fs.s3a.access.key": KEY,
            "fs.s3a.secret.key": SECRET,
        }

    def make_bucket(self, name: str) -> None:
        connection = HTTPConnection("127.0.0.1", self.port)
        connection.request("PUT", f"/{name}")
        assert connection.getresponse().status == 200
        connection.close()


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        """Says nothing: a job asks thousands of times."""


def one_at_a_time(application: Application) -> Application:
    turn = threading.Lock()

    def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with turn:
            return application(environ, start_response)

    return serve


@contextmanager
def s3_server(wrapped: Callable[[Application], Application] = one_at_a_time) -> Iterator[S3Server]:
    server = make_server(
        "127.0.0.1",
        0,
        wrapped(DomainDispatcherApplication(create_backend_app)),
        threaded=True,
        request_handler=_Quiet,
    )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield S3Server(server.server_port)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
