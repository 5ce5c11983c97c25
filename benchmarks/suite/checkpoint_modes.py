"""How checkpoints are taken, as options of both systems: what the benchmarks of checkpoints vary."""

from collections.abc import Mapping
from dataclasses import dataclass

# Flink's default for a gate with two channels: 2 buffers for each and 8 that float, of 32 KiB. That is six per channel,
# of which one is being written or is not full: it holds some 1,600 rows of 200 bytes, as windows of five do.
EQUAL_WINDOW = "160KiB"
FLINK_AS_RUN = (
    "Flink runs as a MiniCluster in one JVM (heap of 2 GB, G1; one task manager with 2 slots, 128 MB of network "
    "memory, otherwise its defaults: 32 KiB buffers, 2 per channel and 8 floating per gate; `hashmap` state, object "
    "reuse, checkpoints to local files). Tidegate without debloating has windows for as many rows as Flink keeps in "
    f"flight with these, `network.window={EQUAL_WINDOW}`; its slots are processes that exchange rows by sockets."
)


@dataclass(frozen=True, slots=True)
class Mode:
    name: str
    title: str
    tidegate: Mapping[str, str]
    flink: Mapping[str, str] | None


_FLINK_UNALIGNED = {"flink.execution.checkpointing.unaligned.enabled": "true"}
_FLINK_DEBLOAT = {"flink.taskmanager.network.memory.buffer-debloat.enabled": "true"}


def _tidegate(*, unaligned: str, debloat: str = "false", active: str = "false") -> dict[str, str]:
    return {
        "tidegate.checkpoint.unaligned": unaligned,
        "tidegate.checkpoint.alignedTimeout": "1s",
        "tidegate.network.debloat": debloat,
        # With debloating it is the largest a window gets, and the default serves.
        **({} if debloat == "true" else {"tidegate.network.window": EQUAL_WINDOW}),
        "tidegate.source.activeBackpressure": active,
    }


ALIGNED = Mode("aligned", "aligned", _tidegate(unaligned="false"), {})
ALIGNED_DEBLOAT = Mode(
    "aligned-debloat", "aligned, debloated", _tidegate(unaligned="false", debloat="true"), _FLINK_DEBLOAT
)
UNALIGNED = Mode("unaligned", "unaligned", _tidegate(unaligned="true"), _FLINK_UNALIGNED)
SWITCHING = Mode(
    "switching",
    "switching after 1 s",
    _tidegate(unaligned="auto"),
    {**_FLINK_UNALIGNED, "flink.execution.checkpointing.aligned-checkpoint-timeout": "1 s"},
)
UNALIGNED_DEBLOAT = Mode(
    "unaligned-debloat",
    "unaligned, debloated",
    _tidegate(unaligned="true", debloat="true"),
    {**_FLINK_UNALIGNED, **_FLINK_DEBLOAT},
)
ACTIVE = Mode("active", "aligned, active backpressure", _tidegate(unaligned="false", active="true"), None)
DEFAULTS = Mode("defaults", "all defaults (switching, debloated, active)", {}, None)

MODES = (ALIGNED, ALIGNED_DEBLOAT, UNALIGNED, SWITCHING, UNALIGNED_DEBLOAT)
