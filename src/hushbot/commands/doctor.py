"""`hushbot doctor`: what this machine can do, or what an endpoint tells and whether it is true."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from hushbot.errors import AuditError, ConfigError

if TYPE_CHECKING:
    from hushbot.targets.http import HTTPTarget

_SETTINGS = ("url", "model", "key_variable", "start_text")


def main(settings: Sequence[str]) -> None:
    """Examine and print; exit 1 where what was looked at is of no use."""
    if not settings:
        from hushbot.installation import facts

        found = facts()
        _print("this machine", found)
        if not all(fact.is_fine for fact in found):
            raise AuditError("this machine cannot do everything that hushbot does; see the lines marked !")
        return
    from hushbot.targets.doctor import examine

    target = endpoint(settings)
    diagnosis = examine(target)
    _print(f"endpoint {target.connection.place}", diagnosis.findings)
    if diagnosis.tier is None:
        raise AuditError("the endpoint cannot be audited; see the last line above")
    print(f"tier: {diagnosis.tier}")


def endpoint(settings: Sequence[str]) -> HTTPTarget:
    """Return the endpoint that `key=value` settings name.

    Raises:
        ConfigError: A setting is unknown, missing or wrong.
    """
    from hushbot.composition import argument_problems, build
    from hushbot.targets.connection import Pace
    from hushbot.targets.http import HTTPTarget

    given: dict[str, str] = {}
    pace: dict[str, str] = {}
    problems = []
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not (key in _SETTINGS or key.startswith("pace.")):
            # Without a name it is not shown: somebody may have put a key here.
            shown = repr(key) if equals else "a word without `=`"
            problems.append(f"{shown} is no setting of an endpoint; give {', '.join(_SETTINGS)} or pace.NAME")
        elif key.startswith("pace."):
            pace[key.removeprefix("pace.")] = value
        else:
            given[key] = value
    problems += [f"{name} is missing; give url=URL model=NAME" for name in _SETTINGS[:2] if not given.get(name)]
    problems += [f"pace.{problem}" for problem in argument_problems(Pace, pace)]
    if problems:
        raise ConfigError(*problems)
    node: dict[str, Any] = {"_target_": f"{HTTPTarget.__module__}.HTTPTarget", **given}
    return build({**node, "pace": {"_target_": f"{Pace.__module__}.Pace", **pace}}, "endpoint")  # type: ignore[no-any-return]


def _print(title: str, lines: Iterable[tuple[str, bool, str]]) -> None:
    """Print one line per finding; what a server may have said is no markup."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("", "what", "found", title=title, title_justify="left")
    for name, is_fine, detail in lines:
        table.add_row(Text("ok" if is_fine else "!", "green" if is_fine else "red"), Text(name), Text(detail))
    Console().print(table)
