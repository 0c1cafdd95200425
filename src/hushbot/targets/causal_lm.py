"""One causal language model, seen as hidden states, logits and single steps.

Guarantees: weights are read in evaluation mode without gradients; logits are fp32; a vocabulary-wide matrix
exists only for the positions a caller asks for. What a model type may do differently (a scaled or capped
head, an attention that ignores the custom masks of rows and trees) is measured once on a few tokens instead of
assumed, and a slower, plainer path is used where the measurement disagrees with the model's own forward pass.

Voids it: hooks that change a forward pass; a model whose output for a token depends on later tokens.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from hushbot.errors import ConfigError
from hushbot.targets import row_attention
from hushbot.targets.branch_rows import lay_out, seen_within, starts_of
from hushbot.targets.flat_pass import FlatPass, is_readable
from hushbot.targets.products import multiply
from hushbot.targets.row_cache import KeysValues, RowCache, SharedRowCache
from hushbot.targets.token_store import BranchCache, StoredTexts, TokenStore
from hushbot.targets.token_tree import Packed, pack
from hushbot.training.prefix_attention import NAME

_log = logging.getLogger(__name__)

_CROWDING = 8
"""A row may hold texts of several trees while attention over them costs at most about this part of all else."""
# Attention that takes a ready-made four-dimensional mask; what training leaves behind is sdpa outside training.
_FUSED = ("sdpa", NAME, row_attention.NAME)
_TAKES_MASKS = (*_FUSED, "eager")


class Prefilled(NamedTuple):
    """What a model remembers of one prompt."""

    memory: KeysValues
    """Per layer, tensors of shape (heads, length, width)."""
    logits: Tensor
    """Of the token that follows the prompt."""


_Branching: TypeAlias = Callable[[StoredTexts, Sequence[Packed]], tuple[Tensor, list[int]]]


class CausalLM:
    """A transformers causal language model, or a peft model around one.

    Args:
        model: The model; it is put into evaluation mode and stays there.
        without_adapter: Read the weights under a peft adapter as if it were not there.

    Raises:
        ConfigError: The adapter works through virtual prompt tokens, which a cache of rows cannot represent.
    """

    def __init__(self, model: Any, *, without_adapter: bool = False) -> None:
        self.has_adapter = hasattr(model, "get_base_model") and hasattr(model, "disable_adapter")
        if self.has_adapter and model.active_peft_config.is_prompt_learning:
            raise ConfigError("target.adapter learns virtual prompt tokens; use a LoRA-type adapter, or merge it")
        self.outer = model
        self.core = model.get_base_model() if self.has_adapter else model
        self.without_adapter = without_adapter and self.has_adapter
        model.eval()

    @property
    def device(self) -> torch.device:
        """Return where the embedding lies, which is where token ids must be."""
        return self._embedding.weight.device  # type: ignore[no-any-return]

    @property
    def n_tokens(self) -> int:
        """Return the size of the vocabulary that the model can read."""
        return int(self._embedding.weight.shape[0])

    @property
    def context_length(self) -> int | None:
        """Return the longest sequence the model reads, start token included; None where it has no limit."""
        limit = getattr(self._config, "max_position_embeddings", None)
        return None if limit is None or limit <= 0 else int(limit)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Enter evaluation mode without gradients, and without the adapter if that was asked for."""
        if self.outer.training:
            self.outer.eval()
        with torch.inference_mode(), self.outer.disable_adapter() if self.without_adapter else nullcontext():
            yield

    @cached_property
    def has_plain_head(self) -> bool:
        """Whether the logits are the output embedding applied to the last hidden states, and nothing more."""
        body, head = self.core.base_model, self.core.get_output_embeddings()
        if body is self.core or head is None:
            return False
        ids = self._probe_ids(5)[None]
        hidden = getattr(body(input_ids=ids, use_cache=False), "last_hidden_state", None)
        return hidden is not None and _agree(head(hidden), self.core(input_ids=ids, use_cache=False).logits)

    def features(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return what `logits` turns into logits: one vector per token of right-padded rows."""
        return self._forward(ids, mask=mask)

    def tree_features(self, trees: Sequence[Packed]) -> Tensor:
        """Return the features of the tokens of packed sequences, tree after tree."""
        if self.is_flat:
            return self._flat(trees, [()] * len(trees), None).read(self.core.base_model)
        if all(len(tree.paths) == 1 for tree in trees):
            # Single sequences need no mask that shows who is whose prefix, and are read faster without.
            features = self.features(*self.pad([tree.ids for tree in trees]))
        else:
            ids, depths, mask = self._tree(trees)
            features = self._forward(ids, mask=self._as_taken(mask[:, None]), positions=depths)
        if len(trees) == 1:
            return features[0]
        return torch.cat([row[: len(tree.ids)] for row, tree in zip(features, trees, strict=True)])

    def branch_features(self, texts: StoredTexts, trees: Sequence[Packed]) -> tuple[Tensor, list[int]]:
        """Read a tree of tokens behind what each text has read already, and keep what is read in the texts' store.

        Returns:
            The features of those tokens, tree after tree, and their slots.
        """
        return self._branch_flat(texts, trees) if self.is_flat else self._branch_rows(texts, trees)

    def _branch_flat(self, texts: StoredTexts, trees: Sequence[Packed]) -> tuple[Tensor, list[int]]:
        laid = self._flat(trees, texts.slots, texts.store)
        return laid.read(self.core.base_model), laid.slots

    def _branch_rows(self, texts: StoredTexts, trees: Sequence[Packed]) -> tuple[Tensor, list[int]]:
        laid = lay_out(trees, texts.lengths, self.attention_width // _CROWDING)
        cache = BranchCache(texts.store, [[s for number in row for s in texts.slots[number]] for row in laid.rows])
        features = self._forward(
            laid.ids.to(self.device),
            mask=self._as_taken(laid.mask.to(self.device)[:, None]),
            cache=cache,
            positions=laid.positions.to(self.device),
        )
        return features.flatten(0, 1)[laid.places.to(features.device)], texts.store.add(cache.fresh(laid.places))

    def _flat(self, trees: Sequence[Packed], texts: Sequence[Sequence[int]], store: TokenStore | None) -> FlatPass:
        return FlatPass(trees, texts, store, device=self.device, as_taken=self._as_taken)

    def logits(self, features: Tensor) -> Tensor:
        """Return fp32 logits over the vocabulary of the features of some positions."""
        if self.has_plain_head:
            features = multiply(self.core.get_output_embeddings(), features)
        return features.float()

    def prefill(self, sequences: Sequence[Sequence[int]]) -> list[Prefilled]:
        """Read prompts in one right-padded batch and remember them."""
        from transformers import DynamicCache

        ids, mask = self.pad(sequences)
        cache: Any = DynamicCache()
        features = self._forward(ids, mask=mask, cache=cache)
        last = [len(sequence) - 1 for sequence in sequences]
        rows = torch.arange(len(last), device=ids.device)
        logits = self.logits(features[rows, torch.tensor(last, device=ids.device)])
        # A view would keep the memory of all prompts of the batch for as long as one of them is needed.
        own = torch.clone if len(sequences) > 1 else torch.Tensor.contiguous
        return [
            Prefilled(
                [
                    (own(layer.keys[i, :, : last[i] + 1]), own(layer.values[i, :, : last[i] + 1]))
                    for layer in cache.layers
                ],
                logits[i],
            )
            for i in range(len(sequences))
        ]

    def step(self, tokens: Sequence[int], cache: RowCache) -> Tensor:
        """Read one more token per row; return the logits of the next one."""
        if isinstance(cache, SharedRowCache) and self._attention != row_attention.NAME:
            raise RuntimeError("rows that share a prompt can be read within `attending_by_rows` only")
        positions, mask = cache.begin_step()
        ids = torch.tensor(tokens, device=self.device)[:, None]
        return self.logits(self._forward(ids, mask=self._as_taken(mask), cache=cache, positions=positions)[:, -1])

    def step_padded(self, ids: Tensor, mask: Tensor, cache: object) -> Tensor:
        """Read the new columns of left-padded rows with the model's own cache; return the next logits."""
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        return self.logits(self._forward(ids, mask=mask, cache=cache, positions=positions)[:, -1])

    def new_cache(self) -> object:
        """Return an empty cache of the model's own kind."""
        from transformers import DynamicCache

        return DynamicCache(config=self._config)

    def supports_rows(self, capacity: int) -> bool:
        """Return whether rows of up to that many tokens can be decoded with a `RowCache`."""
        return capacity <= self._window and self._reads_rows

    def supports_sharing(self, capacity: int) -> bool:
        """Return whether rows of up to that many tokens can read a common prompt in one place."""
        return self.supports_rows(capacity) and self._shares_prompts

    @contextmanager
    def attending_by_rows(self) -> Iterator[None]:
        """Let `step` attend through `row_attention` where it gives what the model's own attention gives."""
        with self._attending(row_attention.NAME if self._shares_prompts else self._attention):
            yield

    def supports_trees(self, depth: int) -> bool:
        """Return whether sequences of up to that many tokens can be read packed (`tree_features`)."""
        # Without a plain head a whole tree's logits would be made, those of what nobody asked for included.
        return self.has_plain_head and depth <= self._window and self._reads_trees

    def supports_branches(self, depth: int) -> bool:
        """Return whether packed tokens can be read behind rows of up to that many tokens (`branch_features`)."""
        return self.supports_trees(depth) and self._reads_branches

    @property
    def is_flat(self) -> bool:
        """Whether trees are read in flat passes (`flat_pass`), where neither padding nor a text before them costs."""
        body = self.core.base_model
        return self._attention in _FUSED and self.has_plain_head and is_readable(body) and self._reads_flat

    @property
    def attention_width(self) -> int:
        """Return how long a row is when attention costs about as much as all else a layer does."""
        # Per token and layer, 24 width^2 operations in matrices of the usual sizes, 4 width per token attended to.
        return 6 * int(self._config.hidden_size)

    def pad(self, sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor | None]:
        """Return ids padded on the right, and a mask by length (not by value: padding may equal EOS)."""
        longest = max(len(sequence) for sequence in sequences)
        ids = torch.tensor([[*s, *[0] * (longest - len(s))] for s in sequences], device=self.device)
        lengths = torch.tensor([len(sequence) for sequence in sequences], device=self.device)
        if bool((lengths == longest).all()):
            return ids, None
        return ids, (torch.arange(longest, device=self.device) < lengths[:, None]).long()

    @property
    def _embedding(self) -> Any:
        return self.core.get_input_embeddings()

    @property
    def _config(self) -> Any:
        return self.core.config.get_text_config()

    @property
    def _attention(self) -> str | None:
        return getattr(self.core.config, "_attn_implementation", None)

    @property
    def _window(self) -> float:
        """The reach of the shortest attention layer: beyond it a row's mask would not be the model's."""
        kinds = set(getattr(self._config, "layer_types", None) or ())
        if kinds == {"full_attention"}:
            return math.inf
        limits = (getattr(self._config, name, None) for name in ("sliding_window", "attention_chunk_size"))
        return min((limit for limit in limits if limit), default=0 if kinds else math.inf)

    @cached_property
    def _cache_name(self) -> str:
        # transformers renamed the argument within the range of versions that hushbot supports.
        names = inspect.signature(self.core.forward).parameters
        return "cache" if "cache" in names else "past_key_values"

    def _forward(
        self, ids: Tensor, *, mask: Tensor | None, cache: object = None, positions: Tensor | None = None
    ) -> Tensor:
        arguments: dict[str, Any] = {"input_ids": ids, "attention_mask": mask, "use_cache": cache is not None}
        if cache is not None:
            arguments[self._cache_name] = cache
        if positions is not None:
            arguments["position_ids"] = positions
        if isinstance(cache, RowCache) and self._attention == row_attention.NAME:
            arguments["row_cache"] = cache
        if self.has_plain_head:
            return self.core.base_model(**arguments).last_hidden_state  # type: ignore[no-any-return]
        return self.core(**arguments).logits  # type: ignore[no-any-return]

    def _tree(self, rows: Sequence[Packed]) -> tuple[Tensor, Tensor, Tensor]:
        """Return ids and depths (rows, longest) and who sees whom (rows, longest, longest), padded on the right."""
        longest = max(len(row.ids) for row in rows)
        ids, depths, ends = (
            torch.tensor([[*column, *[0] * (longest - len(column))] for column in columns], device=self.device)
            for columns in zip(*((row.ids, row.depths, row.ends) for row in rows), strict=True)
        )
        return ids, depths, seen_within(ends)

    def _as_taken(self, mask: Tensor) -> Tensor:
        """Return a mask as the attention takes it: eager adds it to the scores, fused reads it as yes or no."""
        if self._attention == "eager":
            return torch.zeros_like(mask, dtype=self.core.dtype).masked_fill_(~mask, torch.finfo(self.core.dtype).min)
        if mask.device.type == "cpu" or self._attention == row_attention.NAME:
            # The fused attention would turn it into this itself, in every layer anew; that of rows takes nothing else.
            return torch.zeros_like(mask, dtype=self.core.dtype).masked_fill_(~mask, -math.inf)
        return mask

    def _probe_ids(self, n: int) -> Tensor:
        return (torch.arange(n, device=self.device) * 7 + 3) % self.n_tokens

    @contextmanager
    def _attending(self, name: str | None) -> Iterator[None]:
        before = self._attention
        if name == before:
            yield
            return
        self.core.set_attn_implementation(name)
        try:
            yield
        finally:
            self.core.set_attn_implementation(before)

    @cached_property
    def _reads_rows(self) -> bool:
        """Whether decoding by rows gives what the model gives on whole sequences."""
        return self._attention in _TAKES_MASKS and self._steps_right(RowCache, self._attention, "padding")

    @cached_property
    def _shares_prompts(self) -> bool:
        """Whether rows that read their prompts in one place give what the model gives on whole sequences."""
        # A model of several parts may have another attention in each, which switching would not bring back.
        if self._attention not in _FUSED or self.core.config is not self._config or not self._reads_rows:
            return False
        kinds = (RowCache, SharedRowCache)
        return all(self._steps_right(kind, row_attention.NAME, "prompts are not shared") for kind in kinds)

    def _steps_right(self, kind: type[RowCache], attention: str | None, otherwise: str) -> bool:
        """Return whether steps of rows give what the model's own attention gives on whole sequences."""
        ids = self._probe_ids(12).tolist()
        heads, ends = [ids[:4], ids[4:6]], [ids[6:9], ids[7:10], ids[8:11]]
        try:
            with self._attending(attention):
                prompts = self.prefill(heads)
                cache = kind(prompts[0].memory, n_rows=3, capacity=7)
                for row in range(3):
                    cache.append(prompts[row % 2].memory)
                for step in range(3):
                    stepped = self.step([end[step] for end in ends], cache)
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            _log.warning("%s cannot be decoded row by row (%s); %s", type(self.core).__name__, error, otherwise)
            return False
        texts = [heads[row % 2] + end for row, end in enumerate(ends)]
        whole = [self.logits(self.features(self.pad([text])[0])[0, -1]) for text in texts]
        if not _agree(stepped, torch.stack(whole)):
            _log.warning("%s misreads rows of different lengths; %s", type(self.core).__name__, otherwise)
            return False
        return True

    @cached_property
    def _reads_flat(self) -> bool:
        """Whether flat passes give what the model gives on whole sequences."""
        return self._branches_right(self._branch_flat, "rows are padded")

    @cached_property
    def _reads_trees(self) -> bool:
        """Whether packed sequences give what the model gives on each alone."""
        if self._attention not in _TAKES_MASKS or not hasattr(self._config, "hidden_size"):
            return False
        ids = self._probe_ids(12).tolist()
        texts = [ids[:6], ids[:3] + ids[7:11], ids[:3] + ids[8:10]]
        rows = [pack(texts), pack([ids[5:10]])]
        try:
            features = self.tree_features(rows)
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            _log.warning("%s cannot read packed texts (%s); one by one", type(self.core).__name__, error)
            return False
        whole = [self.logits(self.features(self.pad([text])[0])[0, -1]) for text in (*texts, ids[5:10])]
        if not _agree(self._at_ends(features, rows), torch.stack(whole)):
            _log.warning("%s misreads packed texts; one by one", type(self.core).__name__)
            return False
        return True

    @cached_property
    def _reads_branches(self) -> bool:
        """Whether packed tokens behind a memory give what the model gives on whole sequences."""
        return self.is_flat or self._branches_right(self._branch_rows, "text by text")

    def _branches_right(self, read: _Branching, otherwise: str) -> bool:
        """Return whether reading trees behind texts gives what the model gives on whole sequences."""
        ids = self._probe_ids(14).tolist()
        heads, branches = [ids[:4], ids[5:8]], [[ids[8:10], ids[8:9] + ids[11:13]], [ids[9:11]]]
        rows = [pack(group) for group in branches]
        try:
            store = TokenStore()
            slots = [
                store.add_text(one.memory, len(head)) for one, head in zip(self.prefill(heads), heads, strict=True)
            ]
            features, _ = read(StoredTexts(store, slots), rows)
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            _log.warning("%s cannot read on in branches (%s); %s", type(self.core).__name__, error, otherwise)
            return False
        sequences = [head + branch for head, group in zip(heads, branches, strict=True) for branch in group]
        whole = [self.logits(self.features(self.pad([ids])[0])[0, -1]) for ids in sequences]
        if not _agree(self._at_ends(features, rows), torch.stack(whole)):
            _log.warning("%s misreads branches; %s", type(self.core).__name__, otherwise)
            return False
        return True

    def _at_ends(self, features: Tensor, trees: Sequence[Packed]) -> Tensor:
        """Return the logits behind each path, tree after tree."""
        starts = starts_of(trees)
        places = [start + path[-1] for start, tree in zip(starts, trees, strict=True) for path in tree.paths]
        return self.logits(features[places])


def _agree(ours: Tensor, theirs: Tensor) -> bool:
    """Return whether two logit tensors are equal up to their type's rounding, relative to their spread."""
    if ours.shape != theirs.shape:
        return False
    tolerance = 1e-3 if theirs.dtype in (torch.float32, torch.float64) else 5e-2
    spread = float(theirs.float().std())
    return float((ours.float() - theirs.float()).abs().max()) <= tolerance * max(spread, 1e-6)
