"""`tidegate jobs`, `savepoint` and `stop`: talk to running queries over HTTP.

A query is found by the note beside its job log; `jobs` asks the ports that queries listen on.
"""

import json
import socket
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any

from rich.console import Console
from rich.table import Table

from tidegate.model.errors import JobFailure, UserError
from tidegate.server.control import JOB, SAVEPOINT, STOP
from tidegate.storage.running_query import RunningQuery, read_running
from tidegate.storage.statistics import open_location

# As many as a query tries.
_PORTS_ASKED = 100
_LOOK_S = 0.5
# A savepoint may take as long as checkpoint.timeout, and wait for a query that is just starting.
_LONGEST_ANSWER_S = 3600.0
_LONGEST_STOP_S = 60.0
_SAID_OF_A_JOB = {"name", "state", "generation", "lastCheckpoint", "location"}
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def jobs(console: Console, *, host: str, port: int) -> int:
    found = [(url, job) for url in _urls(host, port) if (job := _job_at(url)) is not None]
    if not found:
        print(f"No query listens on {host}, ports {port} to {port + _PORTS_ASKED - 1}.")
        return 0
    table = Table(box=None, pad_edge=False)
    for name in ("name", "state", "generation", "last checkpoint", "url"):
        table.add_column(name, no_wrap=True)
    table.add_column("location", overflow="fold")
    for url, job in found:
        table.add_row(
            job["name"], job["state"], str(job["generation"]), str(job["lastCheckpoint"]), url, job["location"]
        )
    console.print(table)
    return 0


def savepoint(location: str, path: str | None, *, unaligned: bool) -> int:
    query = _found(location)
    print(_path_in(query, _ask(query, SAVEPOINT, {"path": path, "unaligned": unaligned})))
    return 0


def stop(location: str) -> int:
    query = _found(location)
    _ask(query, STOP, {})
    _await_end(query, location)
    print(f"Query {query.name!r} is stopped.")
    return 0


def stop_with_savepoint(location: str, path: str, *, unaligned: bool) -> int:
    query = _found(location)
    answer = _ask(query, STOP, {"savepoint": path, "unaligned": unaligned})
    _await_end(query, location)
    print(_path_in(query, answer))
    return 0


def _found(location: str) -> RunningQuery:
    query = read_running(open_location(location))
    if query is None:
        raise UserError(f"No query runs on {location!r}, or it has ui.enabled=false: there is nobody to ask.")
    if _host_of(query.url) in _LOOPBACK and query.host != socket.gethostname():
        raise UserError(
            f"Query {query.name!r} listens on {query.url} of the machine {query.host!r}: run this command there, or "
            f"start it with .option('ui.host', ...)."
        )
    return query


def _ask(query: RunningQuery, path: str, asked: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        query.url + path,
        data=json.dumps(asked).encode(),
        headers={"Authorization": f"Bearer {query.token}", "Content-Type": "application/json"},
        method="POST",
    )
    try:
        with urllib.request.urlopen(request, timeout=_LONGEST_ANSWER_S) as answer:
            found = json.load(answer)
            if isinstance(found, dict):
                return found
            raise ValueError("no object")
    except urllib.error.HTTPError as error:
        raise JobFailure(_error_in(error)) from None
    except OSError as error:
        raise UserError(
            f"Query {query.name!r} does not answer at {query.url} ({error}): its driver may have been killed."
        ) from None
    except (ValueError, HTTPException):
        raise _stranger(query) from None


def _path_in(query: RunningQuery, answer: dict[str, Any]) -> str:
    if not isinstance(path := answer.get("path"), str):
        raise _stranger(query)
    return path


def _stranger(query: RunningQuery) -> UserError:
    return UserError(
        f"What answers at {query.url} is not the query {query.name!r}: its driver may have been killed, and another "
        f"program listens there."
    )


def _error_in(answer: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(answer)["error"])
    except (ValueError, KeyError, TypeError):
        return f"The query answered {answer.code} {answer.reason}."


def _await_end(query: RunningQuery, location: str) -> None:
    deadline = time.monotonic() + _LONGEST_STOP_S
    store = open_location(location)
    # Once it has ended another query may listen there, or run on the same location.
    while read_running(store) == query and _job_at(query.url) is not None:
        if time.monotonic() > deadline:
            raise JobFailure(f"Query {query.name!r} was told to stop, and has not ended after {_LONGEST_STOP_S:.0f} s.")
        time.sleep(0.1)


def _job_at(url: str) -> dict[str, Any] | None:
    try:
        with urllib.request.urlopen(url + JOB, timeout=_LOOK_S) as answer:
            job = json.load(answer)
    except (OSError, ValueError, HTTPException):
        return None  # nobody, or somebody who speaks something else
    return job if isinstance(job, dict) and job.keys() >= _SAID_OF_A_JOB else None


def _urls(host: str, port: int) -> list[str]:
    shown = f"[{host}]" if ":" in host else host
    return [f"http://{shown}:{each}" for each in range(port, min(port + _PORTS_ASKED, 65536))]


def _host_of(url: str) -> str:
    return url.removeprefix("http://").rpartition(":")[0]
