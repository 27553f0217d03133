"""Audit an already-trained classifier for group bias and repair it after training.

import equipoise as eq
cohort = eq.load("compas")
parts = eq.split(cohort, seed=0)
model = eq.train(parts.train, parts.valid, seed=0)
print(eq.audit(model, parts.test))

The names are listed in `__init__.pyi`; a name's module is imported when the name is first used.
"""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # Imported here, not above: `python -m equipoise` runs this file while Python still searches the current folder, whose files are data,
    # for modules (see __main__.py).
    import lazy_loader

    attribute, _, names = lazy_loader.attach_stub(__name__, __file__)
    return sorted([*names, "__version__"]) if name == "__all__" else attribute(name)


def __dir__() -> object:
    return __getattr__("__all__")
