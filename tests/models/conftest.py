"""A Python file with factories of networks, in a temporary folder."""

from pathlib import Path

import pytest

from support.factories import CODE


@pytest.fixture
def code(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(CODE)
    return path
