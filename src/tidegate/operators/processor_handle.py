"""What a user's processor holds: value, list and map states and timers at the key that is being handled.

Must never reach state of another key, nor of any key while none is being handled.
"""

import operator
from enum import Enum
from typing import assert_never

from tidegate.model.errors import IncompatibleCheckpoint, UserCodeFailure
from tidegate.operators.contract import ListStateHandle, MapStateHandle, TaskContext, ValueStateHandle
from tidegate.operators.state_handles import CurrentKey, ListState, MapState, ValueState
from tidegate.plan.nodes import TimeMode
from tidegate.protocol.watermarks import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from tidegate.state.contract import KeyedState, StateBackend
from tidegate.state.ordered_timers import by_key_name
from tidegate.state.subkeys import SubkeyedState, open_subkeys
from tidegate.state.timers import Timers, timers_over
from tidegate.state.ttl import TTL_SUFFIX, TtlState, ttl_name

_TIMERS_PREFIX = "timers/"
_KEPT_SUFFIXES = (TTL_SUFFIX, "?list", "?map")
TIMER_STATES = {TimeMode.EVENT_TIME: "timers/event", TimeMode.PROCESSING_TIME: "timers/processing"}
# The same timers once more, made anew where they are missing: what takes state elsewhere leaves them behind.
DERIVED_STATES = frozenset(map(by_key_name, TIMER_STATES.values()))
# Far beyond any lifetime, and added to any wall clock it still fits the 8 bytes of an expiry.
_LONGEST_TTL_MS = 1 << 62


class StateKind(Enum):
    """What a named state holds per key; the value ends the name it is kept under."""

    VALUE = ""
    LIST = "?list"
    MAP = "?map"


class KeyedHandle:
    """`ProcessorHandle` of one operator."""

    def __init__(self, backend: StateBackend, context: TaskContext, current: CurrentKey, timers: Timers | None) -> None:
        self._backend = backend
        self._context = context
        self._current = current
        self._timers = timers
        self._opened: dict[str, tuple[StateKind, int | None]] = {}
        self._deleted: set[str] = set()
        self._entries: dict[str, tuple[KeyedState, SubkeyedState]] = {}
        self.ttl_states: dict[str, TtlState] = {}

    def value_state(self, name: str, fields: tuple[str, ...], *, ttl_ms: int | None = None) -> ValueStateHandle:
        self._declare(name, StateKind.VALUE, ttl_ms)
        state = self._open(name, self._backend.keyed(stored_name(name, ttl_ms)), ttl_ms)
        return ValueState(name, fields, state, self._current)

    def list_state(self, name: str, fields: tuple[str, ...], *, ttl_ms: int | None = None) -> ListStateHandle:
        self._declare(name, StateKind.LIST, ttl_ms)
        return ListState(name, fields, *self._open_entries(name, StateKind.LIST, ttl_ms), self._current)

    def map_state(
        self, name: str, key_fields: tuple[str, ...], value_fields: tuple[str, ...], *, ttl_ms: int | None = None
    ) -> MapStateHandle:
        self._declare(name, StateKind.MAP, ttl_ms)
        entries = self._open_entries(name, StateKind.MAP, ttl_ms)
        return MapState(name, key_fields, value_fields, *entries, self._current)

    def delete_if_exists(self, name: str) -> None:
        _check_name(name)
        if name in self._opened:
            raise _deleted_and_opened(name)
        self._deleted.add(name)
        for stored in _stored_names(name):
            state = self._backend.keyed(stored)
            for key_group in range(self._context.key_groups.first, self._context.key_groups.last):
                for key, _ in state.scan(key_group):
                    state.delete(key_group, key)

    def register_timer(self, at_ms: int) -> None:
        timers, key = self._timers_here("register_timer")
        at_ms = operator.index(at_ms)
        if not MIN_WATERMARK_MS <= at_ms <= MAX_WATERMARK_MS:
            raise UserCodeFailure(f"A timer at {at_ms} ms is out of range: give milliseconds since the epoch.")
        timers.register(self._current.key_group, key, at_ms)

    def delete_timer(self, at_ms: int) -> None:
        timers, key = self._timers_here("delete_timer")
        timers.delete(self._current.key_group, key, operator.index(at_ms))

    def timers(self) -> list[int]:
        timers, key = self._timers_here("timers")
        return timers.of(self._current.key_group, key)

    def _declare(self, name: str, kind: StateKind, ttl_ms: int | None) -> None:
        """The same name again must mean the same state, in this run and in the checkpoint."""
        _check_name(name)
        if name in self._deleted:
            raise _deleted_and_opened(name)
        if ttl_ms is not None and (isinstance(ttl_ms, bool) or not isinstance(ttl_ms, int)):
            raise _wrong_ttl(name, ttl_ms)
        if ttl_ms is not None and not 0 < ttl_ms <= _LONGEST_TTL_MS:
            raise _wrong_ttl(name, ttl_ms)
        known_kind, known_ttl_ms = self._opened.setdefault(name, (kind, ttl_ms))
        if known_kind is not kind:
            raise UserCodeFailure(f"State {name!r} is opened as two kinds of state: give each its own name.")
        if known_ttl_ms != ttl_ms:
            raise UserCodeFailure(f"State {name!r} is opened with two different TTLs: give it one.")
        for stored in _stored_names(name):
            if stored != stored_name(name, ttl_ms, kind) and _has_entries(self._backend, stored, self._context):
                raise IncompatibleCheckpoint(
                    f"State {name!r} was stored {_described(stored, name)} and is opened "
                    f"{_described(stored_name(name, ttl_ms, kind), name)}: "
                    f"open it as it was stored, or give it another name."
                )

    def _open(self, name: str, state: KeyedState, ttl_ms: int | None) -> KeyedState:
        if ttl_ms is None:
            return state
        if name not in self.ttl_states:
            self.ttl_states[name] = TtlState(
                state, ttl_ms=ttl_ms, clock=self._context.clock, key_groups=self._context.key_groups
            )
        return self.ttl_states[name]

    def _open_entries(self, name: str, kind: StateKind, ttl_ms: int | None) -> tuple[KeyedState, SubkeyedState]:
        if name not in self._entries:
            entries = open_subkeys(self._backend.keyed(stored_name(name, ttl_ms, kind)), self._context.key_groups)
            self._entries[name] = self._open(name, entries, ttl_ms), entries
        return self._entries[name]

    def _timers_here(self, method: str) -> tuple[Timers, bytes]:
        if self._timers is None:
            raise UserCodeFailure(
                f"The processor calls {method}, but its time mode is none: "
                "give it event time or processing time to have timers."
            )
        return self._timers, self._current.required_for(f"{method} is")


