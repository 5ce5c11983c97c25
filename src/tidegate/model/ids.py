"""Ids are types: a checkpoint id is never passed where a generation is meant."""

from typing import NamedTuple, NewType

CheckpointId = NewType("CheckpointId", int)
Generation = NewType("Generation", int)
SlotIndex = NewType("SlotIndex", int)
VertexId = NewType("VertexId", int)
EdgeId = NewType("EdgeId", int)

# Numbers the elements of one channel, from 0, without gaps, across the life of one generation.
Sequence = NewType("Sequence", int)


class TaskId(NamedTuple):
    """One chained subtask; subtask i of every vertex runs in slot i."""

    vertex: VertexId
    subtask: int

    def __str__(self) -> str:
        return f"v{self.vertex}.{self.subtask}"


class ChannelId(NamedTuple):
    """One edge between one sending and one receiving subtask."""

    edge: EdgeId
    sender: int
    receiver: int

    def __str__(self) -> str:
        return f"e{self.edge}:{self.sender}->{self.receiver}"


class KeyGroupRange(NamedTuple):
    """Key groups `first` (included) to `last` (excluded)."""

    first: int
    last: int

    def __contains__(self, key_group: object) -> bool:
        return isinstance(key_group, int) and self.first <= key_group < self.last


def range_of(subtask: int, *, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """The contiguous key groups of one subtask; the ranges of all subtasks meet without gap or overlap."""
    first = -(-subtask * max_parallelism // parallelism)
    last = -(-(subtask + 1) * max_parallelism // parallelism)
    return KeyGroupRange(first, last)


def key_groups_with_keys_of(key_groups: KeyGroupRange, max_parallelism: int, *, among: int) -> KeyGroupRange:
    """Which of `among` key groups have keys of these: a key group is a range of hashes, however many there are."""
    if key_groups.first >= key_groups.last:
        return KeyGroupRange(0, 0)
    return KeyGroupRange(
        key_groups.first * among // max_parallelism,
        -(-key_groups.last * among // max_parallelism),
    )
