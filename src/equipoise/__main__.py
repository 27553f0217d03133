"""`python -m equipoise`: the same as the command `equipoise`."""

import os
import sys

try:  # before anything else is imported: `python -m` puts the current folder first, whose files are data, and a torch.py in it would be run
    if sys.path[:1] == [os.getcwd()] and not sys.flags.safe_path:  # noqa: PTH109 (pathlib could be one of those files)
        del sys.path[0]
except OSError:  # the current folder is gone
    pass


def start() -> None:
    """Runs the command."""
    from equipoise.cli import main

    main()


if __name__ == "__main__":
    start()
