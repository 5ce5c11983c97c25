"""Who follows checkpoints from beside the job, as Spark's ingest does: what it hears of each, and when."""

from dataclasses import dataclass, field, replace

from tests.unit.driver_by_hand import DELAY_MS, RESTARTS, SLOTS, Hand, acknowledge, failed, ready
from tidegate.coordinator.job import JobSpec
from tidegate.model.ids import CheckpointId, Generation
from tidegate.network.messages import Decline, SnapshotsTaken
from tidegate.protocol.admission import ActiveBackpressure
from tidegate.protocol.restart import RestartStrategy
from tidegate.protocol.why import why
from tidegate.storage.statistics import read_statistics

INTERVAL_MS, TIMEOUT_MS = 60_000.0, 90_000.0


@dataclass
class Recording:
    heard: list[tuple[str, int]] = field(default_factory=list)
    paused: dict[str, float] = field(default_factory=dict)

    def on_triggered(self, checkpoint: CheckpointId) -> None:
        self.heard.append(("triggered", checkpoint))

    def on_reached_all(self, checkpoint: CheckpointId) -> None:
        self.heard.append(("reached", checkpoint))

    def on_settled(self, checkpoint: CheckpointId) -> None:
        self.heard.append(("settled", checkpoint))

    def paused_ms(self) -> dict[str, float]:
        return self.paused


def followed(
    *, restart: RestartStrategy | None = None, paused: dict[str, float] | None = None
) -> tuple[Hand, Recording]:
    """A job that runs, and has triggered its first checkpoint. `paused`: for how long by then."""
    follower = Recording(paused=paused or {})

    def with_follower(spec: JobSpec) -> JobSpec:
        settings = replace(spec.checkpoints, timeout_ms=TIMEOUT_MS, tolerable_failures=5)
        slot_settings = replace(spec.slot_settings, active_backpressure=ActiveBackpressure.STRICT)
        return replace(spec, checkpoints=settings, slot_settings=slot_settings, followers=(follower,))

    job = Hand(restart=restart, change=with_follower)
    job.run()
    assert follower.heard == []
    job.pass_ms(INTERVAL_MS)
    assert follower.heard == [("triggered", 1)]
    return job, follower


def taken(checkpoint: int, generation: int = 1) -> SnapshotsTaken:
    return SnapshotsTaken(Generation(generation), CheckpointId(checkpoint))


def test_it_hears_when_the_barrier_has_reached_the_last_slot_and_when_the_checkpoint_is_in_the_log() -> None:
    job, follower = followed()
    job.say(SLOTS[0], taken(1))
    assert follower.heard == [("triggered", 1)], "one slot is not all"
    job.say(SLOTS[1], taken(1))
    assert follower.heard == [("triggered", 1), ("reached", 1)]
    job.all_say(acknowledge(1))
    assert follower.heard[2:] == [], "it is not stored yet"
    job.store_all()
    assert follower.heard[2:] == [("settled", 1)]
    job.pass_ms(INTERVAL_MS)
    assert follower.heard[3:] == [("triggered", 2)]


def test_one_that_expires_is_settled_while_the_job_goes_on() -> None:
    job, follower = followed()
    job.say(SLOTS[0], taken(1))
    job.pass_ms(TIMEOUT_MS - 1)
    assert follower.heard == [("triggered", 1)]
    job.pass_ms(1)
    assert job.state == "running"
    assert follower.heard[:2] == [("triggered", 1), ("settled", 1)]
    job.say(SLOTS[1], taken(1))
    assert ("reached", 1) not in follower.heard, "nobody waits for it any more"


def test_one_that_a_slot_declines_is_settled() -> None:
    job, follower = followed()
    job.say(SLOTS[0], Decline(Generation(1), CheckpointId(1), "the disk is full"))
    assert job.state == "running"
    assert follower.heard == [("triggered", 1), ("settled", 1)]


def test_what_is_under_way_when_the_query_stops_is_settled() -> None:
    job, follower = followed()
    job.stop()
    assert follower.heard == [("triggered", 1), ("settled", 1)]


def test_what_is_under_way_when_a_generation_fails_is_settled_and_the_next_one_is_followed_too() -> None:
    job, follower = followed(restart=RESTARTS)
    job.all_say(taken(1))
    job.say(SLOTS[0], failed(1))
    assert (job.state, follower.heard) == ("restarting", [("triggered", 1), ("reached", 1), ("settled", 1)])
    job.pass_ms(DELAY_MS)
    job.store_all()
    job.all_say(ready(2))
    job.pass_ms(INTERVAL_MS)
    (_, second), *_ = follower.heard[3:]
    job.all_say(taken(second, generation=2))
    assert second > 1 and follower.heard[3:] == [("triggered", second), ("reached", second)]


def test_for_how_long_it_paused_is_what_a_checkpoint_cost_the_stream() -> None:
    """From the trigger on, and of several the one that paused longest."""
    job, follower = followed(paused={"in": 5_000.0})
    follower.paused = {"in": 5_400.0, "other": 700.0}
    job.pass_ms(1_000)
    assert paused_ms(job, 1) == 700.0
    job.all_say(acknowledge(1))
    follower.paused = {"in": 6_200.0, "other": 700.0}
    job.store_all()
    follower.paused = {"in": 9_000.0, "other": 700.0}
    job.pass_ms(INTERVAL_MS)
    assert (paused_ms(job, 1), paused_ms(job, 2)) == (1_200.0, 0.0)
    (stored,) = read_statistics(job.store)
    assert why(stored).cost_to_stream.paused_ms == 700.0, "what was known when the manifest was written"


def test_for_how_long_it_paused_for_one_that_expires_is_counted_too() -> None:
    job, follower = followed()
    follower.paused = {"in": 400.0}
    job.pass_ms(TIMEOUT_MS)
    assert paused_ms(job, 1) == 400.0


def paused_ms(job: Hand, checkpoint: int) -> float:
    facts = next(found for found in job.driver.facts() if found.checkpoint == checkpoint)
    return why(facts).cost_to_stream.paused_ms
