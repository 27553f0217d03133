"""Studies: the data sets of the catalogue, plans, tasks, executors, results on disk, their summaries and the tables of the paper.

The map of what this room exports is `__init__.pyi`, one line per name; a name's module is imported when the name is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
