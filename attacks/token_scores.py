"""The membership scores of a text, from token log-probabilities.

Scores of a text x = prefix + suffix, with S(y | c) the sum and L(y) the number of y's token
log-probabilities after c, where an empty c is the start token alone:

* `loss = -S(x) / L(x)` and `ppl = exp(loss)`, over the whole text, prefix included;
* `ppl_zlib = log(ppl) / z`, z the bytes of the text after zlib compression;
* `c_ppl = exp(-S(suffix | prefix) / L(suffix))`: only the suffix is scored;
* `dc_ppl = S(suffix | prefix) / S(suffix)`: log C-PPL over the log PPL of the suffix alone, which is
  the ratio of the two sums (and stays that where a tokenizer cuts the suffix differently after a prefix);
* `min_k`: the mean of the lowest 20% (at least one) of the whole text's token log-probabilities;
* `min_k_pp`: the same of z, by how many standard deviations a token's log-probability lies above its mean over the
  vocabulary, each entry weighted by its probability; 0 where the bot was certain of the token. Only a target that shows
  its tokens (`hushbot.protocols.ShowsTokens`: a model on this machine) can give it;
* `ref_ratio`: the loss under the bot's reference (the adapter switched off) minus the loss under the bot; where both
  read the same tokens, log(P(x) / P_reference(x)) / L(x).

Members have LOW values of all but `min_k`, `min_k_pp` and `ref_ratio`; `hushbot.stats.orient` knows.

Guarantees: no number where there is none: a text without tokens, a log-probability that is not finite, a
suffix that is certain on its own (|S(suffix)| < 1e-9, so that DC-PPL divides by zero) and a perplexity beyond the
range of numbers (a loss above 709) are each an `AuditError`. `min_k_pp` is NaN for all texts where the target
does not show its tokens, and for no other reason.

Source: Task-oriented dialogue state extraction, sections IV-A2 and IV-C (PPL, PPL-zlib, C-PPL, DC-PPL);
Carlini et al., USENIX Security 2021 (zlib, reference); Shi et al., ICLR 2024 (Min-K%); Zhang et al., ICLR 2025
(Min-K%++).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from hushbot.errors import AuditError
from hushbot.intervals import FloatArray
from hushbot.protocols import ShowsTokens, Target

FROM_LOGPROBS = ("ppl", "ppl_zlib", "c_ppl", "dc_ppl", "loss", "min_k")
"""What every target that scores can give."""
SCORES = (*FROM_LOGPROBS, "min_k_pp")
"""What `score` returns."""
MIN_K_SHARE = 0.2
_TEXTS_AT_ONCE = 1024
"""How many texts are asked about together: bounds the memory, whatever their number."""


def score(
    target: Target, prefixes: Sequence[str], suffixes: Sequence[str], *, names: Collection[str] = SCORES
) -> dict[str, FloatArray]:
    """Return raw scores of each text prefix + suffix, as this module's formulas define them.

    Args:
        target: Scores sequences. It is asked a thousand texts at a time, texts with the same suffix together, and
            once for each distinct (prompt, continuation) among them.
        prefixes: What the attacker supplies (`Belief State:`), one per text.
        suffixes: What is judged, one per text, never empty.
        names: Which scores. `min_k_pp` costs a reading of each text by itself.

    Raises:
        AuditError: A query failed, a text has no token, a suffix is certain on its own, or a perplexity overflows.
    """
    if unknown := sorted(set(names) - set(SCORES)):
        raise ValueError(f"no such scores: {', '.join(unknown)}; known: {', '.join(SCORES)}")
    if len(prefixes) != len(suffixes):
        raise AuditError(f"{len(prefixes)} prefixes for {len(suffixes)} suffixes; give as many of each")
    for i, suffix in enumerate(suffixes):
        if not suffix:
            raise AuditError(f"text {i} has an empty suffix, which has no probability; drop it before scoring")
    wanted = [name for name in SCORES if name in names]
    places = [FROM_LOGPROBS.index(name) for name in wanted if name in FROM_LOGPROBS]
    order, is_first = _sorted(prefixes, suffixes)
    table = np.full((len(order), len(wanted)), np.nan)
    distinct = order[is_first]
    for start in range(0, len(distinct), _TEXTS_AT_ONCE):
        # Neighbours in the alphabet share most; in a window they stand as the caller gave them, who may have shuffled.
        window = np.sort(distinct[start : start + _TEXTS_AT_ONCE])
        pairs = [(prefixes[i], suffixes[i]) for i in window]
        if places:
            table[window, : len(places)] = np.array(list(_rows(target, pairs)))[:, places]
        if "min_k_pp" in wanted and isinstance(target, ShowsTokens):
            table[window, -1] = _min_k_pp(target, [prefix + suffix for prefix, suffix in pairs])
    table[order] = table[distinct[np.cumsum(is_first) - 1]]
    return {name: table[:, column] for column, name in enumerate(wanted)}


def cannot_give(target: Target, names: Collection[str]) -> dict[str, str]:
    """Return which of some scores a target cannot give, each with the reason."""
    if "min_k_pp" not in names or isinstance(target, ShowsTokens):
        return {}
    return {"min_k_pp": "the target does not show its tokens' statistics, only a model on this machine does"}


def ref_ratio(ours: Mapping[str, FloatArray], reference: Mapping[str, FloatArray]) -> FloatArray:
    """Return the reference ratio of texts from what `score` returned for them under the bot and its reference."""
    return reference["loss"] - ours["loss"]


def _sorted(prefixes: Sequence[str], suffixes: Sequence[str]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """Return the order of the texts by suffix, then prefix, and which of them, in this order, is not there before."""
    # Arrays, for a Python object for each text would cost more memory than scoring does.
    before, after = (np.array(texts, dtype=np.object_) for texts in (prefixes, suffixes))
    order = np.argsort(before, kind="stable")
    order = order[np.argsort(after[order], kind="stable")]
    before, after = before[order], after[order]
    is_first = np.ones(len(order), dtype=np.bool_)
    is_first[1:] = (after[1:] != after[:-1]) | (before[1:] != before[:-1])
    return order.astype(np.int32), is_first


def _rows(target: Target, pairs: Sequence[tuple[str, str]]) -> Iterator[list[float]]:
    """Yield the scores of each text that log-probabilities give, in the order of `FROM_LOGPROBS`."""
    # What belongs to one text is asked for together, so that a target can share what they have in common.
    asked = [query for prefix, suffix in pairs for query in (("", prefix + suffix), (prefix, suffix), ("", suffix))]
    known = _token_logprobs(target, asked)
    for prefix, suffix in pairs:
        text = prefix + suffix
        yield _scores_of(text, known["", text], known[prefix, suffix], known["", suffix])


def _token_logprobs(target: Target, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], FloatArray]:
    """Return the token log-probabilities of each distinct (prompt, continuation)."""
    unique = list(dict.fromkeys(pairs))
    answers = target.logprobs([prompt for prompt, _ in unique], [continuation for _, continuation in unique])
    if len(answers) != len(unique):
        raise AuditError(f"the target answered {len(answers)} of {len(unique)} scoring queries; rerun the audit")
    # All at once: for a few numbers at a time, converting and checking cost more than the formulas.
    whole = torch.cat(answers).detach().cpu().double().numpy()
    ends = np.cumsum([len(answer) for answer in answers]).tolist()
    arrays = [whole[start:end] for start, end in pairwise([0, *ends])]
    if not all(array.size for array in arrays) or not np.all(np.isfinite(whole)):
        broken = sum(array.size == 0 or not np.all(np.isfinite(array)) for array in arrays)
        raise AuditError(
            f"{broken} of {len(unique)} scored texts have no token or a log-probability that is not finite"
        )
    return dict(zip(unique, arrays, strict=True))


def _scores_of(text: str, whole: FloatArray, conditional: FloatArray, alone: FloatArray) -> list[float]:
    """Apply the module's formulas to one text; the order is that of `FROM_LOGPROBS`."""
    denominator = float(alone.sum())
    if abs(denominator) < 1e-9:
        raise AuditError("dc_ppl is undefined for a suffix that is certain on its own; drop it, or doubt the target")
    loss = -float(whole.sum()) / whole.size
    scores = {
        "ppl": _perplexity(loss),
        "ppl_zlib": loss / len(zlib.compress(text.encode())),
        "c_ppl": _perplexity(-float(conditional.sum()) / conditional.size),
        "dc_ppl": float(conditional.sum()) / denominator,
        "loss": loss,
        "min_k": _lowest(whole),
    }
    return [scores[name] for name in FROM_LOGPROBS]


