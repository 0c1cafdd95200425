"""The page's template: how it is filled, what it may load, and how texts and numbers become HTML.

Guarantees: everything that is put in is escaped, but for the charts (`hushbot.evaluation.page_charts`, which escapes
its texts itself) and the page's own script and stylesheet; the content security policy names these two by hash and
allows nothing else, so that a hostile text could neither run nor load anything even where an escape was forgotten.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping

import jinja2
from markupsafe import Markup, escape

from hushbot.evaluation.card import recipe_notes
from hushbot.evaluation.card_rerun import rerun_command
from hushbot.evaluation.page_charts import SHAPES, shape_path
from hushbot.evaluation.page_tables import text_of
from hushbot.evaluation.wording import guarantee, show, summary
from hushbot.types import Metric

POLICY = "default-src 'none'; style-src '{style}'; script-src '{script}'; form-action 'none'; base-uri 'none'"
VERDICTS = {
    "leak": "leak",
    "no_leak_detected": "no leak detected",
    "inconclusive": "inconclusive",
    "not_measured": "not measured",
}


def fill_template(content: Mapping[str, object]) -> str:
    """Return the page's text."""
    environment = _environment()
    style, script = (_source(environment, name) for name in ("page.css", "page.js"))
    policy = POLICY.format(style=_csp_hash(style), script=_csp_hash(script))
    return environment.get_template("report.html").render(
        {"style": style, "script": script, "policy": policy} | dict(content)
    )


def _environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hushbot.evaluation", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "show": show,
        "kept": kept_together,
        "text": text_of,
        "code": code_text,
        "amount": amount_text,
    }
    environment.globals |= {
        "guarantee": guarantee,
        "recipe_notes": recipe_notes,
        "rerun_command": rerun_command,
        "shape_of": shape_of,
        "summary": summary,
        "VERDICTS": VERDICTS,
    }
    return environment


def _source(environment: jinja2.Environment, name: str) -> Markup:
    """Return the page's own stylesheet or script, the only texts that are not escaped."""
    if environment.loader is None:
        raise TypeError("the page's templates have no loader")
    return Markup(environment.loader.get_source(environment, name)[0])


def _csp_hash(text: str) -> str:
    """Return a content security policy's name of an inline script or stylesheet."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def code_text(text: str) -> Markup:
    """Escape a text and set what stands between backticks as code."""
    parts = re.split(r"`([^`]*)`", text)
    return Markup("").join(Markup("<code>{}</code>").format(p) if i % 2 else escape(p) for i, p in enumerate(parts))


def kept_together(number: Metric) -> Markup:
    """Write a number so that a narrow cell breaks the line before its interval and not within."""
    head, *rest = re.split(r" (?=[\[(])", show(number))
    return escape(head) + Markup("").join(Markup(" <span>{}</span>").format(part) for part in rest)


def shape_of(number: int) -> str:
    """Return the outline of an arm's mark in a legend."""
    return shape_path(SHAPES[number % len(SHAPES)], 6, 6, 4)


def amount_text(amount: float) -> str:
    """Write a count or a number of seconds with thin groups of three digits."""
    return f"{amount:,.0f}".replace(",", "\u202f") if abs(amount) >= 10 else f"{amount:.3g}"
