"""Commands that refuse an option that takes one value and was given several, of which the parser would silently use the last.

An option that is a setting of a case is refused with the `--set` that reaches it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand

from equipoise.errors import raise_all


class Command(TyperCommand):
    """A command whose options occur once, except for those that are made to be repeated."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:  # completion in a shell parses unfinished commands
            try:
                _, _, parsed = self.make_parser(ctx).parse_args(args=list(args))  # the option of each occurrence, in order
            except Exception as error:
                specification = getattr(self.callback, "specification", None)
                if type(error).__name__ == "NoSuchOption" and specification:  # of click, or of the copy of click in typer
                    from equipoise.cli.options import unknown_option

                    instead = unknown_option(str(getattr(error, "option_name", "")), *specification)
                    if instead is not None:
                        raise instead from None
                raise
            counts = Counter(option for option in parsed if option.param_type_name == "option" and not (option.multiple or option.is_eager))
            repeated = {"/".join([*option.opts, *option.secondary_opts]): count for option, count in counts.items() if count > 1}
            raise_all([f"{flags} was given {count} times. Give it once." for flags, count in repeated.items()])
        return super().parse_args(ctx, args)


class App(typer.Typer):
    """An app of such commands."""

    def command(self, name: str | None = None, *, cls: type[TyperCommand] | None = Command, **options: Any) -> Callable[..., Any]:
        return super().command(name, cls=cls, **options)
