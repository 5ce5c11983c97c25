"""What `why` says in words: a sentence for each culprit, what to do about it, and the whole report as text."""

from typing import assert_never

from tidegate.model.units import format_bytes, format_ms
from tidegate.protocol.admission import ActiveBackpressure
from tidegate.protocol.checkpoint_facts import CheckpointFacts, Outcome
from tidegate.protocol.critical_path import Phase
from tidegate.protocol.culprits import (
    DRIVERS_STORE,
    JOB_LOG,
    BehindSavepoint,
    BigState,
    BigSynchronousPart,
    Culprit,
    Declined,
    Expired,
    GaveWay,
    LateChannel,
    LateSlot,
    LongCall,
    NothingWrong,
    NotWritten,
    SilentSlot,
    SkewedSubtask,
    SlowCommit,
    SlowOperator,
    SlowStore,
    UploadFailed,
    WaitedFor,
)
from tidegate.protocol.kinds import Guarantee
from tidegate.protocol.why_costs import CostToStream, OtherMode

_NAME_SHOWN = 70
_SEVERAL = ", in one call or several; no barrier comes between them"


def described(culprit: Culprit, facts: CheckpointFacts) -> str:
    """One sentence."""
    if isinstance(culprit, Expired):
        said = _sentence(culprit.waiting_for, facts)
        return f"It was given up after {format_ms(culprit.timeout_ms)} (checkpoint.timeout): {said}"
    sentence = _sentence(culprit, facts)
    if facts.outcome is Outcome.IN_PROGRESS:
        return f"It is {format_ms(facts.duration_ms)} old and not complete: {sentence}"
    return sentence[0].upper() + sentence[1:]


def _sentence(culprit: WaitedFor, facts: CheckpointFacts) -> str:
    match culprit:
        case SlowOperator(where, queued_bytes, bytes_per_s):
            rate = "" if bytes_per_s is None else f", which it processes at {format_bytes(bytes_per_s)}/s"
            return f"its barrier waited behind {format_bytes(queued_bytes)} in front of {where}{rate}."
        case LongCall(where, duration_ms, rows):
            took = f"one step of {where} took {format_ms(duration_ms)} for {_rows(rows)}"
            # Each row may be a call of its own: how many there were is not noted.
            return f"{took}{'; no barrier interrupts it' if rows <= 1 else _SEVERAL}."
        case SlowStore(where, duration_ms, stored_bytes):
            much = f"{format_bytes(stored_bytes)} in " if stored_bytes else ""
            return f"writing took longest: {much}{format_ms(duration_ms)} at {where}."
        case SilentSlot(where, silent_ms, tasks):
            return (
                f"{where.what} has not been heard of for {format_ms(silent_ms)}: a call in one of its tasks does not "
                f"return, or its process hangs ({_list(tasks)})."
            )
        case SkewedSubtask(where, share, subtasks, rows):
            return (
                f"{where} got {share:.0%} of the data of its {subtasks} subtasks ({_rows(rows)} since the checkpoint "
                f"before), and its barrier waited behind it."
            )
        case BigSynchronousPart(where, duration_ms, state_bytes):
            return (
                f"the synchronous part of {where} took {format_ms(duration_ms)}, with {format_bytes(state_bytes)} of "
                f"state; nothing else in its slot goes on meanwhile."
            )
        case BigState(where, duration_ms, stored_bytes):
            return (
                f"{where} encoded its {format_bytes(stored_bytes)} for {format_ms(duration_ms)}, in turns with the "
                f"stream, which was slower meanwhile."
            )
        case LateChannel(where, late_ms, sender):
            return f"the barrier that {sender} sent on channel {where} was heard {format_ms(late_ms)} later."
        case LateSlot(where, late_ms):
            return f"{where} reacted {format_ms(late_ms)} late, and none of its tasks was in a long step."
        case BehindSavepoint(waited_ms):
            return f"it was ready, and waited {format_ms(waited_ms)} for an older savepoint to complete."
        case SlowCommit(_, checkpoint, waited_ms, commit_ms):
            is_longer = commit_ms > facts.interval_ms
            than = f", longer than the interval of {format_ms(facts.interval_ms)}" if is_longer else ""
            return (
                f"it was ready, and waited {format_ms(waited_ms)} behind the commit of checkpoint {checkpoint}: the "
                f"sink, or the foreachBatch function, took {format_ms(commit_ms)} for it{than}."
            )
        case Declined(slot, error):
            return f"{_slot(slot)} could not take its part: {_plain(error)}."
        case UploadFailed(slot, error):
            return f"{_slot(slot)} could not write its part to checkpointLocation: {_plain(error)}."
        case NotWritten("inconsistent", error):
            return f"the two sides of a channel do not meet, which is a bug in Tidegate: {_plain(error)}."
        case NotWritten(_, error):
            return f"the manifest or the log entry could not be written: {_plain(error)}."
        case GaveWay("subsumed", _):
            return "a newer checkpoint was complete first."
        case GaveWay(reason, detail):
            ended = "the query ended" if reason == "job_stopped" else "the job was started again"
            return f"{ended} while it was under way{f': {_plain(detail)}' if detail else ''}."
        case NothingWrong(duration_ms):
            return f"nothing is wrong with it: it took {format_ms(duration_ms)}."
        case unreachable:
            assert_never(unreachable)


