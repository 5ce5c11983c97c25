"""Values at equal distances, and how what is left of them is read in order and dealt out anew.

Owns the arithmetic of the rate source's positions. It never reads a clock and knows nothing of rows.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt


class Strand(msgspec.Struct, frozen=True, array_like=True):
    """The values first, first + step, ..., `count` of them (at least one)."""

    first: int
    count: int
    step: int

    @property
    def following(self) -> int:
        """Where the strand would go on."""
        return self.first + self.count * self.step

    def without(self, count: int) -> "Strand":
        return Strand(self.first + count * self.step, self.count - count, self.step)


def strand_below(end: int, *, first: int, step: int) -> Strand | None:
    """The values from `first` on that lie below `end`; None if there are none."""
    return None if first >= end else Strand(first, count_below(end, first=first, step=step), step)


def count_below(end: int, *, first: int, step: int) -> int:
    return max(0, -((first - end) // step))


def lowest_values(strands: Sequence[Strand], *, end: int, max_count: int) -> npt.NDArray[np.int64]:
    """The `max_count` lowest values below `end`, ascending: event time follows the value and must not go back."""
    candidates = [
        np.arange(min(strand.count, max_count, count_below(end, first=strand.first, step=strand.step)), dtype=np.int64)
        * strand.step
        + strand.first
        for strand in strands
    ]
    return np.sort(np.concatenate(candidates))[:max_count]


def after(strands: Sequence[Strand], last: int) -> list[Strand]:
    """What is left of the strands above the value `last`."""
    left = []
    for strand in strands:
        passed = count_below(last + 1, first=strand.first, step=strand.step)
        if passed < strand.count:
            left.append(strand.without(passed))
    return left


def deal(strands: Sequence[Strand], *, shares: int) -> list[list[Strand]]:
    """Shares of equal size (within one value), that depend only on the values and their distances.

    Dealing adds at most one cut per share, and cuts between values that were not read since are mended first: so the
    number of strands does not grow by dealing.
    """
    whole = _mended(strands)
    total = sum(strand.count for strand in whole)
    dealt: list[list[Strand]] = []
    for share in range(shares):
        room = total * (share + 1) // shares - total * share // shares
        mine: list[Strand] = []
        while room > 0:
            taken = min(room, whole[0].count)
            mine.append(Strand(whole[0].first, taken, whole[0].step))
            room -= taken
            whole[:1] = [whole[0].without(taken)] if taken < whole[0].count else []
        dealt.append(mine)
    return dealt


def _mended(strands: Sequence[Strand]) -> list[Strand]:
    """Strands that continue each other become one; then the oldest first."""
    mended: list[Strand] = []
    for strand in sorted(strands, key=lambda strand: (strand.step, strand.first % strand.step, strand.first)):
        before = mended[-1] if mended else None
        if before is not None and before.step == strand.step and before.following == strand.first:
            mended[-1] = Strand(before.first, before.count + strand.count, before.step)
        else:
            mended.append(strand)
    return sorted(mended, key=lambda strand: (strand.first, strand.step))
