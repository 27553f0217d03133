"""Results as values: audits, and comparisons of an original classifier and its candidates on the same held-out rows.

- audits: `eq.audit`, and baseline (a simple model next to it)
- comparisons: `eq.compare`, with its provenance; changes (of every gap and rate) and findings (by the goal of a repair): its numbers

The exported names are listed in `__init__.pyi`; the module of a name is imported when the name is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
