"""The privacy card: what a bot was trained on, what protects it, what was attacked, and what was not.

Guarantees: made from a report alone, a model-card section with Hugging Face front matter (`card_metadata`); every
number keeps its interval and n; what was not measured is named, with its reason (`card_gaps`), and never written as
zero; no formal guarantee reads "no formal guarantee", never as an epsilon, and "unknown" for a bot that others trained.
No value of any dialogue and no text of the bot is in it: names of metrics, domains, recipes and data, counts, hashes,
and reasons that libraries of ours wrote.

What voids it: a report edited by hand, or a data set whose very name is private.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from hushbot.evaluation.card_gaps import ATTACKS, UTILITY, VERDICTS, untested
from hushbot.evaluation.card_metadata import front_matter
from hushbot.evaluation.card_rerun import how_to_rerun, rerun_command
from hushbot.evaluation.card_words import NOT_MEASURED, bullets, cells, data_name, plain, table
from hushbot.evaluation.tradeoff import arm_name, control_of, is_foreign
from hushbot.run import write_atomically
from hushbot.types import AttackResult, AuditReport, PrivacyInfo, as_estimate

__all__ = [
    "ATTACKS",
    "CARD_NAME",
    "UTILITY",
    "front_matter",
    "privacy_card",
    "recipe_notes",
    "rerun_command",
    "untested",
    "write_card",
]

CARD_NAME = "privacy_card.md"
_DOMAIN_METRIC = "joint_goal_accuracy"
"""What is shown of each domain; the report has more."""
_UNITS = {"train": "training", "utility": "measuring utility", "audit": "the audit"}


def write_card(report: AuditReport, folder: Path) -> Path:
    """Write the card into a run directory; return where it lies."""
    path = folder / CARD_NAME
    write_atomically(path, privacy_card(report).encode("utf-8"))
    return path


def privacy_card(report: AuditReport) -> str:
    """Return the whole card: front matter and sections."""
    front = yaml.safe_dump(front_matter(report), sort_keys=False, allow_unicode=True, width=1000)
    sections = [
        f"# Privacy card: {plain(arm_name(report))}, seed {report.run.seed}",
        *_status(report),
        "## What was trained\n\n" + bullets(_training(report)),
        "## Formal guarantee\n\n" + _guarantee(report),
        "## Utility\n\n" + _utility(report),
        "## Attacks\n\n" + _attacks(report),
        "## What was not tested\n\n" + bullets(untested(report)),
        "## What it cost\n\n" + bullets(_cost(report)),
        "## How to run it again\n\n" + how_to_rerun(report),
    ]
    return f"---\n{front}---\n\n" + "\n\n".join(sections) + "\n"


def _status(report: AuditReport) -> Iterator[str]:
    if report.status == "complete":
        return
    # The error itself may quote what could not be read, so it stays in the report.
    why = "; the error stands in report.json" if report.error else ""
    yield f"> **This audit is {report.status}**: what is missing below was not measured{why}."


def _training(report: AuditReport) -> Iterator[str]:
    data, run = report.data, report.run
    if is_foreign(report):
        yield f"model: `{plain(arm_name(report))}`, trained by others: by which recipe is unknown"
    else:
        yield f"recipe stack: `{plain(arm_name(report))}`"
    if run.tokens_trained:
        yield (
            f"trained on {data.members} dialogues of {plain(data_name(report))} "
            f"({run.tokens_trained} tokens read, {data.supervised_tokens} of them with a loss in one pass)"
        )
    else:
        yield (
            f"this run records no training: it measures the model as it was given, against {data.members} "
            f"dialogues of {plain(data_name(report))} that count as members"
        )
    yield (
        f"held out: {data.nonmembers} non-members, {data.calibration} for calibration, {data.controls} as controls; "
        f"{data.domains} domains, {data.slots} slots"
    )
    yield f"weights `{run.weights_sha256 or 'not hashed'}`, data `{run.data_sha256}`"
    yield from (plain(note) for note in recipe_notes(report))


def recipe_notes(report: AuditReport) -> list[str]:
    """Return the notes that a report's recipes wrote of their own work: counts and shares, no values."""
    return [note for note in report.notes if note.startswith(tuple(f"{name}: " for name in report.recipe.stack))]


def _guarantee(report: AuditReport) -> str:
    privacy = report.recipe.privacy
    if privacy is None and is_foreign(report):
        return (
            "**Unknown.** Whether the training was differentially private cannot be seen from here, so nothing formal "
            "is claimed. What speaks for this bot is what the attacks below could not find."
        )
    if privacy is None:
        return (
            "**No formal guarantee.** The training was not differentially private, so there is no epsilon (which is "
            "not an epsilon of 0). What protects this bot is what the attacks below could not find."
        )
    facts = [
        f"unit: one {plain(privacy.unit)} ({plain(privacy.adjacency)})",
        _bound(privacy),
        f"accountant: {plain(privacy.accountant)}; noise multiplier {privacy.noise_multiplier:.6g}, "
        f"clipping norm {privacy.max_grad_norm:.6g}, sampling rate {privacy.sample_rate:.6g}, {privacy.steps} steps",
        "noise from a cryptographically secure generator"
        if privacy.secure_rng
        else "noise from a generator that is **not** cryptographically secure",
    ]
    facts += [f"units: {privacy.n_units}, taken as public"] if privacy.n_units else []
    facts += [f"calibrated for epsilon {privacy.target_epsilon:.6g}"] if privacy.target_epsilon is not None else []
    facts += [f"gradients: {plain(privacy.engine)}"] if privacy.engine else []
    covers = plain(privacy.covers) or "the report does not say"
    missing = [plain(item) for item in privacy.does_not_cover] or ["the report does not say"]
    return f"{bullets(facts)}\n\nIt covers: {covers}.\n\nIt does **not** cover:\n\n{bullets(missing)}"


