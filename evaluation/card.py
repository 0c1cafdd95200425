"""The privacy card: what a bot was trained on, what protects it, what was attacked, and what was not.

Guarantees: made from a report alone, a model-card section with Hugging Face front matter; every number keeps its
interval and n; what was not measured is named, with its reason, and never written as zero; no formal guarantee reads
"no formal guarantee", never as an epsilon, and "unknown" for a bot that others trained. No value of any dialogue and no
text of the bot is in it: names of metrics, recipes and data, counts, hashes, and reasons that libraries of ours wrote.

What voids it: a report edited by hand, or a data set whose very name is private.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from hushbot.evaluation.tradeoff import AUDIT_NOTE, arm_name, control_of, is_audit, is_foreign
from hushbot.run import write_atomically
from hushbot.types import AttackResult, AuditReport, Estimate, PrivacyInfo

CARD_NAME = "privacy_card.md"
ATTACKS = (
    "untargeted_extraction",
    "targeted_extraction",
    "schema_probe",
    "membership",
    "blind",
    "quiz",
    "identifier_leak",
    "canaries",
)
"""Every attack of the suite; one that a report lacks was not run."""
UTILITY = ("joint_goal_accuracy", "state_precision", "state_recall", "state_f1", "bleu", "perplexity")
"""What is measured of every bot."""
VERDICTS = {
    "leak": "**leak**",
    "no_leak_detected": "no leak detected",
    "inconclusive": "inconclusive",
    "not_measured": "not measured",
}
NOT_MEASURED = "not measured"
_LONGEST_REASON = 240


def write_card(report: AuditReport, folder: Path) -> Path:
    """Write the card into a run directory; return where it lies."""
    path = folder / CARD_NAME
    write_atomically(path, privacy_card(report).encode("utf-8"))
    return path


def privacy_card(report: AuditReport) -> str:
    """Return the whole card: front matter and sections."""
    front = yaml.safe_dump(front_matter(report), sort_keys=False, allow_unicode=True, width=1000)
    sections = [
        f"# Privacy card: {_plain(arm_name(report))}, seed {report.run.seed}",
        *_status(report),
        "## What was trained\n\n" + _bullets(_training(report)),
        "## Formal guarantee\n\n" + _guarantee(report),
        "## Utility\n\n" + _utility(report),
        "## Attacks\n\n" + _attacks(report),
        "## What was not tested\n\n" + _bullets(_untested(report)),
        "## How to run it again\n\n" + _rerun(report),
    ]
    return f"---\n{front}---\n\n" + "\n\n".join(sections) + "\n"


def front_matter(report: AuditReport) -> dict[str, Any]:
    """Return the metadata of a Hugging Face model card; a metric that was not measured has no entry."""
    slug = re.sub(r"[^A-Za-z0-9._/-]+", "-", _data_name(report)).strip("-./") or "unnamed"
    recipes = [] if is_foreign(report) else report.recipe.stack
    tags = ["hushbot", "task-oriented-dialogue", "privacy", "memorisation", *recipes]
    tags += ["differential-privacy"] if report.recipe.privacy is not None else []
    front: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": list(dict.fromkeys(tags)),
        "datasets": [slug],
    }
    metrics = [
        {"type": name, "name": name.replace("_", " "), "value": round(estimate.value, 6)}
        for name, estimate in report.utility.items()
        if estimate.value is not None
    ]
    if metrics:
        task = {"type": "text-generation", "name": "task-oriented dialogue"}
        dataset = {"type": slug, "name": _data_name(report), "split": "non-members"}
        results = [{"task": task, "dataset": dataset, "metrics": metrics}]
        front["model-index"] = [{"name": report.run.id, "results": results}]
    return front


def _data_name(report: AuditReport) -> str:
    """Return the data's name; of a path its last part, since folders are a machine's and not the card's."""
    name = report.data.name
    return Path(name).name if name.startswith(("/", "~", ".")) or "\\" in name else name


def _status(report: AuditReport) -> Iterator[str]:
    if report.status == "complete":
        return
    # The error itself may quote what could not be read, so it stays in the report.
    why = "; the error stands in report.json" if report.error else ""
    yield f"> **This audit is {report.status}**: what is missing below was not measured{why}."


