"""Every state backend against the one suite."""

from tidegate.model.ids import KeyGroupRange
from tidegate.state.contract import StateBackend
from tidegate.state.heap import HeapBackend
from tidegate.testing.state_suite import StateBackendSuite


class TestHeap(StateBackendSuite):
    def make_backend(self, key_groups: KeyGroupRange) -> StateBackend:
        return HeapBackend(key_groups)
