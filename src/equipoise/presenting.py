"""Late access to the room `report`, for methods such as `Audit.report(path)` of values in rooms that must not import it.

The package names the room that presents (`equipoise.PRESENTED_BY`); it is imported when the first report is written.
"""

import importlib
from collections.abc import Callable
from typing import Any

import equipoise


def presenter(name: str) -> Callable[..., Any]:
    """The function of this name in the room that presents."""
    function: Callable[..., Any] = getattr(importlib.import_module(equipoise.PRESENTED_BY), name)
    return function
