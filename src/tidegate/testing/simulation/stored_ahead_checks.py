"""What must be true of the state that a slot stores ahead of checkpoints, between any two steps of it."""

from tidegate.testing.simulation.world import SimulationFailed
from tidegate.worker.slot_tasks import SlotTasks
from tidegate.worker.state_backends import ChangelogBackends


def check_images_go_on(tasks: SlotTasks) -> None:
    """An image that is not whole would stay so if one of its files were neither stored nor about to be."""
    ahead = tasks._ahead
    if ahead._is_storing:
        return
    waiting = (wanted.name for wanted in ahead._waiting_others if wanted.keeper() is not None)
    coming = {*ahead._known, *ahead._stored, *waiting}
    for image in ahead._images:
        if not image.names <= coming:
            raise SimulationFailed(f"nobody will store {sorted(image.names - coming)} of an image that is not whole")


class Rest:
    """A deadline that has passed, and stays, keeps a processor busy with nothing."""

    def __init__(self) -> None:
        self._due_ms: list[float] = []

    def check(self, tasks: SlotTasks, now_ms: float) -> None:
        """After what was due was done; something else may be due by now."""
        before, self._due_ms = self._due_ms, [due_ms for due_ms in _deadlines_of(tasks) if due_ms < now_ms]
        if unheard := set(before) & set(self._due_ms):
            raise SimulationFailed(f"state was looked after, and asks for it still, since {unheard}")


def _deadlines_of(tasks: SlotTasks) -> list[float]:
    state = tasks._state
    backends = state._opened if isinstance(state, ChangelogBackends) else []
    deadlines = [backend.next_deadline_ms() for backend in backends]
    return [due_ms for due_ms in deadlines if due_ms is not None]
