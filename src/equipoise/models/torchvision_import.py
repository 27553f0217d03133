"""The one place that imports torchvision.

A torchvision wheel built for CUDA beside a CPU build of torch fails at import with "operator torchvision::nms does not exist", since its
compiled operators cannot be loaded. Models and transforms need none of them, so the two that are looked up at import are declared first.
"""

import importlib
from types import ModuleType
from typing import Any

import torch

from equipoise.errors import MissingExtra

_declared: list[Any] = []  # a torch.library.Library lives as long as somebody holds it


def import_torchvision() -> ModuleType:
    """The torchvision package, also where its compiled operators do not fit this torch."""
    try:
        return importlib.import_module("torchvision")
    except ImportError as error:
        if getattr(error, "name", "") == "torchvision":
            raise MissingExtra("torchvision", "", "vision networks") from error
        raise
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)
    return importlib.import_module("torchvision")
