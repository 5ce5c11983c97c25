"""Sums and averages of decimals, exact, in limbs of 32 bits: no sum can wrap before its precision is checked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.model.errors import UserCodeFailure
from tidegate.operators.accumulators.contract import FixedColumns, Frozen, distinct_slots
from tidegate.operators.columnar import Flags, GrowingArray, Slots, fixed_array
from tidegate.plan.key_groups import fixed_values_of, validity_of

_LIMBS = 4
_MASK = np.int64(0xFFFFFFFF)
_MAX_COUNT = 1 << 32


class DecimalSum(FixedColumns):
    """Null until a value came, and for good once a sum left its precision; with ANSI that is an error instead."""

    def __init__(self, kind: pa.DataType, *, raises_on_overflow: bool) -> None:
        super().__init__(*[pa.int64()] * _LIMBS, pa.bool_(), pa.bool_())
        self._kind = kind
        self._raises_on_overflow = raises_on_overflow

    def add(self, columns: Sequence[pa.Array], slots: Slots) -> None:
        words, valid = fixed_values_of(columns[0]), validity_of(columns[0])
        if valid is not None:
            words, slots = words[valid], slots[valid]
        if len(slots):
            self._add(_limbs_of(words), slots)
            self.arrays[_LIMBS].used[slots] = True

    def merge(self, *, sources: Slots, targets: Slots) -> None:
        seen, overflowed = self.arrays[_LIMBS].used, self.arrays[_LIMBS + 1].used
        self._add([limb.used[sources] for limb in self.arrays[:_LIMBS]], targets)
        np.logical_or.at(seen, targets, seen[sources])
        np.logical_or.at(overflowed, targets, overflowed[sources])

    def results(self, slots: Slots) -> pa.Array:
        return self.sums(slots).as_decimals(self._kind, self.has_sum(slots))

    def has_sum(self, slots: Slots) -> Flags:
        seen, overflowed = self.arrays[_LIMBS].used[slots], self.arrays[_LIMBS + 1].used[slots]
        flags: Flags = seen & ~overflowed
        return flags

    def sums(self, slots: Slots) -> "Limbs":
        return Limbs([limb.used[slots] for limb in self.arrays[:_LIMBS]])

    def _add(self, added: Sequence[npt.NDArray[np.int64]], slots: Slots) -> None:
        touched, places = distinct_slots(slots, self.arrays[0].count)
        sums = [limb.used[touched] for limb in self.arrays[:_LIMBS]]
        for total, values in zip(sums, added, strict=True):
            np.add.at(total, places, values)
        _carry(sums)
        for limb, values in zip(self.arrays[:_LIMBS], sums, strict=True):
            limb.used[touched] = values
        too_large = touched[Limbs(sums).exceed(self._kind.precision)]
        if len(too_large) == 0:
            return
        if self._raises_on_overflow:
            raise _overflow(self._kind)
        self.arrays[_LIMBS + 1].used[too_large] = True
        for limb in self.arrays[:_LIMBS]:
            limb.used[too_large] = 0


class DecimalAverage:
    """The sum, and how many values it is of; the quotient is rounded half up, as Spark's."""

    def __init__(self, sum_kind: pa.DataType, kind: pa.DataType, *, raises_on_overflow: bool) -> None:
        self._sum = DecimalSum(sum_kind, raises_on_overflow=raises_on_overflow)
        self._counts = FixedColumns(pa.int64())
        self._kind = kind
        self._scale_up = 10 ** (kind.scale - sum_kind.scale)
        self._raises_on_overflow = raises_on_overflow

    @property
    def stored_types(self) -> tuple[pa.DataType, ...]:
        return *self._sum.stored_types, *self._counts.stored_types

    def grow_to(self, slot_count: int) -> None:
        self._sum.grow_to(slot_count)
        self._counts.grow_to(slot_count)

    def add(self, columns: Sequence[pa.Array], slots: Slots) -> None:
        self._sum.add(columns, slots)
        valid = validity_of(columns[0])
        np.add.at(self._counts.arrays[0].used, slots if valid is None else slots[valid], 1)

    def add_partials(self, columns: Sequence[pa.Array], slots: Slots) -> None:
        """Sums, null where no value came, and of how many values they are."""
        self._sum.add(columns[:1], slots)
        np.add.at(self._counts.arrays[0].used, slots, fixed_values_of(columns[1]).astype(np.int64))

    def merge(self, *, sources: Slots, targets: Slots) -> None:
        self._sum.merge(sources=sources, targets=targets)
        counts = self._counts.arrays[0].used
        np.add.at(counts, targets, counts[sources])

    def clear(self, slots: Slots) -> None:
        self._sum.clear(slots)
        self._counts.clear(slots)

    @property
    def arrays(self) -> list[GrowingArray[Any]]:
        return [*self._sum.arrays, *self._counts.arrays]

    def keep(self, slots: Slots) -> None:
        return

    def freeze(self, slots: Slots | None = None) -> Frozen:
        sums, counts = self._sum.freeze(slots), self._counts.freeze(slots)
        return lambda part: [*sums(part), *counts(part)]

    def restore(self, slots: Slots, columns: Sequence[pa.Array]) -> None:
        self._sum.restore(slots, columns[:-1])
        self._counts.restore(slots, columns[-1:])

    def results(self, slots: Slots) -> pa.Array:
        counts = self._counts.arrays[0].used[slots]
        if len(counts) and int(counts.max()) >= _MAX_COUNT:
            raise UserCodeFailure(f"An average of more than {_MAX_COUNT - 1} decimals cannot be divided exactly.")
        quotients = self._sum.sums(slots).scaled(self._scale_up).divided_half_up(np.maximum(counts, 1))
        fits = ~quotients.exceed(self._kind.precision)
        has = self._sum.has_sum(slots)
        if self._raises_on_overflow and (has & ~fits).any():
            raise _overflow(self._kind)
        return quotients.as_decimals(self._kind, has & fits)

    def size_bytes(self) -> int:
        return self._sum.size_bytes() + self._counts.size_bytes()


