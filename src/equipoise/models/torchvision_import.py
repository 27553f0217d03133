"""The one place that imports torchvision, and what makes that work for code of others as well.

A torchvision wheel built for CUDA beside a CPU build of torch fails at import with "operator torchvision::nms does not exist", since its
compiled operators cannot be loaded. Models and transforms need none of them, so the two that are looked up at import are declared first.
"""

import importlib
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from equipoise.errors import MissingExtra

OPERATORS = ("nms", "qnms")
_declared: list[Any] = []  # a torch.library.Library lives as long as somebody holds it


def declare_operators() -> bool:
    """Whether torchvision's operators had to be declared so that anybody can import it: they cannot be loaded. Does not import it."""
    if _declared or "torchvision" in sys.modules:
        return bool(_declared)
    spec = importlib.util.find_spec("torchvision")
    if spec is None or not spec.submodule_search_locations:
        return False
    endings = importlib.machinery.EXTENSION_SUFFIXES
    compiled = [path for place in spec.submodule_search_locations for end in endings if (path := Path(place, f"_C{end}")).is_file()]
    try:
        for path in compiled[:1]:
            torch.ops.load_library(path)  # as torchvision does itself
        if compiled and all(_known(name) for name in OPERATORS[:1]):
            return False
    except (ImportError, OSError):
        pass
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in OPERATORS:
        if not _known(name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)
    return True


def _known(name: str) -> bool:
    return hasattr(torch.ops.torchvision, name)


def import_torchvision() -> ModuleType:
    """The torchvision package, also where its compiled operators do not fit this torch."""
    declare_operators()
    try:
        return importlib.import_module("torchvision")
    except ImportError as error:
        if getattr(error, "name", "") == "torchvision":
            raise MissingExtra("torchvision", "", "vision networks") from error
        raise
