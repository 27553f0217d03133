"""The case that a command is about: a case file, or a bare table, changed by `--set` and flags."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from equipoise import repair


def read_case(file: Path, case: Callable[[dict[str, Any]], repair.Case]) -> repair.Case:
    """The case with the score column of each label; raises one error with every problem."""
    values = repair.read_case_file(file) if file.suffix.lower() == ".toml" else {"data": {"table": file}}
    return case(values).with_pairs()