def _bound(privacy: PrivacyInfo) -> str:
    if not math.isfinite(privacy.epsilon):
        return f"**no finite epsilon** at delta {privacy.delta:g}: the accounting gives no guarantee"
    other = ""
    if privacy.epsilon_at_1e5 is not None and privacy.delta != 1e-5:
        other = f" (epsilon = {privacy.epsilon_at_1e5:.4g} at delta = 1e-05)"
    return f"**epsilon = {privacy.epsilon:.4g} at delta = {privacy.delta:.4g}**{other}"


def _utility(report: AuditReport) -> str:
    if not report.utility:
        return f"{NOT_MEASURED.capitalize()}."
    rows = [[f"`{plain(name)}`", *cells(estimate)] for name, estimate in report.utility.items()]
    shown = table(["metric", "value", "interval", "n"], rows)
    return "\n\n".join([shown, "Higher is better, except for perplexity.", *_domains(report)])


def _domains(report: AuditReport) -> Iterator[str]:
    """Yield how well the bot does by domain, in one table; nothing where nobody looked."""
    if not report.utility_by_domain:
        return
    rows = [
        [f"`{plain(name)}`", *cells(numbers.get(_DOMAIN_METRIC))] for name, numbers in report.utility_by_domain.items()
    ]
    yield f"`{_DOMAIN_METRIC}` by domain, over the turns in which it is talked about:"
    yield table(["domain", "value", "interval", "n"], rows)


def _attacks(report: AuditReport) -> str:
    if not report.attacks:
        return "No attack was run, so nothing is known of what this bot gives away."
    rows = [_attack_row(name, attack) for name, attack in report.attacks.items()]
    head = ["attack", "reads", "verdict", "headline", "value", "interval", "n", "control", "control's value"]
    reading = (
        "Higher is more leakage. The control is the same number where there can be no leak: "
        "read a headline only beside it. `no leak detected` says that this attack at this size found nothing, "
        "not that there is nothing."
    )
    return "\n\n".join([table(head, rows), reading, *_split_alone(report)])


def _split_alone(report: AuditReport) -> Iterator[str]:
    """Yield what the texts of both sides tell of who is a member, without any bot; nothing where nobody looked."""
    found = {
        name: ", ".join(_blind_numbers(attack.blind))
        for name, attack in report.attacks.items()
        if attack.blind is not None
    }
    lines = [f"beside `{plain(name)}`: {numbers}" for name, numbers in found.items() if numbers]
    if lines:
        yield (
            "What the split alone tells (`blind`), from texts and without asking any bot; 0.5 is chance, and only what "
            f"exceeds it says anything of the bot:\n\n{bullets(lines)}"
        )


def _blind_numbers(blind: Mapping[str, object]) -> Iterator[str]:
    """Yield every area under a curve in a blind block, with its interval."""
    for key, number in blind.items():
        if key.endswith("auc") and (estimate := as_estimate(number)) is not None:
            value, interval, n = cells(estimate)
            yield f"`{plain(key)}` {value}" + (f" ({interval}, n = {n})" if value != NOT_MEASURED else "")


def _attack_row(name: str, attack: AttackResult) -> list[str]:
    label, control = control_of(name, attack)
    value, interval, n = cells(control)
    shown = value if control is None or control.value is None else f"{value}; {interval}; n = {n}"
    reads = "texts" if attack.threat_model == "text" else "texts and probabilities"
    reads = "the split alone, no bot" if name == "blind" else reads
    headline = [f"`{plain(attack.headline.metric)}`", *cells(attack.headline.estimate)]
    return [f"`{plain(name)}`", reads, VERDICTS[attack.verdict], *headline, plain(label) or "none", shown]


def _cost(report: AuditReport) -> Iterator[str]:
    """Yield time, memory and latency; what was not measured says so."""
    run = report.run
    seconds = [f"{_UNITS.get(part, plain(part))} {spent:.0f} s" for part, spent in run.seconds.items()]
    yield f"time: {', '.join(seconds) or NOT_MEASURED}"
    memory = [f"{_UNITS.get(part, plain(part))} {used:.0f} MB" for part, used in run.peak_memory_mb.items()]
    yield f"most memory held: {', '.join(memory) or NOT_MEASURED}"
    value, interval, n = cells(run.seconds_per_turn)
    measured = value != NOT_MEASURED
    yield f"answering one turn: {f'{value} s, {interval}, n = {n}, on {plain(run.device)}' if measured else value}"
