"""What every store must do. Subclass `StoreSuite` in a test module, give it a store, and let pytest collect it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from tidegate.model.errors import Damaged
from tidegate.storage.store import AlreadyThere, Created, Store, delete_all
from tidegate.testing.expect import raises

_RACERS = 8
_ROUNDS = 20


class StoreSuite:
    def make_store(self, folder: Path) -> Store:
        """An empty store; `folder` is fresh for each test."""
        raise NotImplementedError

    def test_what_was_put_is_read_back(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        store.put("a/b", b"12345")
        assert store.read("a/b") == b"12345"
        assert store.size("a/b") == 5

    def test_put_replaces(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        store.put("a", b"a longer first content")
        store.put("a", b"second")
        assert store.read("a") == b"second"

    def test_pieces_are_written_one_after_another(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        large = bytes(range(256)) * (6 << 12)
        assert store.create("small", [b"ab", memoryview(b"xcdx")[1:3], b""]) == Created()
        store.put("large", [b"head", large, b"tail"])
        assert store.read("small") == b"abcd"
        assert store.read("large") == b"head" + large + b"tail"

    def test_an_empty_file_is_a_file(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        assert store.create("empty", b"") == Created()
        assert store.read("empty") == b""
        assert store.list() == ["empty"]

    def test_a_range_is_exact(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        store.put("a", b"0123456789")
        assert store.read_range("a", start=3, length=4) == b"3456"
        assert store.read_range("a", start=8, length=2) == b"89"
        assert store.read_range("a", start=8, length=0) == b""

    def test_a_range_beyond_the_end_is_damage_and_not_a_short_answer(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        store.put("a", b"0123456789")
        raises(Damaged, lambda: store.read_range("a", start=8, length=3), naming="a")
        raises(Damaged, lambda: store.read_range("a", start=20, length=1), naming="a")

    def test_create_refuses_what_is_there_and_leaves_it_unchanged(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        assert store.create("log/1", b"first") == Created()
        assert store.create("log/1", b"second") == AlreadyThere()
        assert store.read("log/1") == b"first"

    def test_create_has_exactly_one_winner_among_racing_threads(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        start = Barrier(_RACERS)

        def race(racer: int) -> list[Created | AlreadyThere]:
            outcomes = []
            for round_number in range(_ROUNDS):
                start.wait()
                outcomes.append(store.create(f"log/{round_number}", b"%d" % racer))
            return outcomes

        with ThreadPoolExecutor(_RACERS) as racers:
            outcomes = list(racers.map(race, range(_RACERS)))
        for round_number in range(_ROUNDS):
            winners = [racer for racer in range(_RACERS) if outcomes[racer][round_number] == Created()]
            assert len(winners) == 1, f"round {round_number}: {winners} all created the file"
            assert store.read(f"log/{round_number}") == b"%d" % winners[0]

    def test_list_is_sorted_and_keeps_to_the_folder(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        for path in ["b/2", "b/10", "b/c/1", "a/1", "bb/1", "b.txt"]:
            store.put(path, b"x")
        assert store.list("b") == ["b/10", "b/2", "b/c/1"]
        assert store.list() == sorted(["b/2", "b/10", "b/c/1", "a/1", "bb/1", "b.txt"])
        assert store.list("nowhere") == []

    def test_delete_removes_one_file_and_may_be_repeated(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        store.put("a/1", b"x")
        store.put("a/2", b"y")
        store.delete("a/1")
        store.delete("a/1")
        store.delete("never/there")
        assert store.list() == ["a/2"]
        assert store.create("a/1", b"again") == Created()

    def test_many_are_deleted_whether_they_are_there_or_not(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        for number in range(20):
            store.put(f"shared/{number}", b"x")
        delete_all(store, [f"shared/{number}" for number in range(2, 30)])
        delete_all(store, [])
        assert store.list() == ["shared/0", "shared/1"]

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        raises(Damaged, lambda: store.read("no/such"), naming="no/such")
        raises(Damaged, lambda: store.size("no/such"), naming="no/such")
        raises(Damaged, lambda: store.read_range("no/such", start=0, length=1), naming="no/such")

    def test_writers_and_deleters_of_one_folder_do_not_disturb_each_other(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)

        def come_and_go(worker: int) -> None:
            for turn in range(_ROUNDS):
                store.put(f"shared/deep/{worker}", b"%d" % turn)
                assert store.read(f"shared/deep/{worker}") == b"%d" % turn
                store.delete(f"shared/deep/{worker}")

        with ThreadPoolExecutor(_RACERS) as workers:
            list(workers.map(come_and_go, range(_RACERS)))
        assert store.list() == []
