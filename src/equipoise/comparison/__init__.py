"""Results as values: audits, and comparisons of an original classifier and its candidates on the same held-out rows.

- audit: eq_audit (`eq.audit`), baseline (a simple model next to it)
- compare: eq_compare (`eq.compare`), compare_models and compare_scores; candidates, pairing, changed_decisions and findings (their numbers)
- provenance: where a result comes from

The exported names are listed in `__init__.pyi`; the module of a name is imported when the name is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
