"""What may be asked of a running query over HTTP, by whom, and how the commands ask it."""

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.unit.test_durable import Place, manifest
from tidegate.api.control import FoundByLocation
from tidegate.cli.main import app
from tidegate.coordinator.views import JobView
from tidegate.model.errors import JobFailure
from tidegate.server.control import control_routes
from tidegate.server.page import QueryPage
from tidegate.storage import layout
from tidegate.storage.running_query import RunningQuery, note_running, read_running
from tidegate.storage.store import LocalFiles


@dataclass
class Control:
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    page: QueryPage | None = None

    def savepoint(self, folder: str | None, *, unaligned: bool) -> str:
        self.asked.append(("savepoint", folder, unaligned))
        if folder == "full":
            raise JobFailure("The savepoint was not taken: the disk is full.")
        return f"{folder}/savepoint-7-g1"

    def stop(self) -> None:
        self.asked.append(("stop",))
        self._end()

    def stop_with_savepoint(self, folder: str | None, *, unaligned: bool) -> str:
        self.asked.append(("stop with savepoint", folder, unaligned))
        self._end()
        return f"{folder}/savepoint-8-g1"

    def _end(self) -> None:
        assert self.page is not None
        self.page._close_server()


@dataclass
class Running:
    location: Path
    url: str
    token: str
    control: Control

    def post(self, path: str, body: object, token: str | None = None) -> tuple[int, dict[str, Any]]:
        given = self.token if token is None else token
        headers = {"Authorization": f"Bearer {given}"}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/api/v1/{path}", data=data, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    place, control = Place(tmp_path / "chk"), Control()
    place.take(place.started(), manifest(1))
    found = FoundByLocation("totals")
    location = str(place.folder)
    page = QueryPage(
        "totals",
        lambda: JobView(state="running", generation=3),
        host="127.0.0.1",
        port=0,
        routes=lambda: control_routes(
            query="totals",
            location=location,
            token=found.token,
            view=lambda: JobView(state="running", generation=3),
            control=control,
        ),
    )
    control.page = page
    assert page.url is not None
    found.note(place.store, page.url)
    yield Running(place.folder, page.url, found.token, control)
    page.close()
    found.forget()
    assert read_running(place.store) is None, "an ended query is not found any more"


def run(*arguments: str) -> tuple[int, str]:
    answer = CliRunner().invoke(app, list(arguments))
    return answer.exit_code, answer.output


def test_a_query_says_what_it_is_to_anybody(running: Running) -> None:
    with urllib.request.urlopen(f"{running.url}/api/v1/job", timeout=10) as answer:
        job = json.load(answer)
    assert (job["name"], job["state"], job["generation"]) == ("totals", "running", 3)
    assert job["location"] == str(running.location) and running.token not in json.dumps(job)


def test_nobody_without_the_token_changes_anything(running: Running) -> None:
    for token in ("", "wrong", running.token[:-1]):
        for path in ("savepoint", "stop"):
            assert running.post(path, {}, token)[0] == 403
    assert running.control.asked == []


@pytest.mark.parametrize("body", [b"[]", b"no json", {"path": 7}, b" " * 100_000])
def test_a_request_that_makes_no_sense_is_refused(running: Running, body: object) -> None:
    code, said = running.post("savepoint", body)
    assert code == 409 and said["error"].endswith(".")
    assert running.control.asked == []


def test_savepoint_asks_the_query_and_prints_the_path(running: Running) -> None:
    assert run("savepoint", str(running.location)) == (0, "None/savepoint-7-g1\n")
    assert run("savepoint", str(running.location), "mine", "--unaligned") == (0, "mine/savepoint-7-g1\n")
    assert running.control.asked == [("savepoint", None, False), ("savepoint", "mine", True)]


def test_a_savepoint_that_fails_is_told_in_the_querys_words(running: Running) -> None:
    code, said = run("savepoint", str(running.location), "full")
    assert code == 1 and "The savepoint was not taken: the disk is full." in said


def test_stop_waits_for_the_end(running: Running) -> None:
    code, said = run("stop", str(running.location))
    assert code == 0 and "'totals' is stopped" in said
    assert running.control.asked == [("stop",)]


