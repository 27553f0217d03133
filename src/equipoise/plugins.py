"""Plug-ins: methods, measures, data sets and panels that other packages, or files of the user, add.

A plug-in is a module that registers what it adds when it is imported, as the modules of Equipoise do. An installed package names its
modules in entry points, in the group of what they add: `equipoise.methods`, `equipoise.measures`, `equipoise.data_sets` or
`equipoise.panels`. They are imported when a name of that kind is first looked up; one that cannot be imported is left out, with a warning.
A file is imported only when the user names it (`--plugin`), never because a table, a case file or a bundle does.
"""

import logging
import sys
from collections import UserDict
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from equipoise.disk import read_bytes, sha256
from equipoise.errors import BadInput, first_line

log = logging.getLogger(__name__)
Value = TypeVar("Value")
PLUGIN_FILES: dict[str, bytes] = {}  # of this process: the source of each file by its path, for the workers of a study
PLUGIN_PACKAGES: dict[str, str] = {}  # of this process: the version of each package


class Registry(UserDict[str, Value]):
    """Values by name: those of Equipoise, then those of other packages, which are imported on the first lookup.

    - `kind`: the end of the group of entry points.
    - `fill`: registers those of Equipoise, if they are not registered at once.
    """

    def __init__(self, kind: str, fill: Callable[[], None] = lambda: None) -> None:
        self.registered: dict[str, Value] = {}  # so far, without importing any
        self.kind, self.fill, self.complete = kind, fill, False

    @property
    def data(self) -> dict[str, Value]:  # type: ignore[override]
        """All values; `UserDict` reads them here."""
        if not self.complete:
            self.complete = True  # before the imports, which may look up names
            self.fill()
            for point in entry_points(group=f"equipoise.{self.kind}"):
                try:
                    point.load()
                    if point.dist:
                        PLUGIN_PACKAGES[point.dist.name] = point.dist.version
                except Exception as error:  # of somebody else's code, which must not stop an audit that does not need it
                    package = point.dist.name if point.dist else "an installed package"
                    log.warning("The plug-in %s of %s was left out: %s: %s", point.value, package, type(error).__name__, first_line(error))
        return self.registered


def load_plugin(path: str | Path) -> None:
    """Imports a plug-in file, so that what it registers can be used by name in this process."""
    place = Path(path).expanduser().absolute()
    if place.suffix != ".py" or not place.is_file():
        raise BadInput(f"--plugin {path}: expected a Python file that registers a method, measure, data set or panel. Check the path.")
    load_sources({str(place): read_bytes(place)})


def load_sources(sources: Mapping[str, bytes]) -> None:
    """Runs plug-ins from their sources by path, each once."""
    for path, source in sources.items():
        if PLUGIN_FILES.get(path) == source:
            continue
        module = ModuleType(f"equipoise_plugin_{Path(path).stem}_{sha256(path.encode())[:8]}")
        module.__file__ = path
        sys.modules[module.__name__] = module
        try:
            exec(compile(source, path, "exec"), module.__dict__)
        except Exception as error:
            del sys.modules[module.__name__]
            problem = f"{type(error).__name__}: {first_line(error)}"
            raise BadInput(f"the plug-in {path} cannot be imported: {problem}. Correct the file") from error
        PLUGIN_FILES[path] = source


def plugin_digest(module: str) -> str:
    """A checksum of the file of a module that is not part of Equipoise; empty if it is."""
    if module.partition(".")[0] == "equipoise":
        return ""
    file = getattr(sys.modules.get(module), "__file__", None)
    return sha256(PLUGIN_FILES.get(str(file)) or read_bytes(Path(file))) if file else "unknown"
