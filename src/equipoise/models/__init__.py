"""Networks: loading, prediction, training, units, influence, probes, export.

The map of what this room exports is `__init__.pyi`, one line per name; a name's module is imported when the name is first used.
"""

import lazy_loader

from equipoise.errors import needing

_attribute, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    with needing("a network"):
        return _attribute(name)
