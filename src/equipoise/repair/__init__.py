"""Repairs compared, saved and served: comparisons on held-out rows, the dry run, bundles and provenance.

- files: eq_case (`eq.Case`), case and sections (fields and rules), file_audit (`audit_file`), file_repair (`prepare_file`)
- audit: eq_audit (`eq.audit`), baseline (a simple model next to it), score_checks (`eq.check_scores`)
- repair: methods_tried (`try_methods`), candidates (the choice among them), dry_run
- compare: eq_compare (`eq.compare`), compare_models and compare_scores; pairing, changed_decisions and findings (their numbers)
- bundle: schema (run.json), save, serving and folder (written), verify, bundle and bundle_network (loaded and used)

The exported names are listed in `__init__.pyi`; the module of a name is imported when the name is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
