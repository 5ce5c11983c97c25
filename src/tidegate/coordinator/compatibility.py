"""Whether a checkpoint fits a query, and what of it goes where: at whatever parallelism, with other operators too.

Decides what may differ. Says so in one sentence and changes nothing.
"""

import logging
from collections.abc import Callable, Sequence
from enum import Enum

from tidegate.coordinator.state_evolution import check_states, other_time_modes
from tidegate.model.errors import IncompatibleCheckpoint, OptionError
from tidegate.model.ids import CheckpointId
from tidegate.plan.matching import PlanMatch, match_stored
from tidegate.plan.parts import Part, Place, Way, read_parts
from tidegate.plan.physical import JobPlan
from tidegate.state.contract import HEAP, ROCKSDB_SECTION
from tidegate.storage.manifests import Manifest
from tidegate.storage.stored_plan import TimeModeName
from tidegate.worker.restoring import lost_in_flight

_NEW_LOCATION = "go back to the old query or use a new checkpointLocation"
_STILL = "restore it into the old query, and end that with query.stop(savepoint=True)"
# As a user writes them.
_TIME_MODES: dict[TimeModeName, str] = {
    "none": "None",
    "processing_time": "ProcessingTime",
    "event_time": "EventTime",
}

log = logging.getLogger("tidegate")


class NotRestored(Enum):
    """What to do about state that no operator of the query takes over."""

    REFUSED = "refused"
    DROPPED = "dropped"  # the user's restore.allowNonRestored


def check_fits(
    manifest: Manifest,
    plan: JobPlan,
    fingerprint: Sequence[str],
    *,
    not_restored: NotRestored,
    stored_places: Callable[[], frozenset[Place]],
) -> PlanMatch:
    """Raises `IncompatibleCheckpoint` with what differs and what to do about it.

    `stored_places`: which operators have something in the checkpoint; asked only if the query has changed.
    """
    where = _named(manifest)
    if manifest.max_parallelism != plan.max_parallelism:
        raise IncompatibleCheckpoint(
            f"{where} has maxParallelism {manifest.max_parallelism} and the query {plan.max_parallelism}: "
            f"set .option('maxParallelism', {manifest.max_parallelism}), or start from a savepoint that "
            f"tg.savepoints.from_dataframe(path=..., based_on=..., max_parallelism={plan.max_parallelism}) writes."
        )
    match = match_stored(plan, fingerprint, stored=manifest.plan_fingerprint, stored_names=manifest.operator_names)
    if match is None:
        raise IncompatibleCheckpoint(_first_difference(where, manifest.plan_fingerprint, fingerprint))
    _check_sink(where, manifest.plan_fingerprint, fingerprint)
    if match.missing or match.unclear:
        _check_state(where, match, stored_places(), not_restored)
    _check_in_flight(where, match, manifest)
    check_states(where, plan, match, manifest.plan)
    _check_time_modes(where, plan, match, manifest, stored_places)
    return match


def check_backend(
    manifest: Manifest, match: PlanMatch, backend: str, stored: Callable[[], frozenset[tuple[Place, str]]]
) -> None:
    """Whether a query with that backend can read the state that it takes over.

    `stored`: what operators have in the checkpoint, by name; asked only if it may be something that cannot be read.
    """
    if backend != HEAP or manifest.state_backend == HEAP:
        return
    taken_over = frozenset(match.operators.values())
    if any(name == ROCKSDB_SECTION and place in taken_over for place, name in stored()):
        raise IncompatibleCheckpoint(
            f"{_named(manifest)} was taken with state.backend=rocksdb, which the heap backend cannot read: set "
            f"state.backend to rocksdb."
        )


def _named(manifest: Manifest) -> str:
    return f"{'Savepoint' if manifest.is_savepoint else 'Checkpoint'} {manifest.checkpoint}"


def _check_state(where: str, match: PlanMatch, stored: frozenset[Place], not_restored: NotRestored) -> None:
    for part, problem in match.unclear:
        if part.place in stored:
            raise IncompatibleCheckpoint(_unclear(where, part, problem))
    lost = [part for part in match.missing if part.place in stored]
    if lost and not_restored is NotRestored.REFUSED:
        raise IncompatibleCheckpoint(_missing(where, lost, match.added))


