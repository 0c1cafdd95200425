"""What is declared in pyproject.toml against what is on disk."""

from __future__ import annotations

import tomllib
from pathlib import Path

import hushbot

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_package_on_disk_is_declared() -> None:
    mapped = PROJECT["tool"]["setuptools"]["package-dir"]
    folders = {ROOT / folder: package for package, folder in mapped.items()}
    for init in (ROOT / "src" / "hushbot").rglob("__init__.py"):
        relative = init.parent.relative_to(ROOT / "src")
        folders[init.parent] = ".".join(relative.parts)
    assert sorted(folders.values()) == sorted(PROJECT["tool"]["setuptools"]["packages"])
    assert all((folder / "__init__.py").exists() for folder in folders)


def test_version_is_stated_once() -> None:
    assert PROJECT["project"]["version"] == hushbot.__version__
    assert f"[{hushbot.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_pins_lie_inside_the_ranges() -> None:
    from packaging.requirements import Requirement

    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.lower().replace("_", "-").split("==") for line in lines if line and not line.startswith("#"))
    assert pins["torch"] == "2.13.0"
    for text in PROJECT["project"]["dependencies"]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pins[requirement.name.lower()]), text


def test_top_level_names_do_not_leak() -> None:
    packages = PROJECT["tool"]["setuptools"]["packages"]
    assert all(package == "hushbot" or package.startswith("hushbot.") for package in packages)


def test_assets_are_shipped() -> None:
    package = ROOT / "src" / "hushbot"
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["hushbot"]
    shipped = {path for pattern in patterns for path in package.glob(pattern) if path.is_file()}
    for needed in ("assets/bookings/schema.json", "assets/tiny/model.safetensors", "py.typed"):
        assert package / needed in shipped
