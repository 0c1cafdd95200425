"""Corpora: every format in, one `Corpus` out.

Guarantees: importing this package loads no format's reader; a reader is imported when it is asked for.

>>> corpus = load("bookings", half="public")
>>> len(split(corpus, seed=0).members) == len(split(corpus, seed=0).nonmembers)
True
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from hushbot.corpora.corpus import Corpus
from hushbot.corpora.split import SplitReport, SplitSettings, make_split, split
from hushbot.errors import ConfigError

# Configurations name `hushbot.corpora.SplitSettings`: the function `split` hides the module of that name from
# a look-up by dotted path.
__all__ = ["Corpus", "SplitReport", "SplitSettings", "load", "make_split", "split"]


class _Reader(NamedTuple):
    """Where a named corpus is read, and with what fixed."""

    module: str
    function: str
    fixed: Mapping[str, object]

    def resolve(self) -> Callable[..., Corpus]:
        found: Callable[..., Corpus] = getattr(import_module(f"hushbot.corpora.{self.module}"), self.function)
        return found


_READERS = {
    "bookings": _Reader("bookings", "load_bookings", {}),
    "hr_multiwoz": _Reader("delta", "load_delta", {}),
    "hub": _Reader("hub", "load_hub", {}),
    "medical_records": _Reader("medical_records", "load_medical_records", {}),
    "multiwoz20": _Reader("multiwoz", "load_multiwoz", {"version": "2.0"}),
    "multiwoz21": _Reader("multiwoz", "load_multiwoz", {"version": "2.1"}),
    "multiwoz22": _Reader("schema_guided", "load_schema_guided", {"name": "multiwoz 2.2"}),
    "multiwoz24": _Reader("multiwoz", "load_multiwoz", {"version": "2.4"}),
    "schema_guided": _Reader("schema_guided", "load_schema_guided", {}),
    "sgd": _Reader("schema_guided", "load_schema_guided", {"name": "sgd"}),
    "unified": _Reader("unified", "load_unified", {}),
}


def load(name_or_path: str | Path, **options: object) -> Corpus:
    """Load a corpus by name, or from a folder or file whose format is recognised.

    Args:
        name_or_path: `bookings` (bundled), `medical_records` (invented when asked for), `multiwoz20`, `multiwoz21`,
            `multiwoz22`, `multiwoz24`, `sgd`, `schema_guided`, `unified`, `hr_multiwoz` (each with `path=...`),
            `hub` (with `rows_or_id=...`), or a path.
        options: What the reader of that format takes, such as `path`, `on_error` or `splits`.

    Raises:
        ConfigError: No such name or path, or an option that the reader does not take.
        DataError: The data are missing or malformed.
    """
    reader = _READERS.get(str(name_or_path))
    if reader is None:
        name, path = _recognise(Path(name_or_path))
        reader = _READERS[name]
        options = {"path": path, **options}
    function = reader.resolve()
    _check_options(str(name_or_path), function, reader, options)
    return function(**reader.fixed, **options)


def _recognise(path: Path) -> tuple[str, Path]:
    if not path.exists():
        raise ConfigError(
            f"data={str(path)!r} is neither a corpus ({', '.join(sorted(_READERS))}) nor an existing path"
        )
    from hushbot.corpora.recognise import recognise

    return recognise(path)


def _check_options(name: str, function: Callable[..., Any], reader: _Reader, options: Mapping[str, object]) -> None:
    parameters = inspect.signature(function).parameters
    accepted = [option for option in parameters if option not in reader.fixed]
    problems = [
        f"data.{option}: {name} takes no such option; it takes {', '.join(accepted)}"
        for option in options
        if option not in accepted
    ]
    problems += [
        f"data.{option} is missing: {name} needs it"
        for option in accepted
        if parameters[option].default is inspect.Parameter.empty and option not in options
    ]
    if problems:
        raise ConfigError(*problems)
