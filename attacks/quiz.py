"""Pop Quiz: does a bot answer multiple-choice questions about its training records better than about others?

Threat model: the attacker holds a record and asks whether the bot was trained on it. In `text` mode it reads letters
that the bot writes; in `score` mode, the default, it reads log-probabilities, for a task bot does not answer questions.
Mode, language and writer are chosen before the run.

Records are in `hushbot.attacks.quiz_records`, questions in `quiz_questions`, their wording in `quiz_writers`, the two
ways of answering in `quiz_answers`, the statistics and the verdict in `quiz_measures`.

Guarantees: members and non-members are asked the same way, in one order that knows no side; the bot before fine-tuning
(`control.base`) and a guesser without a model (`blind`) answer the same questions; a failed query, of bot, base or
writer, makes the result inconclusive. `leak` is said only if the AUC's interval lies above 0.5 and its paired
difference to the base above 0 and, where guessing or the records' words alone tell the sides apart, to these as well.
Fewer than 100 non-members, sides that differ by themselves without a leak being shown, and a bot that does not take
part in the quiz, are inconclusive.

Voids it: members that were not drawn at random; near-copies of members among the non-members.

Source: Pop Quiz Attack: Black-box Membership Inference Attacks Against Large Language Models (arXiv 2605.06423).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from hushbot.attacks.blind_baseline import N_PERMUTATIONS
from hushbot.attacks.quiz_answers import Answers, answer_by_score, answer_in_text
from hushbot.attacks.quiz_measures import (
    Evidence,
    breakdown,
    confidences,
    credits_of,
    doubt_of,
    guess,
    judge,
    over,
    rates,
    read_blind,
    rows_of,
    unparsable,
)
from hushbot.attacks.quiz_questions import COMPLEXITIES, Pool, Question, ask
from hushbot.attacks.quiz_records import GRANULARITIES, Quizzed, RecordFile, choose, records_of
from hushbot.attacks.quiz_writers import TemplateWriter
from hushbot.errors import AuditError, ConfigError
from hushbot.protocols import Target
from hushbot.schema import Schema
from hushbot.stats import Bootstrap, as_estimate, unmeasured
from hushbot.types import AttackResult, AuditSplit, Headline, Tier, Verdict

LANGUAGES = ("record", "question")


class _Paper(NamedTuple):
    """The questions, ready to be asked."""

    questions: list[Question]
    pool: Pool
    n_nonmembers: int
    notes: list[str]


@dataclass(frozen=True, kw_only=True)
class Quiz:
    """Ask about the records of members and non-members and see whose answers are right more often."""

    needs: ClassVar[Tier] = "text"
    """`mode=score` needs log-probabilities as well."""

    mode: Literal["score", "text"] = "score"
    """`score`: which option is the most probable; `text`: which letter the bot writes. Chosen before the run."""
    language: Literal["record", "question"] = "record"
    """For scores: complete the record as it was taught (its state, its prose), or answer the worded question."""
    granularities: Sequence[str] = ("structured",)
    """Records of a dialogue: `structured` (its final state), `prose` (the response with marked values), or both."""
    n_questions: int = 4
    """Questions per record and complexity."""
    complexities: Sequence[str] = ("simple",)
    """Wordings: `simple`, `complex`, or both."""
    subject: str = ""
    """The slot that names a record, such as `name`, and is not asked about; empty: other fields name it."""
    max_records: int | None = 400
    """Largest number of members, and of non-members, drawn at random; None takes all."""
    records: RecordFile | None = None
    """A file of records to ask about instead of dialogues; it says who was a member."""
    writer: Any = field(default_factory=TemplateWriter)
    """Who words the questions: TemplateWriter, TargetWriter, EndpointWriter."""
    layout: Literal["plain", "dialogue"] = "plain"
    """In `text` mode: plain lines, or a turn of a dialogue in the bot's own layout."""
    max_new_tokens: int = 16
    """In `text` mode: where an answer is cut."""
    level: float = 0.95
    """Coverage of the intervals."""
    n_draws: int = 2000
    """Bootstrap draws per interval, at least 100."""
    n_permutations: int = N_PERMUTATIONS
    """Splits dealt anew to calibrate the blind classifier's interval, at least 99."""

    def __post_init__(self) -> None:
        checks = (
            ("mode", self.mode in ("score", "text"), "'score' or 'text'"),
            ("language", self.language in LANGUAGES, f"one of {', '.join(LANGUAGES)}"),
            ("granularities", _some_of(self.granularities, GRANULARITIES), f"some of {', '.join(GRANULARITIES)}"),
            ("n_questions", self.n_questions >= 1, "at least 1"),
            ("complexities", _some_of(self.complexities, COMPLEXITIES), f"some of {', '.join(COMPLEXITIES)}"),
            (
                "complexities",
                self.asks_in_words or tuple(self.complexities) == ("simple",),
                "[simple] where nothing is worded; set mode=text or language=question",
            ),
            ("max_records", self.max_records is None or self.max_records >= 1, "at least 1 or null"),
            ("writer", callable(getattr(self.writer, "write", None)), "a component with write()"),
            ("layout", self.layout in ("plain", "dialogue"), "'plain' or 'dialogue'"),
            ("max_new_tokens", self.max_new_tokens >= 1, "at least 1"),
            ("level", 0 < self.level < 1, "in (0, 1)"),
            ("n_draws", self.n_draws >= 100, "at least 100"),
            ("n_permutations", self.n_permutations >= 99, "at least 99"),
        )
        problems = [
            f"{name}={getattr(self, name)!r} must be {rule}; set attack.quiz.{name}"
            for name, is_right, rule in checks
            if not is_right
        ]
        if problems:
            raise ConfigError(*problems)
        for name in ("granularities", "complexities"):
            object.__setattr__(self, name, tuple(getattr(self, name)))  # a YAML list makes the same attack

    @property
    def asks_in_words(self) -> bool:
        """Return whether the wording of a question is used at all."""
        return self.mode == "text" or self.language == "question"

    def run(self, target: Target, split: AuditSplit, schema: Schema, *, seed: int) -> AttackResult:
        """Quiz the target and, as controls, its base and a guesser."""
        started = time.perf_counter()
        result = self._run(target, split, schema, seed)
        return result.model_copy(update={"seconds": time.perf_counter() - started})

    def _run(self, target: Target, split: AuditSplit, schema: Schema, seed: int) -> AttackResult:
        if self.mode == "score" and getattr(target, "tier", "full") != "full":
            reason = f"mode=score needs log-probabilities, the target's tier is {getattr(target, 'tier', '')}"
            return self._unanswered("not_measured", f"{reason}; set attack.quiz.mode=text", [])
        notes = [f"mode={self.mode}" + (f", language={self.language}" if self.mode == "score" else "")]
        try:
            paper = self._paper(split, schema, seed)
        except AuditError as error:
            return self._unanswered("inconclusive", f"the questions could not be written: {error}", notes)
        notes += paper.notes
        if len({question.record.is_member for question in paper.questions}) < 2:
            return self._unanswered("not_measured", "members or non-members have no record to ask about", notes)
        try:
            answers = self._answers(target, paper.questions, seed)
        except AuditError as error:
            return self._unanswered("inconclusive", f"a query to the target failed: {error}", notes)
        return self._judged(target, paper, answers, notes, seed)

    def _paper(self, split: AuditSplit, schema: Schema, seed: int) -> _Paper:
        """Collect records and make their questions."""
        found: Quizzed
        if self.records is not None:
            found = choose(self.records.read(), max_records=self.max_records, seed=seed)
        else:
            found = records_of(split, self.granularities, max_records=self.max_records, seed=seed)
        pool = Pool(found.records, schema)
        asked = ask(
            found.records,
            pool,
            n_questions=self.n_questions,
            complexities=self.complexities,
            subject=self.subject,
            seed=seed,
        )
        questions, notes = asked.questions, [*found.notes, *asked.notes]
        if self.asks_in_words and questions:
            written = self.writer.write(questions, subject=self.subject, seed=seed)
            questions, notes = written.questions, [*notes, *written.notes]
        nonmembers = {question.record.id for question in questions if not question.record.is_member}
        return _Paper(questions, pool, len(nonmembers), notes)

    def _answers(self, target: Target, questions: Sequence[Question], seed: int) -> Answers:
        if self.mode == "score":
            return answer_by_score(target, questions, language=self.language)
        return answer_in_text(target, questions, layout=self.layout, max_new_tokens=self.max_new_tokens, seed=seed)

    def _judged(self, target: Target, paper: _Paper, answers: Answers, notes: list[str], seed: int) -> AttackResult:
        """Measure the answers beside those of the base and the guesser, and judge them."""
        bootstrap = Bootstrap(level=self.level, n_draws=self.n_draws, seed=seed)
        questions, queries = paper.questions, answers.n_queries
        credits = credits_of(questions, answers.chosen)
        found, guessed = confidences(questions, credits), confidences(questions, guess(questions, paper.pool))
        blind = read_blind(found, bootstrap, self.n_permutations)
        metrics = rates(found, bootstrap) | breakdown(questions, credits, bootstrap)
        n_members = len(found.members)
        metrics["delta_auc_over_guess"] = over(found, guessed.sides, bootstrap)
        metrics["delta_auc_over_blind"] = over(
            found, (blind.strongest[:n_members], blind.strongest[n_members:]), bootstrap
        )
        if self.mode == "text":
            metrics |= unparsable(questions, answers.chosen, bootstrap)
        base, failure = None, ""
        if target.reference is None:
            notes = [*notes, "no base model to compare with: the control is missing"]
        else:
            try:
                others = self._answers(target.reference, questions, seed)
                queries += others.n_queries
                known = confidences(questions, credits_of(questions, others.chosen))
                base = rates(known, bootstrap)
                metrics["delta_auc_over_base"] = over(found, known.sides, bootstrap)
            except AuditError as error:
                failure = f"a query to the base model failed: {error}"
        by_guess = rates(guessed, bootstrap)
        doubt = doubt_of(answers.chosen) if self.mode == "text" else ""
        verdict, reasons = judge(
            Evidence(metrics, as_estimate(by_guess["auc"]), blind.confounds, paper.n_nonmembers, doubt)
        )
        metrics |= {"members": n_members, "nonmembers": len(found.nonmembers), "questions": len(questions)}
        return AttackResult(
            verdict="inconclusive" if failure else verdict,
            headline=Headline(metric="auc", estimate=as_estimate(metrics["auc"]), key="auc"),
            metrics=metrics,
            control={"base": base},
            blind={**blind.shown(), **{f"guess/{name}": value for name, value in by_guess.items()}},
            threat_model=self.mode,
            queries=queries,
            notes=[*notes, *reasons, *([failure] if failure else [])],
            units=found.units,
            rows=rows_of(questions, answers.chosen),
        )

    def _unanswered(self, verdict: Verdict, reason: str, notes: Sequence[str]) -> AttackResult:
        return AttackResult(
            verdict=verdict,
            headline=Headline(metric="auc", estimate=unmeasured(reason), key="auc"),
            threat_model=self.mode,
            notes=[*notes, reason],
        )


def _some_of(chosen: Sequence[str], allowed: Sequence[str]) -> bool:
    return bool(chosen) and set(chosen) <= set(allowed) and len(set(chosen)) == len(chosen)


__all__ = ["Quiz"]