@dataclass(frozen=True, slots=True)
class Limbs:
    """Numbers in base 2^32, the lowest limb first; all but the last are without sign."""

    limbs: Sequence[npt.NDArray[np.int64]]

    def exceed(self, precision: int) -> Flags:
        """Where a number has more digits than that."""
        bound = 10**precision
        below, above = self._compared(bound), self._negated()._compared(bound)
        flags: Flags = below | above
        return flags

    def scaled(self, factor: int) -> "Limbs":
        """Times a factor below 2^31."""
        products = [limb * np.int64(factor) for limb in self.limbs[:-1]]
        top = self.limbs[-1]
        # The last limb is split, so that its product cannot overflow.
        products += [(top & _MASK) * np.int64(factor), (top >> 32) * np.int64(factor)]
        _carry(products)
        return Limbs(products)

    def divided_half_up(self, divisors: npt.NDArray[np.int64]) -> "Limbs":
        """Divisors from 1 to 2^32 - 1; a half is rounded away from 0."""
        is_negative = self.limbs[-1] < 0
        magnitude = [
            np.where(is_negative, down, up) for down, up in zip(self._negated().limbs, self.limbs, strict=True)
        ]
        unsigned = divisors.astype(np.uint64)
        rest = np.zeros(len(divisors), dtype=np.uint64)
        quotient: list[npt.NDArray[np.int64]] = []
        for limb in reversed(magnitude):
            rest = (rest << np.uint64(32)) | limb.astype(np.uint64)
            quotient.insert(0, (rest // unsigned).astype(np.int64))
            rest %= unsigned
        quotient[0] += (rest * np.uint64(2) >= unsigned).astype(np.int64)
        _carry(quotient)
        rounded = Limbs(quotient)
        turned = rounded._negated()
        return Limbs([np.where(is_negative, down, up) for down, up in zip(turned.limbs, quotient, strict=True)])

    def as_decimals(self, kind: pa.DataType, valid: Flags) -> pa.Array:
        """Values that do not fit must not be valid."""
        first, second, third, fourth = self.limbs[:4]
        words = np.empty((len(first), 2), dtype=np.uint64)
        words[:, 0] = ((second << 32) | first).view(np.uint64)
        words[:, 1] = ((fourth << 32) | third).view(np.uint64)
        return _decimal_array(kind, words, valid)

    def _negated(self) -> "Limbs":
        turned = [~limb & _MASK for limb in self.limbs[:-1]] + [~self.limbs[-1]]
        turned[0] = turned[0] + 1
        _carry(turned)
        return Limbs(turned)

    def _compared(self, bound: int) -> Flags:
        """Where a number is at least the bound, which is above 0."""
        at_least: Flags = np.ones(len(self.limbs[0]), dtype=np.bool_)
        for place, limb in enumerate(self.limbs):
            part = (bound >> (32 * place)) if place == len(self.limbs) - 1 else (bound >> (32 * place)) & 0xFFFFFFFF
            at_least = np.where(limb == part, at_least, limb > part)
        return at_least


def _limbs_of(words: npt.NDArray[np.uint64]) -> list[npt.NDArray[np.int64]]:
    low, high = words[:, 0], words[:, 1].view(np.int64)
    half = np.uint64(32)
    lower = (low & np.uint64(0xFFFFFFFF)).astype(np.int64), (low >> half).astype(np.int64)
    return [*lower, high & _MASK, high >> 32]


def _carry(limbs: list[npt.NDArray[np.int64]]) -> None:
    for place in range(len(limbs) - 1):
        limbs[place + 1] = limbs[place + 1] + (limbs[place] >> 32)
        limbs[place] = limbs[place] & _MASK


def _decimal_array(kind: pa.DataType, words: npt.NDArray[np.uint64], valid: Flags) -> pa.Array:
    words[~valid] = 0
    return fixed_array(kind, words, valid)


def _overflow(kind: pa.DataType) -> UserCodeFailure:
    return UserCodeFailure(
        f"[NUMERIC_VALUE_OUT_OF_RANGE] A sum or average of decimals does not fit into DECIMAL({kind.precision},"
        f"{kind.scale}): cast its argument to fewer digits, or set spark.sql.ansi.enabled to false to get null."
    )
