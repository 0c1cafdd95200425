"""A talk as lines of a terminal, each with the label that says what it is.

Guarantees: plain text in which every mark is a word; no character that could steer a terminal; state entries in
canonical order, with what the turn changed marked.

Voids it: nothing here is masked. What a bot says it says to anybody; what its guards held back arrives masked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from hushbot.evaluation.talking import Reply, Talk
from hushbot.types import DialogueState, SlotValue

Show = Callable[[str, str], None]
"""Takes a label and a text, which may have several lines."""
HELP = "/help says this, /restart begins anew, /state shows what the bot has understood, /quit ends, and so does Ctrl-D"
NOTHING = "(nothing)"
WIDTH = 10
"""Columns of a label."""
_STYLES = {"Bot": "bold", "Guard": "yellow", "Note": "magenta", "Help": "italic"}


def converse(talk: Talk, lines: Iterable[str], show: Show) -> None:
    """Talk until the user quits or there are no more lines.

    Raises:
        AuditError: The bot failed.
    """
    begin(talk, show)
    for line in lines:
        said = line.strip()
        if said == "/quit":
            return
        if said.startswith("/"):
            obey(said, talk, show)
        elif said:
            for label, text in reply_lines(talk.say(said), talk.guards):
                show(label, printable(text))


def begin(talk: Talk, show: Show) -> None:
    """Say what a system says that speaks first."""
    if talk.opening:
        show("Bot", printable(talk.opening))


def obey(command: str, talk: Talk, show: Show) -> None:
    """Do what a line that begins with a slash asks for."""
    if command == "/restart":
        talk.restart()
        show("Help", "all that was said is forgotten")
        begin(talk, show)
    elif command == "/state":
        show("State", printable(state_text(talk.state, talk.state)))
    elif command == "/help":
        show("Help", HELP)
    else:
        show("Help", f"there is no such command; {HELP}")


def reply_lines(reply: Reply, guards: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the label and the text of everything that there is to say about a turn."""
    turn = reply.turn
    state = state_text(turn.in_use, turn.before)
    yield "State", state if turn.state is not None else f"{state}\n(could not be read this time, so it stays as it was)"
    yield "Database", turn.database or NOTHING
    yield "Actions", turn.actions or NOTHING
    yield "Bot", turn.response or NOTHING
    guard = " and ".join(guards)
    for gone in reply.withheld:
        verb = "held back" if gone.pieces else "changed the words, and held nothing back,"
        listed = f": {'; '.join(gone.pieces)}" if gone.pieces else ""
        yield "Guard", f"{guard} {verb} in the {gone.part}{listed}"
    if reply.unfounded:
        found = "; ".join(reply.unfounded)
        yield "Note", f"given by nobody here, so made up, reworded or memorised: {found}"


def state_text(state: DialogueState, before: DialogueState) -> str:
    """Return a state, one line per domain, with what changed marked: `(new)`, `(was north)`, `(dropped)`.

    >>> cheap = SlotValue("hotel", "price", "cheap")
    >>> state_text(frozenset({cheap}), frozenset({SlotValue("hotel", "area", "north")}))
    'hotel: area=north (dropped), price=cheap (new)'
    """
    old = {(triplet.domain, triplet.slot): triplet.value for triplet in before}
    kept = {(triplet.domain, triplet.slot) for triplet in state}
    entries: dict[str, list[str]] = {}
    for triplet in sorted({*state, *(gone for gone in before if (gone.domain, gone.slot) not in kept)}):
        entries.setdefault(triplet.domain, []).append(_entry(triplet, old, kept))
    return "\n".join(f"{domain}: {', '.join(listed)}" for domain, listed in entries.items()) or NOTHING


def _entry(triplet: SlotValue, old: dict[tuple[str, str], str], kept: set[tuple[str, str]]) -> str:
    place = (triplet.domain, triplet.slot)
    if place not in kept:
        mark = " (dropped)"
    elif place not in old:
        mark = " (new)"
    else:
        mark = "" if old[place] == triplet.value else f" (was {old[place]})"
    return f"{triplet.slot}={triplet.value}{mark}"


def printable(text: str) -> str:
    """Return a text without the characters that steer a terminal; a line break stays."""
    return "".join(sign if sign.isprintable() or sign == "\n" else "\N{REPLACEMENT CHARACTER}" for sign in text)


def printer() -> Show:
    """Return what prints a labelled text: in columns on a terminal, else as plain lines, none of them broken."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)

    def show(label: str, text: str) -> None:
        if not console.is_terminal:
            print(label.ljust(WIDTH) + text.replace("\n", "\n" + " " * WIDTH), flush=True)
            return
        style, grid = _STYLES.get(label, "dim"), Table.grid()
        grid.add_column(width=WIDTH)
        grid.add_row(Text(label, style=style), Text(text, style=style))
        console.print(grid)

    return show
