"""What the Pop-Quiz paper reports, to stand beside our own numbers.

Guarantees: only numbers that the paper prints, all of them ROC AUCs; what it does not print is absent, never zero. Its
per-model table of defences is left out but for the means that the text gives.

What voids a comparison: the paper tunes models of billions of parameters for a hundred epochs on other data, holds out
as many records as it trains on, and prints no interval, no base model and no guesser beside its numbers.

Source: Pop Quiz Attack (arXiv 2605.06423), Tables 1 to 3 and 7, Figure 4, sections 4.3 and 4.6, appendices A, D and G.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

DATASETS = ("security_news", "fiction", "imdb", "medical")
SETTING: Mapping[str, str] = MappingProxyType(
    {
        "models": "LoRA, learning rate 3e-4, 100 epochs (Vicuna 200); the two closed ones by their provider's service",
        "data": "1,350 news items, 864 comics, 10,000 films, 5,000 synthetic medical records; half of each trained on",
        "questions": "four per record, written by GPT-4; a record with two or more right is called a member",
        "control": "none beside the held-out half: neither the model before tuning nor a guesser was asked",
    }
)
"""What the paper measured, and how."""

_BY_MODEL: Mapping[str, tuple[float, ...]] = {
    "gpt-3.5": (0.880, 0.895, 0.862, 0.861),
    "gpt-4o": (0.962, 0.985, 0.904),  # refused to be tuned on medical records
    "llama2-7b": (0.895, 0.875, 0.820, 0.811),
    "llama2-13b": (0.918, 0.899, 0.811, 0.827),
    "mistral-7b": (0.900, 0.940, 0.855, 0.801),
    "vicuna-7b": (0.883, 0.865, 0.794, 0.775),
}
AUC: Mapping[tuple[str, str], float] = MappingProxyType(
    {
        (model, name): value
        for model, row in _BY_MODEL.items()
        for name, value in zip(DATASETS, row, strict=False)  # the last one is missing for one model
    }
)
"""(model, data set) of Table 1."""
MEAN_AUC: Mapping[str, float] = MappingProxyType(
    {
        "gpt-3.5": 0.875,
        "gpt-4o": 0.950,
        "llama2-7b": 0.850,
        "llama2-13b": 0.864,
        "mistral-7b": 0.874,
        "vicuna-7b": 0.829,
    }
)
"""Figure 4."""
BREAKDOWN: Mapping[str, float] = MappingProxyType(
    {
        "type=text": 0.880,
        "type=number": 0.755,
        "type=mixed": 0.820,
        "complexity=simple": 0.820,
        "complexity=complex": 0.720,
        "category=movie": 0.850,
        "category=tv mini series": 0.770,
        "category=tv series": 0.810,
    }
)
"""Tables 2 and 3 and section 4.3, LLaMA2-7b on films, under the keys of our `quiz`."""
LEARNING_RATE: Mapping[float, float] = MappingProxyType({1e-4: 0.837, 3e-4: 0.875, 4e-4: 0.855})
"""Table 7, LLaMA2-7b on comics."""
DEFENCES: Mapping[str, float] = MappingProxyType(
    {"none": 0.873, "instruction_guard": 0.753, "filter_guard": 0.731, "dp": 0.708}
)
"""Means over models and data sets (appendix G)."""
SAID: Mapping[str, str] = MappingProxyType(
    {
        "digits": "numbers of up to four digits are more vulnerable than longer ones",
        "granularity": "structured records are more vulnerable than prose for each of six models",
        "size": "the smaller the data set, the more vulnerable",
    }
)
"""What the text says without a number."""
