"""Serves a query over HTTP, in a thread of its own, from its start to its end.

It must never fail or hold up the query: what is needed for it is imported in that thread, and if it cannot listen, that
is said once and the query runs without it.
"""

import asyncio
import errno
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from tidegate.coordinator.views import JobView

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.routing import Route

    from tidegate.server.metrics import Ingested

log = logging.getLogger("tidegate")

# One port for each query of a driver, and some for what else may run on the machine.
_PORTS_TRIED: Final = 100
_BACKLOG: Final = 64
# For requests that are being answered when the query ends.
_LAST_ANSWERS_S: Final = 1
_LONGEST_CLOSE_S: Final = 3.0


def _nothing() -> "Sequence[Ingested]":
    return ()


class QueryPage:
    """`url` is None if it could not listen. `routes`: what it answers beside the metrics; made in its own thread.

    `ingested`: what Spark ingests for the query, of which the job's view knows nothing.
    """

    def __init__(
        self,
        query: str,
        view: Callable[[], JobView],
        *,
        host: str,
        port: int,
        routes: "Callable[[], list[Route]]" = list,
        ingested: "Callable[[], Sequence[Ingested]]" = _nothing,
    ) -> None:
        self._query = query
        self._view = view
        self._routes = routes
        self._ingested = ingested
        self._is_closing = threading.Event()
        self._close_server: Callable[[], None] = lambda: None
        self._socket = _listen(host, port, query)
        self._url = None if self._socket is None else _url(host, self._socket)
        self._thread = threading.Thread(target=self._serve, name=f"tidegate-page-{query}", daemon=True)
        if self._socket is not None:
            self._thread.start()

    @property
    def url(self) -> str | None:
        return self._url

    def close(self) -> None:
        self._is_closing.set()
        self._close_server()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_LONGEST_CLOSE_S)

    def _serve(self) -> None:
        assert self._socket is not None
        try:
            asyncio.run(self._serve_until_closed(self._socket))
        except Exception as error:  # whatever it is: the query goes on
            log.warning("The page of query %r is gone: %s: %s", self._query, type(error).__name__, error)
        finally:
            self._socket.close()

    async def _serve_until_closed(self, listening: socket.socket) -> None:
        import uvicorn

        closing = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._close_server = lambda: _tell(loop, closing)
        if self._is_closing.is_set():
            return

        class Server(uvicorn.Server):
            async def main_loop(self) -> None:
                # Not by looking ten times a second, as the original does: the end of a query must not wait for it.
                await closing.wait()

        config = uvicorn.Config(
            make_app(self._query, self._view, self._ingested, self._routes()),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_LAST_ANSWERS_S,
        )
        await Server(config).serve(sockets=[listening])


def make_app(
    query: str, view: Callable[[], JobView], ingested: "Callable[[], Sequence[Ingested]]", routes: "list[Route]"
) -> "Starlette":
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from tidegate.server.metrics import CONTENT_TYPE, open_metrics

    async def metrics(request: Request) -> Response:
        return Response(open_metrics(query, view(), ingested()), media_type=CONTENT_TYPE)

    return Starlette(routes=[Route("/metrics", metrics), *routes])


def _listen(host: str, port: int, query: str) -> socket.socket | None:
    """On the port, or the next one that is free; 0 takes any."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    problem: OSError | None = None
    for candidate in [0] if port == 0 else range(port, min(port + _PORTS_TRIED, 65536)):
        try:
            return _listening(family, host, candidate)
        except OSError as error:
            problem = error
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                break
    log.warning("Query %r has no page: it cannot listen on %s port %d (%s).", query, host, port, problem)
    return None


def _listening(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def _url(host: str, listening: socket.socket) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"


def _tell(loop: asyncio.AbstractEventLoop, closing: asyncio.Event) -> None:
    try:
        loop.call_soon_threadsafe(closing.set)
    except RuntimeError:
        return  # it has ended by itself