def open_timers(backend: StateBackend, context: TaskContext, time_mode: TimeMode) -> Timers | None:
    """The restored timers of that mode; those of another mode would never fire, so they are refused."""
    for other, name in TIMER_STATES.items():
        if other is not time_mode and _has_entries(backend, name, context):
            raise IncompatibleCheckpoint(
                f"The checkpoint has timers of time mode {other.value}, but the query's is {time_mode.value}: "
                "use the time mode of the checkpoint, or start without it."
            )
    match time_mode:
        case TimeMode.NONE:
            return None
        case TimeMode.EVENT_TIME:
            return timers_over(
                backend,
                TIMER_STATES[time_mode],
                context.key_groups,
                floor_ms_of=lambda key_group: context.floors.of(key_group, MIN_WATERMARK_MS),
            )
        case TimeMode.PROCESSING_TIME:
            return timers_over(backend, TIMER_STATES[time_mode], context.key_groups)
        case _:
            assert_never(time_mode)


def stored_name(name: str, ttl_ms: int | None, kind: StateKind = StateKind.VALUE) -> str:
    """Under which the state is kept: what it is made of is in the name."""
    return name + kind.value if ttl_ms is None else ttl_name(name + kind.value)


def _stored_names(name: str) -> list[str]:
    return [stored_name(name, ttl_ms, kind) for kind in StateKind for ttl_ms in (None, 1)]


def _described(stored: str, name: str) -> str:
    kind = stored.removesuffix(TTL_SUFFIX).removeprefix(name)
    return f"as a {StateKind(kind).name.lower()} {'with' if stored.endswith(TTL_SUFFIX) else 'without'} a TTL"


def _deleted_and_opened(name: str) -> UserCodeFailure:
    """In either order: `init` runs again at every recovery, which would empty the state."""
    return UserCodeFailure(f"State {name!r} is deleted and opened in one init: do one of both.")


def _wrong_ttl(name: str, ttl_ms: object) -> UserCodeFailure:
    return UserCodeFailure(f"State {name!r} has a TTL of {ttl_ms!r}: give a number of milliseconds above 0.")


def _check_name(name: str) -> None:
    if name.startswith(_TIMERS_PREFIX) or name.endswith(_KEPT_SUFFIXES):
        raise UserCodeFailure(
            f"State {name!r} has a name that is kept for timers, lists, maps and TTLs: "
            f"choose one that does not begin with {_TIMERS_PREFIX!r} nor end with {', '.join(_KEPT_SUFFIXES)}."
        )


def _has_entries(backend: StateBackend, name: str, context: TaskContext) -> bool:
    state = backend.keyed(name)
    groups = range(context.key_groups.first, context.key_groups.last)
    return any(next(state.scan(key_group), None) is not None for key_group in groups)