def test_stop_with_a_savepoint_prints_its_path(running: Running) -> None:
    assert run("stop", str(running.location), "--savepoint", "mine") == (0, "mine/savepoint-8-g1\n")
    assert running.control.asked == [("stop with savepoint", "mine", False)]


def test_stop_with_a_savepoint_nowhere_does_not_stop_without_one(running: Running) -> None:
    run("stop", str(running.location), "--savepoint", "")
    assert ("stop",) not in running.control.asked


def test_jobs_lists_who_listens(running: Running) -> None:
    port = running.url.rpartition(":")[2]
    code, said = run("jobs", "--port", port)
    assert code == 0 and "totals" in said and "running" in said


def test_jobs_passes_over_whoever_speaks_something_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def answer() -> None:
            accepted, _ = stranger.accept()
            with accepted:
                accepted.recv(1000)
                accepted.sendall(b"no http\r\n\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        code, _ = run("jobs", "--port", str(stranger.getsockname()[1]))
        answering.join()
    assert code == 0


def test_a_location_without_a_query_has_nobody_to_ask(tmp_path: Path) -> None:
    place = Place(tmp_path / "chk")
    place.take(place.started(), manifest(1))
    for command in ("savepoint", "stop"):
        code, said = run(command, str(place.folder))
        assert code == 1 and "No query runs on" in said


def test_a_killed_driver_and_another_machine_are_told_apart(tmp_path: Path) -> None:
    place = Place(tmp_path / "chk")
    place.take(place.started(), manifest(1))
    note_running(place.store, RunningQuery(name="q", url="http://127.0.0.1:1", token="t"))
    assert "its driver may have been killed" in run("stop", str(place.folder))[1]
    note_running(place.store, RunningQuery(name="q", url="http://127.0.0.1:1", token="t", host="elsewhere"))
    assert "of the machine 'elsewhere'" in run("stop", str(place.folder))[1].replace("\n", " ")


def test_a_newer_querys_note_is_not_removed(tmp_path: Path) -> None:
    store = LocalFiles(tmp_path)
    older = FoundByLocation("older")
    older.note(store, "http://127.0.0.1:1")
    newer = RunningQuery(name="newer", url="http://127.0.0.1:2", token="t")
    note_running(store, newer)
    older.forget()
    assert read_running(store) == newer


class Stranger:
    """Another program on the port where a query listened; answers everything with the same."""

    def __init__(self, answer: bytes) -> None:
        class Answering(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(answer)

            do_POST = do_GET

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = HTTPServer(("127.0.0.1", 0), Answering)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> "Stranger":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.mark.parametrize("answer", [b"hello", b"[]", b"{}", b'{"path": 7}', b'{"state": 1, "location": "x"}'])
def test_a_stranger_on_the_querys_port_is_not_taken_for_it(tmp_path: Path, answer: bytes) -> None:
    place = Place(tmp_path / "chk")
    place.take(place.started(), manifest(1))
    with Stranger(answer) as stranger:
        note_running(place.store, RunningQuery(name="q", url=f"http://127.0.0.1:{stranger.port}", token="t"))
        for command in (["savepoint", str(place.folder)], ["stop", str(place.folder), "--savepoint", "x"]):
            code, said = run(*command)
            assert code == 1 and "is not the query 'q'" in said and "Traceback" not in said, said
        assert run("jobs", "--port", str(stranger.port))[0] == 0


def test_stop_does_not_wait_for_the_next_query_on_the_same_port(running: Running) -> None:
    store = LocalFiles(running.location)
    noted = read_running(store)
    assert noted is not None
    running.control.page = None  # it goes on answering there, as another query would
    running.control._end = lambda: note_running(  # type: ignore[method-assign]
        store, RunningQuery(name="next", url=noted.url, token="its own")
    )
    code, said = run("stop", str(running.location))
    assert code == 0 and "is stopped" in said
    store.delete(layout.running_query())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["stop", "chk", "--unaligned"], "add --savepoint"),
        (["inspect", "chk", "--verify", "--orphans"], "ask one of them at a time"),
    ],
)
def test_a_flag_that_would_be_ignored_is_refused(arguments: list[str], said: str) -> None:
    answer = CliRunner().invoke(app, arguments)
    assert answer.exit_code == 2 and said in " ".join(answer.output.replace("│", " ").split())