def _unclear(where: str, part: Part, problem: str) -> str:
    if part.name is not None:
        return f"{where} has another operator under the name {part}, {problem}: name this one differently."
    return (
        f"{where} does not tell which operator of the query goes on with {part}, {problem}: restart the old query with "
        f"its operators named by tg.named(df, '...'), take a savepoint, and use the same names in the new query."
    )


def _missing(where: str, lost: Sequence[Part], added: Sequence[Part]) -> str:
    said = ", ".join(f"{part} ({_described(part)})" for part in lost)
    same_kind = [part for part in added if part.kind in {each.kind for each in lost}]
    instead = f" and has {', '.join(f'{p} ({_described(p)})' for p in same_kind)}" if same_kind else ""
    return (
        f"{where} has state of {said}, which this query lacks{instead}: go back to the old query, bring the name back "
        f"with tg.named(df, '...'), or drop that state with .option('restore.allowNonRestored', 'true')."
    )


def _described(part: Part) -> str:
    return f"{part.kind} {part.shape}".strip()


def _check_sink(where: str, stored: Sequence[str], fingerprint: Sequence[str]) -> None:
    """What a checkpoint has committed, or is about to, is the business of the sink that wrote it."""
    before, now = ([line.split(" ", 1)[1] for line in lines if " sink " in line] for lines in (stored, fingerprint))
    if before != now:
        raise IncompatibleCheckpoint(
            f"{where} belongs to a query with {', '.join(before) or 'no sink'} and this one has "
            f"{', '.join(now) or 'none'}: go back to the old sink, or begin anew with the other one, in a new "
            f"checkpointLocation and without restore.from."
        )


def _check_in_flight(where: str, match: PlanMatch, manifest: Manifest) -> None:
    for way in lost_in_flight(match, manifest):
        raise IncompatibleCheckpoint(
            f"{where} has rows in flight {_way(way)}, and the query has no such exchange: {_STILL}."
        )


def _check_time_modes(
    where: str, plan: JobPlan, match: PlanMatch, manifest: Manifest, stored_places: Callable[[], frozenset[Place]]
) -> None:
    """Refused whatever the operator has stored: whether timers are among it, only slots see, which start later."""
    others = list(other_time_modes(plan, match, manifest.plan))
    if not others:
        return
    stored = stored_places()
    known = read_parts(manifest.plan_fingerprint, manifest.operator_names)
    for other in others:
        if other.stored in stored:
            part = None if known is None else known.at(other.stored)
            before = _TIME_MODES[other.before]
            raise IncompatibleCheckpoint(
                f"{where} has {part or 'an operator'} in time mode {before}, and the query has it in "
                f"{_TIME_MODES[other.now]}, in which timers from before would never fire: set it to {before}, or use a "
                f"new checkpointLocation."
            )


def _way(way: Way) -> str:
    return f"from vertex {way.sender} to vertex {way.receiver} ({way.shape})"


def _first_difference(where: str, stored: Sequence[str], fingerprint: Sequence[str]) -> str:
    for before, now in zip(stored, fingerprint, strict=False):
        if before != now:
            return f"{where} does not fit this query: it has {before!r} where the query has {now!r}; {_NEW_LOCATION}."
    return f"{where} belongs to a query with {len(stored)} parts and this one has {len(fingerprint)}: {_NEW_LOCATION}."


def check_is_restored(without_captured_rows: CheckpointId | None, restored: CheckpointId | None) -> None:
    """Whether the checkpoint whose rows in flight are given up is the one that a query starts from.

    One that is past is only warned of: a query that is started again with the same options has newer ones by then.
    """
    if without_captured_rows is None or without_captured_rows == restored:
        return
    option = f"Option 'checkpoint.recoverWithoutChannelState' names checkpoint {without_captured_rows}"
    if restored is None:
        raise OptionError(f"{option}, but there is no checkpoint to restore: leave the option out.")
    if restored < without_captured_rows:
        raise OptionError(
            f"{option}, but the query starts from checkpoint {restored}: write that number to lose its rows in flight, "
            f"or leave the option out."
        )
    log.warning("%s, but the query starts from checkpoint %d: all of it is restored.", option, restored)