def _training(report: AuditReport) -> Iterator[str]:
    data, run = report.data, report.run
    if is_foreign(report):
        yield f"model: `{_plain(arm_name(report))}`, trained by others: by which recipe is unknown"
    else:
        yield f"recipe stack: `{_plain(arm_name(report))}`"
    if run.tokens_trained:
        yield (
            f"trained on {data.members} dialogues of {_plain(_data_name(report))} "
            f"({run.tokens_trained} tokens read, {data.supervised_tokens} of them with a loss in one pass)"
        )
    else:
        yield (
            f"this run records no training: it measures the model as it was given, against {data.members} "
            f"dialogues of {_plain(_data_name(report))} that count as members"
        )
    yield (
        f"held out: {data.nonmembers} non-members, {data.calibration} for calibration, {data.controls} as controls; "
        f"{data.domains} domains, {data.slots} slots"
    )
    yield f"weights `{run.weights_sha256 or 'not hashed'}`, data `{run.data_sha256}`"
    yield from (_plain(note) for note in recipe_notes(report))


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
        f"unit: one {_plain(privacy.unit)} ({_plain(privacy.adjacency)})",
        _bound(privacy),
        f"accountant: {_plain(privacy.accountant)}; noise multiplier {privacy.noise_multiplier:.6g}, "
        f"clipping norm {privacy.max_grad_norm:.6g}, sampling rate {privacy.sample_rate:.6g}, {privacy.steps} steps",
        "noise from a cryptographically secure generator"
        if privacy.secure_rng
        else "noise from a generator that is **not** cryptographically secure",
    ]
    facts += [f"units: {privacy.n_units}, taken as public"] if privacy.n_units else []
    facts += [f"calibrated for epsilon {privacy.target_epsilon:.6g}"] if privacy.target_epsilon is not None else []
    facts += [f"gradients: {_plain(privacy.engine)}"] if privacy.engine else []
    covers = _plain(privacy.covers) or "the report does not say"
    missing = [_plain(item) for item in privacy.does_not_cover] or ["the report does not say"]
    return f"{_bullets(facts)}\n\nIt covers: {covers}.\n\nIt does **not** cover:\n\n{_bullets(missing)}"


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
    rows = [[f"`{_plain(name)}`", *_cells(estimate)] for name, estimate in report.utility.items()]
    return _table(["metric", "value", "interval", "n"], rows) + "\n\nHigher is better, except for perplexity."


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
    return "\n\n".join([_table(head, rows), reading, *_split_alone(report)])


def _split_alone(report: AuditReport) -> Iterator[str]:
    """Yield what the texts of both sides tell of who is a member, without any bot; nothing where nobody looked."""
    found = {
        name: ", ".join(_blind_numbers(attack.blind))
        for name, attack in report.attacks.items()
        if attack.blind is not None
    }
    lines = [f"beside `{_plain(name)}`: {numbers}" for name, numbers in found.items() if numbers]
    if lines:
        yield (
            "What the split alone tells (`blind`), from texts and without asking any bot; 0.5 is chance, and only what "
            f"exceeds it says anything of the bot:\n\n{_bullets(lines)}"
        )


def _blind_numbers(blind: Mapping[str, Any]) -> Iterator[str]:
    """Yield every area under a curve in a blind block, with its interval."""
    for key, number in blind.items():
        if key.endswith("auc") and isinstance(number, Mapping | Estimate):
            value, interval, n = _cells(Estimate.model_validate(number))
            yield f"`{_plain(key)}` {value}" + (f" ({interval}, n = {n})" if value != NOT_MEASURED else "")


def _attack_row(name: str, attack: AttackResult) -> list[str]:
    label, control = control_of(name, attack)
    value, interval, n = _cells(control)
    shown = value if control is None or control.value is None else f"{value}; {interval}; n = {n}"
    reads = "texts" if attack.threat_model == "text" else "texts and probabilities"
    reads = "the split alone, no bot" if name == "blind" else reads
    headline = [f"`{_plain(attack.headline.metric)}`", *_cells(attack.headline.estimate)]
    return [f"`{_plain(name)}`", reads, VERDICTS[attack.verdict], *headline, _plain(label) or "none", shown]


def _cells(estimate: Estimate | None) -> tuple[str, str, str]:
    """Return value, interval and n; a number without a measurement has none of them."""
    if estimate is None or estimate.value is None:
        return NOT_MEASURED, "-", "-"
    interval = "-"
    if estimate.low is not None and estimate.high is not None:
        interval = f"{estimate.low:.3f} to {estimate.high:.3f} ({estimate.level:.0%})"
    return f"{estimate.value:.3f}", interval, str(estimate.n)


