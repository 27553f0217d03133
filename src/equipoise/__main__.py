"""`python -m equipoise`: the same as the command `equipoise`."""

import sys
from contextlib import suppress
from pathlib import Path

with suppress(OSError):  # the current folder may be gone
    if sys.path[:1] == [str(Path.cwd())] and not sys.flags.safe_path:
        del sys.path[0]  # where `python -m` puts the current folder, whose files are data: a torch.py in it would be run


def main() -> None:
    """Runs the command."""
    from equipoise.cli import main as command

    command()


if __name__ == "__main__":
    main()
