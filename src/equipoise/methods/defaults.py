"""The defaults of a goal, the same in Python, on the command line and in studies; the command line shows them without importing more."""

DEFAULT_MEASURE = "eod"
DEFAULT_PERFORMANCE = "balanced_accuracy"
DEFAULT_SELECTION = "honest"
DEFAULT_MAX_LOSS = 0.02  # of the original's performance, for a goal with neither min_performance nor max_loss
