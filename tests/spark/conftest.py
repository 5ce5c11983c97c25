"""What all tests on Spark share."""

from collections.abc import Iterator

import pytest

import tidegate as tg


@pytest.fixture(autouse=True)
def no_query_survives_its_test() -> Iterator[None]:
    yield
    for query in tg.queries():
        query.stop()
