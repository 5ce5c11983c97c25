"""The life of a job, as a table. The diagram in the docs is drawn from it."""

from enum import Enum

from tidegate.model.errors import ProtocolViolation


class JobState(Enum):
    STARTING = "starting"  # a generation is being brought up: slots meet, state is restored
    RUNNING = "running"
    SUSPENDING = "suspending"  # stop with savepoint was asked: the savepoint is on its way
    FINISHING = "finishing"  # all input is read: the last checkpoint is on its way
    RESTARTING = "restarting"  # a failure was met; waiting for the delay, then the next generation
    STOPPING = "stopping"  # the user asked; slots are told to leave
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def takes_checkpoints(self) -> bool:
        return self in (JobState.RUNNING, JobState.SUSPENDING, JobState.FINISHING)

    @property
    def is_final(self) -> bool:
        return self in (JobState.FINISHED, JobState.FAILED, JobState.STOPPED)


class JobEvent(Enum):
    SLOTS_READY = "all slots ready"
    INPUT_ENDED = "all input read"
    LAST_COMMITTED = "last checkpoint committed"
    FAILURE = "failure"
    GENERATION_STARTED = "next generation started"
    GAVE_UP = "no restart left"
    STOP_ASKED = "stop asked"
    SAVEPOINT_ASKED = "stop with savepoint asked"
    SAVEPOINT_COMMITTED = "its savepoint committed"
    SAVEPOINT_FAILED = "its savepoint failed"
    SLOTS_GONE = "slots gone"


TRANSITIONS: dict[tuple[JobState, JobEvent], JobState] = {
    (JobState.STARTING, JobEvent.SLOTS_READY): JobState.RUNNING,
    (JobState.STARTING, JobEvent.FAILURE): JobState.RESTARTING,
    (JobState.STARTING, JobEvent.STOP_ASKED): JobState.STOPPING,
    (JobState.RUNNING, JobEvent.INPUT_ENDED): JobState.FINISHING,
    (JobState.RUNNING, JobEvent.FAILURE): JobState.RESTARTING,
    (JobState.RUNNING, JobEvent.STOP_ASKED): JobState.STOPPING,
    (JobState.RUNNING, JobEvent.SAVEPOINT_ASKED): JobState.SUSPENDING,
    (JobState.SUSPENDING, JobEvent.SAVEPOINT_COMMITTED): JobState.STOPPING,
    (JobState.SUSPENDING, JobEvent.SAVEPOINT_FAILED): JobState.RUNNING,
    (JobState.SUSPENDING, JobEvent.INPUT_ENDED): JobState.FINISHING,
    (JobState.SUSPENDING, JobEvent.FAILURE): JobState.RESTARTING,
    (JobState.SUSPENDING, JobEvent.STOP_ASKED): JobState.STOPPING,
    (JobState.FINISHING, JobEvent.LAST_COMMITTED): JobState.FINISHED,
    (JobState.FINISHING, JobEvent.FAILURE): JobState.RESTARTING,
    (JobState.FINISHING, JobEvent.STOP_ASKED): JobState.STOPPING,
    # It ends by itself; but a savepoint that was on its way when the input ended is still what the user asked for.
    (JobState.FINISHING, JobEvent.SAVEPOINT_ASKED): JobState.FINISHING,
    (JobState.FINISHING, JobEvent.SAVEPOINT_COMMITTED): JobState.STOPPING,
    (JobState.FINISHING, JobEvent.SAVEPOINT_FAILED): JobState.FINISHING,
    (JobState.RESTARTING, JobEvent.GENERATION_STARTED): JobState.STARTING,
    (JobState.RESTARTING, JobEvent.GAVE_UP): JobState.FAILED,
    (JobState.RESTARTING, JobEvent.STOP_ASKED): JobState.STOPPING,
    (JobState.STOPPING, JobEvent.SLOTS_GONE): JobState.STOPPED,
}


def next_state(state: JobState, event: JobEvent) -> JobState:
    following = TRANSITIONS.get((state, event))
    if following is None:
        raise ProtocolViolation(f"A job that is {state.value} cannot take the event {event.value!r}.")
    return following


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {JobState.STARTING.value}"]
    lines += [f"    {a.value} --> {b.value}: {event.value}" for (a, event), b in TRANSITIONS.items()]
    lines += [f"    {state.value} --> [*]" for state in JobState if state.is_final]
    return "\n".join(lines)