def _untested(report: AuditReport) -> Iterator[str]:
    absent = [f"`{name}`" for name in ATTACKS if name not in report.attacks]
    if absent:
        yield f"attacks that were not run: {', '.join(absent)}"
    for name, attack in report.attacks.items():
        if attack.verdict in ("inconclusive", "not_measured"):
            yield f"`{_plain(name)}`: {VERDICTS[attack.verdict]}; its notes in report.json say why"
        if name == "membership" and attack.blind is None:
            yield "`membership`: what the split alone tells of who is a member (`blind`) was not measured beside it"
        if name != "blind" and control_of(name, attack)[1] is None:
            yield f"`{_plain(name)}` has no control beside its headline"
        numbers = {attack.headline.metric: attack.headline.estimate} | {
            key: number for key, number in attack.metrics.items() if number is None or isinstance(number, Estimate)
        }
        yield from _missing(name, numbers)
    yield from _missing("utility", {name: report.utility.get(name) for name in UTILITY} | report.utility)
    unit = report.recipe.privacy.unit if report.recipe.privacy else "dialogue"
    if unit == "dialogue":
        yield (
            "people: everything here is counted per dialogue; what is said of one dialogue does not hold for "
            "somebody who had several (no user-level guarantee, no user-level test)"
        )
    yield "attackers who hold the weights, see gradients, or put dialogues into the training data"
    yield "attacks that nobody has thought of: only a formal guarantee speaks of those, within what it covers"


def _missing(owner: str, numbers: dict[str, Any]) -> Iterator[str]:
    """Yield one line per reason, naming the numbers that it cost."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for name, number in numbers.items():
        if number is None:
            by_reason["no value in the report"].append(name)
        elif isinstance(number, Estimate) and number.value is None:
            by_reason[number.method.removeprefix(f"{NOT_MEASURED}: ") or "no reason given"].append(name)
    for reason, names in by_reason.items():
        shown = ", ".join(f"`{_plain(name)}`" for name in names[:3])
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        yield f"`{_plain(owner)}`: {shown}{more}: {_plain(reason)}"


def _rerun(report: AuditReport) -> str:
    run = report.run
    versions = ", ".join(f"{_plain(name)} {_plain(version)}" for name, version in run.versions.items())
    facts = [
        f"configuration hash `{run.config_sha256}`: config.yaml in the run directory holds every setting; repeat those "
        "that differ from the defaults as overrides, and the run has the same hash",
        f"run `{_plain(run.id)}`, made {_plain(run.created)} on {_plain(run.device)}",
    ]
    facts += [f"versions: {versions}"] if versions else []
    return f"{_command(report)}\n\n{_bullets(facts)}"


def _command(report: AuditReport) -> str:
    """Return the command that makes such a report, as far as the report knows it."""
    audited = (report.model_extra or {}).get("audited")
    known = audited if isinstance(audited, dict) else {}
    if not is_audit(report):
        command = f"hushbot train recipe={'+'.join(report.recipe.stack)} seed={report.run.seed}"
    elif known.get("target") == "hf":
        sources = {name: known[name] for name in ("model", "adapter") if name in known}
        shown = " ".join(f"{name}={_hub_id(source) or 'PATH'}" for name, source in sources.items())
        command = f"hushbot audit target=hf {shown} seed={report.run.seed}"
    elif known.get("target") == "http":
        model = _hub_id(known.get("model")) or "NAME"
        command = f"hushbot audit target=http url=URL model={model} seed={report.run.seed}"
    elif known.get("target") == "run" or any(note.startswith(AUDIT_NOTE) for note in report.notes):
        command = "hushbot audit target=run run=RUN"
    else:
        return "This report is of `hushbot audit`; which target it attacked stands in config.yaml."
    return f"```sh\n{command}\n```"


def _hub_id(source: object) -> str | None:
    """Return a hub id, which is no path and needs no quotes; None for anything else."""
    return source if isinstance(source, str) and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source) else None


def _bullets(lines: Iterator[str] | Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(text: str) -> str:
    """Put a name or reason on one line, without anything that Markdown or HTML would act on."""
    line = " ".join(text.split())
    line = line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]}..."
    return re.sub(r"[`|<>\[\]*\\]", lambda sign: {"|": "/", "<": "(", ">": ")"}.get(sign[0], "'"), line)
