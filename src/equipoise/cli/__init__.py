"""The command line: reads arguments, calls the library and prints. One file a command."""

from equipoise.cli.app import main, run

__all__ = ["main", "run"]
