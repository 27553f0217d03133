"""Late access to rooms on the right, for methods such as `Audit.report(path)` of values in rooms that must not import them.

The package names the room that presents (`equipoise.PRESENTED_BY`); it is imported when the first report is written.
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equipoise


def presenter(name: str) -> Callable[..., Any]:
    """The function of this name in the room that presents."""
    function: Callable[..., Any] = getattr(importlib.import_module(equipoise.PRESENTED_BY), name)
    return function


def save_comparison(comparison: Any, folder: Path, **options: Any) -> Path:
    """The folder with the bundle of a comparison."""
    from equipoise.repair import save_comparison

    return save_comparison(comparison, folder, **options)