def _lowest(values: FloatArray) -> float:
    """Return the mean of the lowest fifth, at least one."""
    n_lowest = max(1, math.floor(MIN_K_SHARE * values.size))
    return float(np.sort(values)[:n_lowest].sum()) / n_lowest


def _min_k_pp(target: ShowsTokens, texts: Sequence[str]) -> list[float]:
    """Return the score of each text."""
    distinct = list(dict.fromkeys(texts))
    answers = target.token_statistics([""] * len(distinct), distinct)
    if len(answers) != len(distinct):
        raise AuditError(f"the target answered {len(answers)} of {len(distinct)} questions; rerun the audit")
    found: dict[str, float] = {}
    for text, answer in zip(distinct, answers, strict=True):
        logprob, mean, spread = answer.detach().cpu().numpy().astype(np.float64).T
        with np.errstate(divide="ignore", invalid="ignore"):
            z = np.where((spread == 0) & (np.abs(logprob - mean) < 1e-6), 0.0, (logprob - mean) / spread)
        if not (z.size and np.all(np.isfinite(z))):
            raise AuditError(
                "min_k_pp is undefined for a text without tokens, or with one that the bot was certain would not come; "
                "leave the score out, or doubt the target"
            )
        found[text] = _lowest(z)
    return [found[text] for text in texts]


def _perplexity(loss: float) -> float:
    try:
        return math.exp(loss)
    except OverflowError as error:
        raise AuditError(f"a loss of {loss:.4g} per token has no finite perplexity; doubt the target") from error
