"""What may be asked of a running query over HTTP: `/api/v1/job`, `/api/v1/savepoint`, `/api/v1/stop`.

Only who knows the query's token may change anything; it is written beside the job log, for those who can read that. A
web page that a browser happens to show cannot know it.
"""

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.coordinator.views import JobView
from tidegate.model.errors import OptionError, TidegateError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

JOB, SAVEPOINT, STOP = "/api/v1/job", "/api/v1/savepoint", "/api/v1/stop"
# A request has a path and a few words in it.
_MOST_BODY_BYTES = 64 << 10


class QueryControl(Protocol):
    """Blocking calls, made beside the server's loop."""

    def savepoint(self, folder: str | None, *, unaligned: bool) -> str:
        """Its path, once it is committed. None is the query's own place for savepoints."""
        ...

    def stop(self) -> None:
        """Asks for the end."""
        ...

    def stop_with_savepoint(self, folder: str | None, *, unaligned: bool) -> str:
        """The savepoint's path, once it is committed; the query ends then."""
        ...


def control_routes(
    *, query: str, location: str, token: str, view: Callable[[], JobView], control: QueryControl
) -> "list[Route]":
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def job(request: "Request") -> "Response":
        return JSONResponse(described(query, location, view()))

    async def savepoint(asked: Mapping[str, Any]) -> "Response":
        folder, unaligned = _text(asked, "path"), _flag(asked, "unaligned")
        path = await asyncio.to_thread(control.savepoint, folder, unaligned=unaligned)
        return JSONResponse({"path": path})

    async def stop(asked: Mapping[str, Any]) -> "Response":
        if asked.get("savepoint") in (None, False):
            control.stop()
            return JSONResponse({"path": None}, status_code=202)
        folder = None if asked["savepoint"] is True else _text(asked, "savepoint")
        path = await asyncio.to_thread(control.stop_with_savepoint, folder, unaligned=_flag(asked, "unaligned"))
        return JSONResponse({"path": path}, status_code=202)

    def guarded(call: Callable[[Mapping[str, Any]], Awaitable["Response"]]) -> Callable[["Request"], Any]:
        async def endpoint(request: "Request") -> "Response":
            given = request.headers.get("authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
                return JSONResponse({"error": "The query's token is missing or wrong."}, status_code=403)
            try:
                return await call(await _body(request))
            except TidegateError as error:
                return JSONResponse({"error": str(error)}, status_code=409)

        return endpoint

    return [
        Route(JOB, job),
        Route(SAVEPOINT, guarded(savepoint), methods=["POST"]),
        Route(STOP, guarded(stop), methods=["POST"]),
    ]


def described(query: str, location: str, view: JobView) -> dict[str, Any]:
    completed = [c for c in view.checkpoints if c.status == "completed"]
    return {
        "name": query,
        "location": location,
        "state": view.state,
        "generation": view.generation,
        "startedAt": view.started_at.isoformat(),
        "committedCheckpoints": view.committed_checkpoints,
        "lastCheckpoint": completed[0].id if completed else None,
        "lastFailure": view.last_failure,
    }


async def _body(request: "Request") -> Mapping[str, Any]:
    data = b""
    async for piece in request.stream():
        data += piece
        if len(data) > _MOST_BODY_BYTES:
            raise OptionError("The request is too long.")
    try:
        asked = json.loads(data or b"{}")
    except ValueError:
        asked = None
    if not isinstance(asked, dict):
        raise OptionError("The request is no JSON object.")
    return asked


def _text(asked: Mapping[str, Any], name: str) -> str | None:
    value = asked.get(name)
    if value is not None and not isinstance(value, str):
        raise OptionError(f"{name!r} is {value!r}: write a path.")
    return value


def _flag(asked: Mapping[str, Any], name: str) -> bool:
    return asked.get(name) is True
