"""How values reach their presentation: methods such as `Audit.report(path)` ask for a function of the room that presents, by its name.

Rooms to the left of `report` hold those values and must not import it. The package itself says which room presents (`PRESENTED_BY`); it is
imported when the first report is written.
"""

import importlib
from collections.abc import Callable
from typing import Any

import equipoise


def presenter(name: str) -> Callable[..., Any]:
    """The function of this name in the room that presents."""
    found: Callable[..., Any] = getattr(importlib.import_module(equipoise.PRESENTED_BY), name)
    return found
