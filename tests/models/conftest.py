"""A file of factories in a folder of its own."""

from pathlib import Path

import pytest

from support.factories import CODE


@pytest.fixture
def code(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(CODE)
    return path
