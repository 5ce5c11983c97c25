"""What must be true of the state that a slot stores ahead of checkpoints, between any two steps of it."""

from tidegate.testing.simulation.world import SimulationFailed
from tidegate.worker.slot_tasks import SlotTasks
from tidegate.worker.state_backends import ChangelogBackends


def check_images_go_on(tasks: SlotTasks) -> None:
    """An image that is not whole would stay so if one of its files were neither stored nor about to be."""
    ahead = tasks._ahead
    if ahead._is_storing:
        return
    coming = {*ahead._known, *ahead._stored, *(wanted.name for wanted in ahead._waiting_images)}
    for image in ahead._images:
        if not image.names <= coming:
            raise SimulationFailed(f"nobody will store {sorted(image.names - coming)} of an image that is not whole")


def check_can_rest(tasks: SlotTasks, now_ms: float) -> None:
    """All that was due was done: a deadline that has passed, and stays, keeps a processor busy with nothing."""
    state = tasks._state
    if not isinstance(state, ChangelogBackends):
        return
    for backend in state._opened:
        is_made_now = backend._making is not None and not backend._making.is_stored_soon
        due_ms = backend.next_deadline_ms()
        if due_ms is not None and due_ms <= now_ms and not is_made_now:
            raise SimulationFailed(f"state was looked after at {now_ms}, and still asks for it since {due_ms}")
