"""From a case (data, model, goal and report of a hospital) to its audit or repair, and the bundle of a repair, written and served.

- case (`eq.Case`: sections, rules), audit (`audit_case`), repair (`prepare_repair`: dry run, methods tried)
- score_checks (`eq.check_scores`): the model's scores compared with known ones
- bundle: schema (run.json), save and folder (written), verify and bundle (loaded and used)

The exported names are listed in `__init__.pyi`; the module of a name is imported when the name is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