def advice(culprit: Culprit, facts: CheckpointFacts) -> tuple[str, ...]:
    """What to do, the best first."""
    match culprit:
        case Expired(waiting_for, _):
            return *advice(waiting_for, facts), "raise checkpoint.timeout only if it would be complete soon after"
        case SlowOperator(where) if facts.kind == "aligned":
            return (
                f"make {where.what} faster, or give it more subtasks (parallelism)",
                *_overtaking(facts, "the barrier goes ahead and the queued rows are stored instead"),
                f"{_smaller_windows(facts)}: less is queued in front of a barrier",
                *_pausing_sources(facts),
            )
        case SlowOperator(where):
            return (
                f"make {where.what} faster, or give it more subtasks (parallelism)",
                *_overtaking(facts, "it waits less before it switches"),
                f"{_smaller_windows(facts)}: less is in flight",
            )
        case LongCall(where):
            return (
                f"do less in one call of {where.what}: fewer rows, a smaller batch, a timeout for what it waits for",
                "unaligned checkpoints do not help: a call in Python cannot be interrupted",
            )
        case SlowCommit():
            return (
                "make the commit faster: a foreachBatch or foreach function runs there, one epoch after the other",
                "a longer checkpoint.interval: fewer commits, and each has more time",
                "a faster store for checkpointLocation or unaligned checkpoints do not help: neither was waited for",
            )
        case SlowStore(where) if where.what in (JOB_LOG, DRIVERS_STORE):
            return ("use a faster store for checkpointLocation", "a longer checkpoint.interval: fewer writes")
        case SlowStore(where) if where.what.startswith("the sink"):
            return ("look at what the sink does at the end of an epoch", "a longer checkpoint.interval: fewer epochs")
        case SlowStore() if facts.kind != "aligned":
            return (
                "use a faster store for checkpointLocation",
                f"{'leave out unaligned=True' if facts.is_savepoint else 'checkpoint.unaligned=false'}: unaligned "
                "checkpoints store rows in flight, which is wrong when storage is the bottleneck",
                f"{_smaller_windows(facts)}: less is in flight, less is stored",
            )
        case SlowStore() | BigState():
            return (
                "use a faster store for checkpointLocation",
                "a longer checkpoint.interval, or less state: expire it by watermark or TTL",
            )
        case SilentSlot(_, _, tasks):
            return (
                f"look at what these do just now, for example with py-spy on their process: {_list(tasks)}",
                "give calls that wait for something else (a database, a file system) a timeout",
            )
        case SkewedSubtask(where):
            return (
                f"split the key that has most of the rows of {where.what}: a salt, or two steps of aggregation",
                "more subtasks do not help: one key stays in one subtask",
                *_overtaking(facts, "the barrier waits less for the busy one"),
            )
        case BigSynchronousPart(where):
            return (
                f"move work out of the end of an epoch of {where.what}: code behind the loop of a mapInArrow or "
                "mapInPandas runs there, a sink closes its files, and functions behind an aggregation in complete mode "
                "or into foreachBatch or foreach get its groups",
                "less state per task: more subtasks (parallelism), TTL",
            )
        case LateChannel() | LateSlot():
            return ("look at the network and the load of the machine: swapping, other processes, garbage collection",)
        case BehindSavepoint():
            return ("nothing: savepoints come first, in the order in which they were asked for",)
        case Declined():
            return ("mend what the error says; checkpoint.tolerableFailures lets the job go on meanwhile",)
        case UploadFailed() | NotWritten("store_failed"):
            return (
                "check that checkpointLocation can be written: space, permissions, credentials, network",
                "checkpoint.tolerableFailures lets the job go on while the store recovers",
            )
        case NotWritten():
            return ("please report it, with the log of the driver",)
        case GaveWay() | NothingWrong():
            return ()
        case unreachable:
            assert_never(unreachable)


