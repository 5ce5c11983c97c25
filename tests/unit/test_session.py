import pytest

from tidegate.model.errors import EnvironmentProblem, OptionError
from tidegate.spark.session import SessionFacts, SlotLedger, await_cores, check_session


def session(*, cores: int, application_id: str = "app-1", master: str = "local[4]") -> SessionFacts:
    return SessionFacts(
        application_id=application_id, master=master, cores=cores, spark_version="4.3.0", python_version="3.11"
    )


@pytest.mark.parametrize(("cores", "slots"), [(1, 1), (2, 1), (3, 2), (8, 7)])
def test_by_default_a_query_leaves_one_core_to_spark_if_there_are_two(cores: int, slots: int) -> None:
    assert SlotLedger().claim(session(cores=cores), query="q", wanted=None).slots == slots


def test_an_explicit_parallelism_may_take_every_free_core() -> None:
    assert SlotLedger().claim(session(cores=4), query="q", wanted=4).slots == 4


def test_a_query_that_does_not_fit_is_refused_with_the_numbers_and_the_fix() -> None:
    ledger = SlotLedger()
    ledger.claim(session(cores=4), query="x", wanted=2)
    with pytest.raises(EnvironmentProblem) as refusal:
        ledger.claim(session(cores=4), query="y", wanted=4)
    assert str(refusal.value) == (
        "This query needs 4 slots, but the session has 4 cores, of which 2 are held: 2 by query 'x': "
        "use .option('parallelism', 2) or a larger master such as local[7]."
    )


def test_with_no_core_free_the_fix_is_another_one() -> None:
    ledger = SlotLedger()
    ledger.claim(session(cores=1, master="yarn"), query="x", wanted=None)
    with pytest.raises(EnvironmentProblem, match="1 is held: 1 by query 'x': stop a query, or use 3 executor cores"):
        ledger.claim(session(cores=1, master="yarn"), query="y", wanted=None)


def test_a_refused_claim_holds_nothing() -> None:
    ledger = SlotLedger()
    with pytest.raises(EnvironmentProblem):
        ledger.claim(session(cores=4), query="x", wanted=5)
    assert ledger.held("app-1") == ()


def test_released_slots_can_be_claimed_again_and_only_once() -> None:
    ledger = SlotLedger()
    first = ledger.claim(session(cores=4), query="x", wanted=3)
    ledger.release(first)
    second = ledger.claim(session(cores=4), query="x", wanted=3)
    ledger.release(first)
    assert ledger.held("app-1") == (second,)


def test_applications_do_not_share_slots() -> None:
    ledger = SlotLedger()
    ledger.claim(session(cores=4, application_id="app-1"), query="x", wanted=4)
    assert ledger.claim(session(cores=4, application_id="app-2"), query="x", wanted=4).slots == 4


def test_after_a_loss_a_query_may_have_what_others_and_sparks_own_jobs_leave() -> None:
    ledger = SlotLedger()
    first = ledger.claim(session(cores=8), query="x", wanted=4, spare=1)
    ledger.claim(session(cores=8), query="y", wanted=2)
    assert ledger.left_for(first, cores=8) == 5
    assert ledger.left_for(first, cores=6) == 3
    assert ledger.left_for(first, cores=1) == 0, "the last core is for the jobs that Spark runs for it"


def test_after_a_loss_two_queries_do_not_wait_for_each_other() -> None:
    ledger = SlotLedger()
    first = ledger.claim(session(cores=5), query="x", wanted=3)
    second = ledger.claim(session(cores=5), query="y", wanted=1)
    assert (ledger.left_for(first, cores=2), ledger.left_for(second, cores=2)) == (1, 0)
    ledger.occupy(first, slots=1)
    assert ledger.left_for(second, cores=2) == 1
    assert ledger.left_for(first, cores=5) == 4, "and may have all back"


def test_after_a_loss_each_query_may_have_its_share_of_what_is_left() -> None:
    ledger = SlotLedger()
    first = ledger.claim(session(cores=8), query="x", wanted=4)
    second = ledger.claim(session(cores=8), query="y", wanted=2)
    assert (ledger.left_for(first, cores=3), ledger.left_for(second, cores=3)) == (2, 1), "not none and none"


def test_an_ended_query_occupies_nothing() -> None:
    ledger = SlotLedger()
    claim = ledger.claim(session(cores=2), query="x", wanted=2)
    ledger.release(claim)
    ledger.occupy(claim, slots=2)
    assert ledger.held("app-1") == ()


def test_a_parallelism_below_one_is_a_wrong_option() -> None:
    with pytest.raises(OptionError, match="'parallelism' is 0"):
        SlotLedger().claim(session(cores=4), query="x", wanted=0)


def test_what_is_no_classic_session_is_refused_by_its_type() -> None:
    with pytest.raises(EnvironmentProblem, match=r"classic SparkSession, not builtins\.object"):
        check_session(object())


class Arriving:
    """Executors of two cores each, which register at these seconds; time passes by sleeping."""

    def __init__(self, *at_s: float) -> None:
        self._at_s = at_s
        self.now_s = 0.0

    def cores(self) -> int:
        return 2 * sum(at <= self.now_s for at in self._at_s)

    def wait(self, wanted: int | None) -> float:
        """How long it took."""
        await_cores(self.cores, wanted=wanted, now_s=lambda: self.now_s, sleep=self._pass)
        return self.now_s

    def _pass(self, seconds: float) -> None:
        self.now_s += seconds


def test_a_query_waits_for_the_cores_it_wants_and_not_for_more() -> None:
    assert Arriving(1, 3, 5).wait(4) == pytest.approx(3, abs=0.2)
    assert Arriving(0, 0).wait(4) == 0


def test_a_query_that_takes_what_there_is_waits_until_no_more_executors_come() -> None:
    assert Arriving(1, 1.5, 2.2).wait(None) == pytest.approx(3.2, abs=0.2)


def test_cores_that_never_come_are_not_waited_for_for_ever() -> None:
    assert Arriving(1).wait(4) == pytest.approx(15, abs=0.2)
    assert Arriving().wait(None) == pytest.approx(15, abs=0.2)
