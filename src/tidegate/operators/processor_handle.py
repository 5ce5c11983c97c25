"""What a user's processor holds: value states and timers at the key that is being handled.

Must never reach state of another key, nor of any key while none is being handled.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from tidegate.model.errors import IncompatibleCheckpoint, UserCodeFailure
from tidegate.operators.contract import TaskContext, ValueStateHandle
from tidegate.plan.physical import TimeMode
from tidegate.protocol.watermarks import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from tidegate.state.codec import decode, encode_value
from tidegate.state.contract import KeyedState, StateBackend
from tidegate.state.timers import Timers
from tidegate.state.ttl import TTL_SUFFIX, TtlState, ttl_name

_TIMERS_PREFIX = "timers/"
_TIMER_STATES = {TimeMode.EVENT_TIME: "timers/event", TimeMode.PROCESSING_TIME: "timers/processing"}
# Far beyond any lifetime, and added to any wall clock it still fits the 8 bytes of an expiry.
_LONGEST_TTL_MS = 1 << 62


@dataclass(slots=True)
class CurrentKey:
    """Where states and timers read and write. `calls`: the user's methods that are called for a key."""

    calls: str
    key_group: int = 0
    key: bytes | None = None

    def required_for(self, what: str) -> bytes:
        if self.key is None:
            raise UserCodeFailure(f"{what} used outside of {self.calls}, where there is no key: use it only there.")
        return self.key


class ValueState:
    """`ValueStateHandle` over one keyed state, at the current key."""

    def __init__(self, name: str, fields: Sequence[str], state: KeyedState, current: CurrentKey) -> None:
        self._name = name
        self._fields = fields
        self._state = state
        self._current = current

    def exists(self) -> bool:
        return self._state.get(self._current.key_group, self._key()) is not None

    def get(self) -> tuple[Any, ...] | None:
        data = self._state.get(self._current.key_group, self._key())
        return None if data is None else decode(data)

    def update(self, new_value: tuple[Any, ...]) -> None:
        if not isinstance(new_value, tuple) or len(new_value) != len(self._fields):
            raise UserCodeFailure(
                f"State {self._name!r} has the fields ({', '.join(self._fields)}): update it with a tuple of "
                f"{len(self._fields)}, not with {new_value!r}."
            )
        self._state.put(self._current.key_group, self._key(), encode_value(new_value, state=self._name))

    def clear(self) -> None:
        self._state.delete(self._current.key_group, self._key())

    def _key(self) -> bytes:
        return self._current.required_for(f"State {self._name!r} is")


class KeyedHandle:
    """`ProcessorHandle` of one operator."""

    def __init__(self, backend: StateBackend, context: TaskContext, current: CurrentKey, timers: Timers | None) -> None:
        self._backend = backend
        self._context = context
        self._current = current
        self._timers = timers
        self._lifetimes: dict[str, int | None] = {}
        self.ttl_states: dict[str, TtlState] = {}

    def value_state(self, name: str, fields: tuple[str, ...], *, ttl_ms: int | None = None) -> ValueStateHandle:
        _check_name(name)
        if self._lifetimes.setdefault(name, ttl_ms) != ttl_ms:
            raise UserCodeFailure(f"State {name!r} is opened with two different TTLs: give it one.")
        return ValueState(name, fields, self._open(name, ttl_ms), self._current)

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

    def _open(self, name: str, ttl_ms: int | None) -> KeyedState:
        if ttl_ms is None:
            self._refuse_stored(ttl_name(name), f"State {name!r} was stored with a TTL and is opened without one")
            return self._backend.keyed(name)
        if isinstance(ttl_ms, bool) or not isinstance(ttl_ms, int) or not 0 < ttl_ms <= _LONGEST_TTL_MS:
            raise UserCodeFailure(f"State {name!r} has a TTL of {ttl_ms!r}: give a number of milliseconds above 0.")
        if name not in self.ttl_states:
            self._refuse_stored(name, f"State {name!r} was stored without a TTL and is opened with one")
            self.ttl_states[name] = TtlState(
                self._backend.keyed(ttl_name(name)),
                ttl_ms=ttl_ms,
                clock=self._context.clock,
                key_groups=self._context.key_groups,
            )
        return self.ttl_states[name]

    def _refuse_stored(self, stored_name: str, sentence: str) -> None:
        if _has_entries(self._backend, stored_name, self._context):
            raise IncompatibleCheckpoint(f"{sentence}: open it as it was stored, or give it another name.")

    def _timers_here(self, method: str) -> tuple[Timers, bytes]:
        if self._timers is None:
            raise UserCodeFailure(
                f"The processor calls {method}, but its time mode is none: "
                "give it event time or processing time to have timers."
            )
        return self._timers, self._current.required_for(f"{method} is")


def open_timers(backend: StateBackend, context: TaskContext, time_mode: TimeMode) -> Timers | None:
    """The restored timers of that mode; those of another mode would never fire, so they are refused."""
    for other, name in _TIMER_STATES.items():
        if other is not time_mode and _has_entries(backend, name, context):
            raise IncompatibleCheckpoint(
                f"The checkpoint has timers of time mode {other.value}, but the query's is {time_mode.value}: "
                "use the time mode of the checkpoint, or start without it."
            )
    match time_mode:
        case TimeMode.NONE:
            return None
        case TimeMode.EVENT_TIME:
            timers = Timers(
                backend.keyed(_TIMER_STATES[time_mode]),
                floor_ms_of=lambda key_group: context.floors.of(key_group, MIN_WATERMARK_MS),
            )
        case TimeMode.PROCESSING_TIME:
            timers = Timers(backend.keyed(_TIMER_STATES[time_mode]))
        case _:
            assert_never(time_mode)
    timers.load(context.key_groups)
    return timers


def _check_name(name: str) -> None:
    if name.startswith(_TIMERS_PREFIX) or name.endswith(TTL_SUFFIX):
        raise UserCodeFailure(
            f"State {name!r} has a name that is kept for timers and TTLs: "
            f"choose one that does not begin with {_TIMERS_PREFIX!r} nor end with {TTL_SUFFIX!r}."
        )


def _has_entries(backend: StateBackend, name: str, context: TaskContext) -> bool:
    state = backend.keyed(name)
    groups = range(context.key_groups.first, context.key_groups.last)
    return any(next(state.scan(key_group), None) is not None for key_group in groups)
