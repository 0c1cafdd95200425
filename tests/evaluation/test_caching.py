"""An audit that was killed asks nothing twice, and leaves nothing in the clear when it is done."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hushbot.composition import compose, find_problems
from hushbot.corpora.corpus import Corpus
from hushbot.corpora.split import SplitReport
from hushbot.errors import AuditError, ConfigError
from hushbot.evaluation import suite
from hushbot.evaluation.caching import KEPT_NOTE, CacheSettings
from hushbot.evaluation.experiment import Experiment
from hushbot.protocols import Target
from hushbot.run import RunDirectory
from hushbot.schema import Schema
from hushbot.types import AttackResult, AuditReport, AuditSplit, Decoding, Estimate, Headline

AUTO, ON, OFF, KEEP = (
    CacheSettings(),
    CacheSettings(enabled=True),
    CacheSettings(enabled=False),
    CacheSettings(keep=True),
)


@dataclass
class Endpoint:
    """Says who it is, and counts."""

    identity: str = "bot"
    reference: Target | None = None
    n_asked: int = field(default=0, init=False)

    def sample(self, prompts: Sequence[str], *, n: int, **_: Any) -> list[list[str]]:
        self.n_asked += n * len(prompts)
        return [[f"secret {prompt} {draw}" for draw in range(n)] for prompt in prompts]

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        self.n_asked += len(prompts)
        return [torch.tensor([-1 / 3 - len(p + c)]) for p, c in zip(prompts, continuations, strict=True)]


class Unnamed(Endpoint):
    """A bot that does not say who it is."""

    identity = property()  # type: ignore[assignment]

    def __init__(self) -> None:
        self.n_asked, self.reference = 0, None


@dataclass
class Asking:
    """Samples, then scores, and fails in between as often as it is told to."""

    failures: int = 0

    def run(self, target: Target, split: AuditSplit, schema: Schema, *, seed: int) -> AttackResult:
        texts = target.sample(["p", "q"], n=5, max_new_tokens=3, decoding=Decoding(), seed=seed)
        if self.failures:
            self.failures -= 1
            raise AuditError("the endpoint is gone")
        scores = [float(s.sum()) for row in texts for s in target.logprobs(row, row)]
        return AttackResult(
            verdict="leak", headline=Headline(metric="mean", estimate=Estimate(value=sum(scores) / len(scores)))
        )


@pytest.fixture
def make_experiment(synthetic_split: AuditSplit, synthetic_schema: Schema) -> Any:
    split = AuditSplit(synthetic_split.members[:3], synthetic_split.nonmembers[:3])
    corpus = Corpus((*split.members, *split.nonmembers), synthetic_schema, "synthetic")

    def make(cache: CacheSettings, attack: Asking) -> Experiment:
        return Experiment(
            config={"setting": 1},
            name="bot",
            corpus=corpus,
            drawn=SplitReport(split),
            attacks={"asking": attack},
            trackers={},
            seed=7,
            reveal=False,
            cache=cache,
        )

    return make


def audit(experiment: Experiment, path: Path, target: Any) -> AuditReport:
    with suite.open_run(experiment, path) as directory:
        report = suite.start_report(experiment, directory)
        return suite.measure(experiment, target, directory, report, lambda _: None)


def interrupted(experiment: Experiment, path: Path, target: Any) -> Path:
    """Let an audit fail half-way, and return where its answers lie."""
    with pytest.raises(AuditError, match="gone"):
        audit(experiment, path, target)
    return path / "cache"


@pytest.mark.parametrize("cache", [AUTO, ON])
def test_an_interrupted_audit_asks_only_the_rest(make_experiment: Any, tmp_path: Path, cache: CacheSettings) -> None:
    attack, bot = Asking(failures=1), Endpoint()
    folder = interrupted(make_experiment(cache, attack), tmp_path / "run", bot)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    report = audit(make_experiment(cache, attack), tmp_path / "run", bot)
    assert bot.n_asked == 10 + 10
    assert not folder.exists()
    plain = audit(make_experiment(OFF, Asking()), tmp_path / "plain", Endpoint())
    assert report.attacks["asking"].headline == plain.attacks["asking"].headline
    assert report.notes == plain.notes == []


def test_without_it_everything_is_asked_again(make_experiment: Any, tmp_path: Path) -> None:
    attack, bot = Asking(failures=1), Endpoint()
    folder = interrupted(make_experiment(OFF, attack), tmp_path, bot)
    assert not folder.exists()
    audit(make_experiment(OFF, attack), tmp_path, bot)
    assert bot.n_asked == 10 + 20


def test_a_bot_on_this_machine_is_not_remembered_unless_asked_for(make_experiment: Any, tmp_path: Path) -> None:
    assert not interrupted(make_experiment(AUTO, Asking(failures=1)), tmp_path, Unnamed()).exists()
    with pytest.raises(ConfigError, match=r"Unnamed does not say who it is.*cache\.enabled=false"):
        audit(make_experiment(ON, Asking()), tmp_path, Unnamed())


def test_another_bot_in_the_same_directory_is_asked_itself(make_experiment: Any, tmp_path: Path) -> None:
    attack, other = Asking(failures=1), Endpoint("other")
    interrupted(make_experiment(ON, attack), tmp_path, Endpoint())
    audit(make_experiment(ON, attack), tmp_path, other)
    assert other.n_asked == 20


def test_what_is_kept_is_said_in_the_report(make_experiment: Any, tmp_path: Path) -> None:
    report = audit(make_experiment(KEEP, Asking()), tmp_path, Endpoint())
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["answers.sqlite"]
    assert report.notes == [KEPT_NOTE]
    assert RunDirectory.open(tmp_path).read_report().notes == [KEPT_NOTE]


def test_what_an_earlier_start_kept_is_deleted_when_the_audit_is_complete(make_experiment: Any, tmp_path: Path) -> None:
    attack = Asking(failures=1)
    folder = interrupted(make_experiment(KEEP, attack), tmp_path, Endpoint())
    assert folder.exists()
    audit(make_experiment(OFF, attack), tmp_path, Endpoint())
    assert not folder.exists()


@pytest.mark.parametrize("verb", ["train", "audit"])
def test_it_is_configured_and_changes_no_run(verb: str, tmp_path: Path) -> None:
    config = compose(verb, ["run=x"] if verb == "audit" else [])
    assert find_problems(config) == []
    assert config["cache"] == {"_target_": "hushbot.evaluation.caching.CacheSettings", "enabled": "auto", "keep": False}
    assert len(find_problems(compose(verb, ["cache.enabled=perhaps"]))) == 1
    for more in ("cache.enabled=true", "cache.keep=true"):
        other = compose(verb, [more])
        assert find_problems(other) == []
        RunDirectory(tmp_path).create(other, {}, free_keys={"cache", "run"}).close()


KILLED = """
import json, os, signal, sys
from dataclasses import dataclass
from pathlib import Path
import torch
from hushbot.corpora.corpus import Corpus
from hushbot.corpora.split import SplitReport
from hushbot.evaluation import suite
from hushbot.evaluation.experiment import Experiment
from hushbot.schema import Schema
from hushbot.types import AttackResult, AuditSplit, Decoding, Dialogue, Estimate, Headline, Turn

