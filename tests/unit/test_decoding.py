"""Types that several threads read for the first time at the same time."""

import re
import subprocess
import sys
from pathlib import Path

import tidegate

# In a process of its own: what this is about would end it.
_READ_BY_MANY_AT_ONCE = """
import sys
from threading import Barrier, Thread

import msgspec

from tidegate.storage.decoding import from_json, from_msgpack

sys.setswitchinterval(1e-6)


def struct(name, fields):
    return type(name, (msgspec.Struct,), {"__annotations__": fields, "__module__": "__main__"})


for number in range(30):
    parts = [struct(f"Part{number}{at}", {f"f{field}": "int" for field in range(20)}) for at in range(5)]
    kind = struct(f"Whole{number}", {f"part{at}": part | None for at, part in enumerate(parts)})
    values = {f"part{at}": None for at in range(5)}
    ready, read = Barrier(8), []

    def work():
        ready.wait()
        read.append(from_msgpack(msgspec.msgpack.encode(values), kind))
        read.append(from_json(msgspec.json.encode(values), kind))

    threads = [Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read == [kind(*[None] * 5)] * 16
"""


def test_many_threads_may_be_the_first_to_read_a_type() -> None:
    done = subprocess.run([sys.executable, "-c", _READ_BY_MANY_AT_ONCE], timeout=120, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_nobody_lets_msgspec_prepare_a_type_in_passing() -> None:
    package = Path(tidegate.__file__).parent
    sources = [path for path in package.rglob("*.py") if "testing" not in path.parts and path.name != "decoding.py"]
    assert len(sources) > 100
    assert [path.name for path in sources if re.search(r"decode\(.*, type=", path.read_text())] == []
