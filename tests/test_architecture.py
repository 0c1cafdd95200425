"""The shape of the house: which floor may import which, and which names are kept free."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FLOORS = (
    {"types", "errors"},
    {"schema", "prompts", "stats", "intervals", "protocols", "tokens", "masking", "multiplicity", "one_run"}
    | {"values", "permutation", "discretion", "machine_faults", "quiet_libraries", "heavy_imports"},
    {"training", "targets", "serving", "corpora", "run", "composition", "launching", "storage"}
    | {"installation"}
    | {"plain_yaml", "report_hash"},
    {"recipes", "attacks"},
    {"evaluation"},
    {"commands"},
    {"cli"},
)
"""From the ground up; a module may import its own floor and those below."""
FREE_FOR_PRETRAINING = {("training.pretrain_tiny", "recipes")}
"""A script that is run by hand, not part of the library: it trains on what the recipes make."""
BANNED_NAMES = {"utils", "helpers", "common", "base"}


def module_files() -> dict[str, Path]:
    """Map dotted names below hushbot to their files."""
    files = {}
    for folder, prefix in (
        (ROOT / "src" / "hushbot", ""),
        (ROOT / "recipes", "recipes."),
        (ROOT / "attacks", "attacks."),
        (ROOT / "evaluation", "evaluation."),
    ):
        for path in folder.rglob("*.py"):
            name = prefix + ".".join(path.relative_to(folder).with_suffix("").parts)
            files[name.removesuffix(".__init__")] = path
    files.pop("__init__", None)
    return files


def floor_of(module: str) -> int | None:
    return next((i for i, floor in enumerate(FLOORS) if module.split(".")[0] in floor), None)


def imports_of(path: Path) -> Iterator[str]:
    """Yield what a file imports from hushbot, lazily imported names included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            if node.module == "hushbot":
                yield from (alias.name for alias in node.names)
            elif node.module.startswith("hushbot."):
                yield node.module.removeprefix("hushbot.")
        elif isinstance(node, ast.Import):
            yield from (a.name.removeprefix("hushbot.") for a in node.names if a.name.startswith("hushbot."))


def test_every_module_stands_on_a_floor() -> None:
    homeless = [name for name in module_files() if floor_of(name) is None and name not in {"configs"}]
    assert len(module_files()) > 20
    assert homeless == []


def test_imports_point_down() -> None:
    wrong = []
    for name, path in module_files().items():
        for imported in imports_of(path):
            floor, other = floor_of(name), floor_of(imported)
            allowed = other is None or (floor is not None and other <= floor)
            if not allowed and (name, imported.split(".")[0]) not in FREE_FOR_PRETRAINING:
                wrong.append(f"{name} imports {imported}")
    assert wrong == []


def test_recipes_and_attacks_do_not_import_each_other() -> None:
    wrong = [
        f"{name} imports {imported}"
        for name, path in module_files().items()
        for imported in imports_of(path)
        if {name.split(".")[0], imported.split(".")[0]} == {"recipes", "attacks"}
    ]
    assert wrong == []


def test_foundation_imports_no_torch() -> None:
    for name in ("types", "errors", "schema", "prompts", "tokens", "cli", "composition"):
        tree = ast.parse(module_files()[name].read_text(encoding="utf-8"))
        names = {
            (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
            for node in tree.body
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        assert not {n for n in names if n.split(".")[0] in {"torch", "transformers", "hydra"}}, name


def test_no_dumping_grounds() -> None:
    assert [name for name in module_files() if name.split(".")[-1] in BANNED_NAMES] == []


def test_commands_are_wiring_only() -> None:
    for path in (ROOT / "src" / "hushbot" / "commands").glob("*.py"):
        assert path.read_text(encoding="utf-8").count("\n") <= 80, f"{path.name} is more than wiring"
