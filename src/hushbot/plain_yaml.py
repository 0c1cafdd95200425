"""YAML without its surprises: plain data, each key once, nothing that stands for something else.

Guarantees: no object but dicts, lists, texts, numbers, dates and null is made; a key that stands twice and an alias are
errors that name their line.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml


class PlainLoader(yaml.SafeLoader):
    """Safe YAML without aliases and without keys that stand twice."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuse an alias."""
        if self.check_event(yaml.events.AliasEvent):
            line = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call]
            raise yaml.YAMLError(f"an alias (*name) in line {line}; write out what it stands for")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Refuse a key that stands twice."""
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue  # the loader itself refuses it
            if key in seen:
                raise yaml.YAMLError(f"{key!r} stands twice in line {key_node.start_mark.line + 1}")
            seen.add(key)
        return super().construct_mapping(node, deep=deep)