def _overtaking(facts: CheckpointFacts, so_that: str) -> tuple[str, ...]:
    """How its barrier could overtake rows, or do so sooner; nothing where it does at once, or cannot."""
    configured, is_aligned = facts.configured, facts.kind == "aligned"
    if configured is not None and configured.guarantee is Guarantee.AT_LEAST_ONCE:
        return ()
    if facts.is_savepoint:
        return (f"query.savepoint(unaligned=True): {so_that}",) if is_aligned else ()
    # Of one that was stored before its settings were noted, only what it turned out to be is known.
    never_overtakes = is_aligned if configured is None else configured.switch_after_ms is None
    if never_overtakes:
        return (f"checkpoint.unaligned=auto or true: {so_that}",)
    if configured is not None and configured.switch_after_ms == 0:
        return ()
    return (f"a smaller checkpoint.alignedTimeout, or checkpoint.unaligned=true: {so_that}",)


def _smaller_windows(facts: CheckpointFacts) -> str:
    if facts.configured is None:
        return "network.debloat=true and a smaller network.target"
    if facts.configured.debloat_target_ms is None:
        return "network.debloat=true, or a smaller network.window"
    return "a smaller network.target"


def _pausing_sources(facts: CheckpointFacts) -> tuple[str, ...]:
    if facts.configured is not None and facts.configured.active_backpressure is not ActiveBackpressure.OFF:
        return ()
    return ("source.activeBackpressure=true: at most one interval's data is in front of a barrier",)


def report_text(
    *,
    checkpoint: int,
    outcome: str,
    kind: str,
    duration_ms: float,
    summary: str,
    path: tuple[Phase, ...],
    other: OtherMode | None,
    cost: CostToStream,
    advice: tuple[str, ...],
) -> str:
    lines = [f"Checkpoint {checkpoint}: {kind}, {outcome.replace('_', ' ')}, {format_ms(duration_ms)}", f"  {summary}"]
    if path:
        lines += ["", "Critical path"]
        lines += [f"  {format_ms(p.duration_ms):>9}  {p.kind.value}: {_short(p.where, p.name)}" for p in path]
    lines += ["", f"Cost to the stream: {_cost(cost)}"]
    if other is not None:
        lines.append(
            f"As {other.mode}: {_took(other)}, {format_bytes(other.inflight_bytes)} of rows in flight stored "
            f"({other.basis})"
        )
    if advice:
        lines += ["", "What to do", *(f"  {number}. {text}" for number, text in enumerate(advice, 1))]
    return "\n".join(lines)


def _cost(cost: CostToStream) -> str:
    encoding = "" if cost.encoding_ms is None else f"{format_ms(cost.encoding_ms)} of one for encoding them, "
    return (
        f"{format_ms(cost.sync_ms)} of a slot for snapshots, {encoding}{format_ms(cost.blocked_ms)} of tasks that "
        f"waited for barriers, {format_ms(cost.paused_ms)} of a source that paused"
    )


def _took(other: OtherMode) -> str:
    if other.duration_ms is None:
        return "an unknown time"
    least, most = format_ms(other.least_ms or other.duration_ms), format_ms(other.duration_ms)
    return f"about {most}" if least == most else f"{least} to {most}"


def _short(where: str, name: str) -> str:
    if not name:
        return where
    return f"{where} ({name if len(name) <= _NAME_SHOWN else name[: _NAME_SHOWN - 3] + '...'})"


def _rows(rows: int) -> str:
    return "1 row" if rows == 1 else f"{rows} rows"


def _slot(slot: int | None) -> str:
    return "a slot" if slot is None else f"slot {slot}"


def _plain(text: str) -> str:
    return text.strip().rstrip(".")


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names) if names else "no task of it is known"