path, deadline = Path(sys.argv[1]), int(sys.argv[2])

class Bot:
    identity, reference, n_asked = "bot", None, 0

    def ask(self, n):
        self.n_asked += n
        if self.n_asked > deadline > 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def sample(self, prompts, *, n, seed, **_):
        self.ask(n * len(prompts))
        return [[f"{p} {seed} {d}" for d in range(n)] for p in prompts]

    def logprobs(self, prompts, continuations):
        self.ask(len(prompts))
        return [torch.tensor([-1 / (3 + len(p + c))]) for p, c in zip(prompts, continuations)]

class Asking:
    def run(self, target, split, schema, *, seed):
        rows, total = [], 0.0
        for round in range(6):
            texts = target.sample(["p", "q"], n=5, max_new_tokens=3, decoding=Decoding(), seed=seed + round)
            for row in texts:
                scores = [float(s.double().sum()) for s in target.logprobs(row, row)]
                total += sum(scores)
                rows += [{"seed": round, "score": s, "text": t} for s, t in zip(scores, row)]
        return AttackResult(verdict="leak", headline=Headline(metric="m", estimate=Estimate(value=total)), rows=rows)

dialogues = tuple(Dialogue(name, (Turn("hello", frozenset(), response="hi"),)) for name in "abcd")
experiment = Experiment(
    config={"setting": 1}, name="bot", corpus=Corpus(dialogues, Schema(()), "made"),
    drawn=SplitReport(AuditSplit(dialogues[:2], dialogues[2:])),
    attacks={"one": Asking(), "two": Asking()}, trackers={}, seed=7, reveal=False,
)
bot = Bot()
with suite.open_run(experiment, path) as directory:
    report = suite.start_report(experiment, directory)
    report = suite.measure(experiment, bot, directory, report, lambda _: None)
print(bot.n_asked)
print(json.dumps({name: attack.model_dump(exclude={"seconds"}) for name, attack in report.attacks.items()}))
"""


def test_kill_9_then_the_same_audit_gives_the_same_report_and_records(tmp_path: Path) -> None:
    def run(folder: str, deadline: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", KILLED, str(tmp_path / folder), str(deadline)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, env=environment, capture_output=True, check=False, text=True)

    killed = run("a", 75)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (tmp_path / "a" / "cache").is_dir()
    again, whole = run("a", 0), run("b", 0)
    assert again.returncode == whole.returncode == 0, again.stderr + whole.stderr
    # Both attacks ask the same, so the second one finds every answer there; 75 of 120 had been asked for.
    assert [int(done.stdout.splitlines()[0]) for done in (again, whole)] == [120 - 75, 120]
    assert json.loads(again.stdout.splitlines()[1]) == json.loads(whole.stdout.splitlines()[1])
    for name in ("one", "two"):
        records = [(tmp_path / folder / "records" / f"{name}.parquet").read_bytes() for folder in "ab"]
        assert records[0] == records[1]
    assert not (tmp_path / "a" / "cache").exists()
