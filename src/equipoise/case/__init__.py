"""From a case (data, model, goal and report of a hospital) to its audit or repair, and the bundle of a repair, written and served.

- case: case_file (`eq.Case`: sections, rules), case_audit (`audit_case`), case_repair (`prepare_repair`)
- repair: methods_tried (`try_methods`), dry_run; score_checks (`eq.check_scores`) of the model's scores with known ones
- bundle: schema (run.json), save and folder (written), verify, bundle and bundle_network (loaded and used)

The exported names are listed in `__init__.pyi`; the module of a name is imported when the name is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
