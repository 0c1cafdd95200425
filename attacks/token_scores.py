"""The membership scores of a text, from nothing but token log-probabilities.

Scores of a text x = prefix + suffix, with S(y | c) the sum and L(y) the number of y's token
log-probabilities after c, where an empty c is the start token alone:

* `loss = -S(x) / L(x)` and `ppl = exp(loss)`, over the whole text, prefix included;
* `ppl_zlib = log(ppl) / z`, z the bytes of the text after zlib compression;
* `c_ppl = exp(-S(suffix | prefix) / L(suffix))`: only the suffix is scored;
* `dc_ppl = S(suffix | prefix) / S(suffix)`: log C-PPL over the log PPL of the suffix alone, which is
  the ratio of the two sums (and stays that where a tokenizer cuts the suffix differently after a prefix);
* `min_k`: the mean of the lowest 20% (at least one) of the whole text's token log-probabilities.

Members have LOW values of all but `min_k`; `hushbot.stats.orient` knows.

Guarantees: no number where there is none: a text without tokens, a log-probability that is not finite, a
suffix that is certain on its own (|S(suffix)| < 1e-9, so that DC-PPL divides by zero) and a perplexity beyond the
range of numbers (a loss above 709) are each an `AuditError`.

Source: Task-oriented dialogue state extraction, sections IV-A2 and IV-C (PPL, PPL-zlib, C-PPL, DC-PPL);
Carlini et al., USENIX Security 2021 (zlib); Shi et al., ICLR 2024 (Min-K%).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import numpy as np

from hushbot.errors import AuditError
from hushbot.intervals import FloatArray
from hushbot.protocols import Target

SCORES = ("ppl", "ppl_zlib", "c_ppl", "dc_ppl", "loss", "min_k")
"""What `score` returns."""
MIN_K_SHARE = 0.2


def score(target: Target, prefixes: Sequence[str], suffixes: Sequence[str]) -> dict[str, FloatArray]:
    """Return every raw score of each text prefix + suffix, as this module's formulas define them.

    Args:
        target: Scores sequences; each distinct (prompt, continuation) is asked for once, all in one call.
        prefixes: What the attacker supplies (`Belief State:`), one per text.
        suffixes: What is judged, one per text, never empty.

    Raises:
        AuditError: A query failed, a text has no token, a suffix is certain on its own, or a perplexity overflows.
    """
    texts = [prefix + suffix for prefix, suffix in zip(prefixes, suffixes, strict=True)]
    for i, suffix in enumerate(suffixes):
        if not suffix:
            raise AuditError(f"text {i} has an empty suffix, which has no probability; drop it before scoring")
    whole = [("", text) for text in texts]
    conditional = list(zip(prefixes, suffixes, strict=True))
    alone = [("", suffix) for suffix in suffixes]
    known = _token_logprobs(target, [*whole, *conditional, *alone])
    rows = [
        _scores_of(text, known[w], known[c], known[a])
        for text, w, c, a in zip(texts, whole, conditional, alone, strict=True)
    ]
    return {name: np.array([row[name] for row in rows], dtype=np.float64) for name in SCORES}


def _token_logprobs(target: Target, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], FloatArray]:
    """Return the token log-probabilities of each distinct (prompt, continuation)."""
    unique = list(dict.fromkeys(pairs))
    if not unique:
        return {}
    answers = target.logprobs([prompt for prompt, _ in unique], [continuation for _, continuation in unique])
    if len(answers) != len(unique):
        raise AuditError(f"the target answered {len(answers)} of {len(unique)} scoring queries; rerun the audit")
    arrays = [answer.detach().cpu().double().numpy() for answer in answers]
    broken = sum(array.size == 0 or not np.all(np.isfinite(array)) for array in arrays)
    if broken:
        raise AuditError(
            f"{broken} of {len(unique)} scored texts have no token or a log-probability that is not finite"
        )
    return dict(zip(unique, arrays, strict=True))


def _scores_of(text: str, whole: FloatArray, conditional: FloatArray, alone: FloatArray) -> dict[str, float]:
    """Apply the module's formulas to one text."""
    denominator = float(alone.sum())
    if abs(denominator) < 1e-9:
        raise AuditError("dc_ppl is undefined for a suffix that is certain on its own; drop it, or doubt the target")
    loss = -float(whole.mean())
    n_lowest = max(1, math.floor(MIN_K_SHARE * whole.size))
    return {
        "ppl": _perplexity(loss),
        "ppl_zlib": loss / len(zlib.compress(text.encode())),
        "c_ppl": _perplexity(-float(conditional.mean())),
        "dc_ppl": float(conditional.sum()) / denominator,
        "loss": loss,
        "min_k": float(np.sort(whole)[:n_lowest].mean()),
    }


def _perplexity(loss: float) -> float:
    try:
        return math.exp(loss)
    except OverflowError as error:
        raise AuditError(f"a loss of {loss:.4g} per token has no finite perplexity; doubt the target") from error
