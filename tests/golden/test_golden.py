"""Commands and calls give what they gave when they were recorded; `python -m tests.golden record NAME` after an intended change."""

import pytest
from tests.golden.net import CALLS, COMMANDS, differences, observed


@pytest.mark.parametrize("name", [*COMMANDS, *CALLS])
def test_the_output_is_the_recorded_one(name: str):
    assert differences(name, observed(name)) == []
