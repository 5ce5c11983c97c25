"""Of the many lines that Spark says about a failed job, people are shown the one that says why."""

import pytest

from tidegate.coordinator.launch import Broken, Impossible
from tidegate.spark.launch import exit_for, reason_in

JOB = (
    "An error occurred while calling o45.collectToPython.\n"
    ": org.apache.spark.SparkException: Job aborted due to stage failure: Could not recover from a failed barrier "
    "ResultStage. Most recent failure reason: Stage failed because barrier task ResultTask(0, 0) finished "
    "unsuccessfully.\n"
)
STACK = "\n\tat org.apache.spark.api.python.Runner.read(Runner.scala:1)\nCaused by: java.io.EOFException\n\tat x.y(z:1)"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            JOB + "org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] Traceback (most recent call last):\n"
            '  File "a.py", line 6, in boom\n    raise OptionError("x")\n'
            "tidegate.model.errors.OptionError: Option 'x' is wrong: fix it.\n SQLSTATE: 38000" + STACK,
            "OptionError: Option 'x' is wrong: fix it.",
        ),
        (
            JOB + "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)." + STACK,
            "SparkException: Python worker exited unexpectedly (crashed).",
        ),
        ("ModuleNotFoundError: No module named 'tidegate'", "ModuleNotFoundError: No module named 'tidegate'"),
        ("", ""),
    ],
)
def test_the_reason_is_the_last_word_before_javas_stack(text: str, reason: str) -> None:
    assert reason_in(text) == reason


def test_what_cannot_work_is_not_tried_again() -> None:
    missing = exit_for("ModuleNotFoundError: No module named 'tidegate'")
    assert isinstance(missing, Impossible) and "'tidegate'" in missing.message and "PYSPARK_PYTHON" in missing.message
    text = (
        JOB + 'java.io.IOException: Cannot run program "./environment/bin/python": error=13, Permission denied' + STACK
    )
    no_python = exit_for(reason_in(text))
    assert isinstance(no_python, Impossible) and '"./environment/bin/python": error=13' in no_python.message
    refused = exit_for("OptionError: Option 'network.bindHost' is 'x', which this host cannot resolve: give another.")
    assert refused == Impossible("Option 'network.bindHost' is 'x', which this host cannot resolve: give another.")
    crashed = "SparkException: Python worker exited unexpectedly (crashed)."
    assert exit_for(crashed) == Broken(crashed)
