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
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from hushbot.errors import AuditError
from hushbot.intervals import FloatArray
from hushbot.protocols import Target

SCORES = ("ppl", "ppl_zlib", "c_ppl", "dc_ppl", "loss", "min_k")
"""What `score` returns."""
MIN_K_SHARE = 0.2
_TEXTS_AT_ONCE = 1024
"""How many texts are asked about together: bounds the memory, whatever their number."""


def score(target: Target, prefixes: Sequence[str], suffixes: Sequence[str]) -> dict[str, FloatArray]:
    """Return every raw score of each text prefix + suffix, as this module's formulas define them.

    Args:
        target: Scores sequences. It is asked a thousand texts at a time, texts with the same suffix together, and
            once for each distinct (prompt, continuation) among them.
        prefixes: What the attacker supplies (`Belief State:`), one per text.
        suffixes: What is judged, one per text, never empty.

    Raises:
        AuditError: A query failed, a text has no token, a suffix is certain on its own, or a perplexity overflows.
    """
    if len(prefixes) != len(suffixes):
        raise AuditError(f"{len(prefixes)} prefixes for {len(suffixes)} suffixes; give as many of each")
    for i, suffix in enumerate(suffixes):
        if not suffix:
            raise AuditError(f"text {i} has an empty suffix, which has no probability; drop it before scoring")
    order, is_first = _sorted(prefixes, suffixes)
    table = np.empty((len(order), len(SCORES)))
    distinct = order[is_first]
    for start in range(0, len(distinct), _TEXTS_AT_ONCE):
        # Neighbours in the alphabet share most; in a window they stand as the caller gave them, who may have shuffled.
        window = np.sort(distinct[start : start + _TEXTS_AT_ONCE])
        table[window] = list(_rows(target, [(prefixes[i], suffixes[i]) for i in window]))
    table[order] = table[distinct[np.cumsum(is_first) - 1]]
    return {name: table[:, column] for column, name in enumerate(SCORES)}


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
    """Yield all scores of each text, in the order of `SCORES`."""
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
    whole = np.concatenate([answer.detach().cpu().numpy() for answer in answers]).astype(np.float64)
    ends = np.cumsum([len(answer) for answer in answers]).tolist()
    arrays = [whole[start:end] for start, end in pairwise([0, *ends])]
    if not all(array.size for array in arrays) or not np.all(np.isfinite(whole)):
        broken = sum(array.size == 0 or not np.all(np.isfinite(array)) for array in arrays)
        raise AuditError(
            f"{broken} of {len(unique)} scored texts have no token or a log-probability that is not finite"
        )
    return dict(zip(unique, arrays, strict=True))


def _scores_of(text: str, whole: FloatArray, conditional: FloatArray, alone: FloatArray) -> list[float]:
    """Apply the module's formulas to one text; the order is that of `SCORES`."""
    denominator = float(alone.sum())
    if abs(denominator) < 1e-9:
        raise AuditError("dc_ppl is undefined for a suffix that is certain on its own; drop it, or doubt the target")
    loss = -float(whole.sum()) / whole.size
    n_lowest = max(1, math.floor(MIN_K_SHARE * whole.size))
    scores = {
        "ppl": _perplexity(loss),
        "ppl_zlib": loss / len(zlib.compress(text.encode())),
        "c_ppl": _perplexity(-float(conditional.sum()) / conditional.size),
        "dc_ppl": float(conditional.sum()) / denominator,
        "loss": loss,
        "min_k": float(np.sort(whole)[:n_lowest].sum()) / n_lowest,
    }
    return [scores[name] for name in SCORES]


def _perplexity(loss: float) -> float:
    try:
        return math.exp(loss)
    except OverflowError as error:
        raise AuditError(f"a loss of {loss:.4g} per token has no finite perplexity; doubt the target") from error
