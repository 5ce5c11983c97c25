"""Savepoints that users wait for: each request has a number here, and whoever asked a future of its path."""

from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field

from tidegate.model.errors import JobFailure
from tidegate.protocol.requests import Afterwards, SavepointAlignment, SavepointRequest


@dataclass(frozen=True, slots=True)
class SavepointWish:
    """`folder`: where the savepoint gets a folder of its own."""

    folder: str
    alignment: SavepointAlignment
    afterwards: Afterwards
    answer: "Future[str]" = field(default_factory=Future)


@dataclass(slots=True)
class Savepoints:
    _answers: "dict[int, Future[str]]" = field(default_factory=dict)
    _next_token: int = 1

    def request(self, wish: SavepointWish) -> SavepointRequest:
        token, self._next_token = self._next_token, self._next_token + 1
        self._answers[token] = wish.answer
        return SavepointRequest(token, wish.folder, wish.alignment, wish.afterwards)

    def complete(self, request: SavepointRequest, path: str) -> None:
        if (answer := self._answers.pop(request.token, None)) is not None:
            _settle(answer, path)

    def refuse(self, request: SavepointRequest, reason: str) -> None:
        if (answer := self._answers.pop(request.token, None)) is not None:
            fail(answer, reason)

    def release_all(self, reason: str) -> None:
        """The generation or the job has ended: whoever still waits is told so."""
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            fail(answer, reason)


def fail(answer: "Future[str]", reason: str) -> None:
    failure = JobFailure(f"The savepoint was not taken: {reason}.")
    try:
        answer.set_exception(failure)
    except InvalidStateError:
        return  # whoever asked has given up waiting


def _settle(answer: "Future[str]", path: str) -> None:
    try:
        answer.set_result(path)
    except InvalidStateError:
        return  # whoever asked has given up waiting
