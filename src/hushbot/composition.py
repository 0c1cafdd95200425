"""From the command line's overrides to checked objects: Hydra's compose API with our own errors.

Guarantees: a configuration that composes is plain data (dicts, lists, strings, numbers); every `_target_` is a class of
hushbot, one of its corpus loaders, or lies in a package the user named with `--trust`; every field of a dataclass
target is checked against its type before it is built, and all problems are reported at once, each with its key.
Nothing is executed while composing.

Two spellings of our own on top of Hydra's: `recipe=a+b` (and `attack=a+b`) selects several options of a group, and a
group that holds a dict of components (`recipe`, `attack`) keeps the order in which they were named.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hushbot.errors import ConfigError, HushbotError
from hushbot.storage import without_keys

STACKED_GROUPS = ("recipe", "attack")
"""Groups of which several options may be chosen at once."""
_DICT_GROUPS = (*STACKED_GROUPS, "tracker")
"""Groups that hold components by name; a tracker may also stand by itself."""
_STACK = re.compile(r"[\w+-]*")
_LIST = re.compile(r"\[([\w\s,-]*)\]")
"""A chosen list of plain names; anything else is left to Hydra."""
_NOISE = re.compile("append|HYDRA_FULL_ERROR|search path|provider=|full_key|object_type|hydra.cc")
"""Lines of a Hydra error that mislead or say nothing to a user."""
UNHASHED_KEYS = frozenset(
    {"run", "out", "runs_dir", "comparison", "launcher", "tracker", "arms", "compare", "seeds", "inference", "cache"}
    | {"pace", "key_variable"}
)
"""Top-level keys that change where or how a run happens, not what it measures."""


def compose(name: str, overrides: Sequence[str], *, config_dir: Path | None = None) -> dict[str, Any]:
    """Compose `configs/<name>.yaml` with overrides and resolve it to plain data.

    Raises:
        ConfigError: An override, a group option or an interpolation is wrong, or there is nothing to do.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    spelled = [spell_stack(override) for override in overrides]
    if config_dir is not None:
        if not config_dir.is_dir():
            raise ConfigError(f"--config-dir {config_dir} is not a folder; give the one that holds your groups")
        spelled.append(f"hydra.searchpath=[file://{config_dir.resolve()}]")
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("hushbot.configs", version_base="1.3"):
            config = hydra_compose(name, overrides=spelled)
        plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(explain(error, name)) from error
    except (AssertionError, AttributeError, LookupError, TypeError, ValueError, RecursionError, YAMLError) as error:
        # Hydra's own way to refuse some overrides, such as a number where a group's option is named; or a file of the
        # user's own that is no YAML.
        raise ConfigError(f"{' '.join(spelled)}: not understood ({explain(error, name)})") from error
    if not isinstance(plain, dict):
        raise ConfigError(f"configs/{name}.yaml is a {type(plain).__name__}; it must be a mapping")
    return _with_all_groups({str(key): value for key, value in plain.items()}, name)


def _with_all_groups(config: dict[str, Any], name: str) -> dict[str, Any]:
    """Put in an empty attack group, which Hydra leaves out, and refuse what has nothing to do.

    Without attacks a bot is trained and its utility measured.
    """
    config.setdefault("attack", {})
    if name in ("serve", "chat"):
        return config  # neither trains nor attacks
    needed, example = ("attack", "membership") if name == "audit" else ("recipe", "turn_level")
    if not config.get(needed):
        raise ConfigError(f"{needed}=[]: `hushbot {name}` needs at least one; set {needed}={example}")
    return config


def spell_stack(override: str) -> str:
    """Turn `recipe=a+b` into Hydra's `recipe=[a,b]`, for the groups that can be stacked.

    Raises:
        ConfigError: A name is missing beside a `+`, or is there twice.
    """
    group, equals, choice = override.partition("=")
    if not equals or group not in STACKED_GROUPS:
        return override
    if listed := _LIST.fullmatch(choice):
        names = [item.strip() for item in listed[1].split(",") if item.strip()]
    elif _STACK.fullmatch(choice):
        names = choice.split("+")
        if "" in names or names == ["null"]:
            raise ConfigError(f"{override}: a name is missing; write {group}=NAME, or {group}=NAME+NAME for several")
        override = f"{group}=[{','.join(names)}]"
    else:
        return override
    if repeated := sorted({item for item in names if names.count(item) > 1}):
        raise ConfigError(f"{group}={choice} names {', '.join(repeated)} more than once; name each once")
    return override


def explain(error: BaseException, name: str) -> str:
    """Put a Hydra error in our words: what is wrong along the cause chain, and what was probably meant."""
    lines: list[str] = []
    link: BaseException | None = error
    while link is not None:
        for line in str(link).splitlines():
            text = re.sub(r"^In '[^']*': ", "", line.strip().rstrip("."))
            if text and not _NOISE.search(text) and text not in lines:
                lines.append(text)
        link = link.__cause__
    message = "; ".join(lines).replace("Could not override", "unknown key")
    if (key := getattr(error, "full_key", None)) and key not in message:
        message = f"{key}: {message}"
    missed = re.search(r"(?:unknown key|load) '([\w./]+)'", message)
    if missed and (guess := _near_miss(missed[1], name)):
        message += f"; did you mean `{guess}`?"
    return f"{message} (`hushbot ls` lists what can be chosen)"


def _near_miss(word: str, name: str) -> str | None:
    from rapidfuzz import fuzz, process

    words = set(_keys(config_root() / f"{name}.yaml")) | set(_keys(config_root() / "train.yaml"))
    for path in config_files():
        if path.parent != config_root():
            group = path.parent.name
            words |= {group, f"{group}/{path.stem}", *(f"{group}.{key}" for key in _keys(path))}
    match = process.extractOne(word, sorted(words), scorer=fuzz.ratio, score_cutoff=70)
    return None if match is None else str(match[0])


def _keys(path: Path) -> Iterator[str]:
    """Yield the dotted keys of a configuration file."""
    import yaml

    def walk(node: object, prefix: str) -> Iterator[str]:
        if isinstance(node, Mapping):
            for key, value in node.items():
                yield f"{prefix}{key}"
                yield from walk(value, f"{prefix}{key}.")

    yield from walk(yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else None, "")


def config_root() -> Path:
    """Return the folder of the packaged configuration groups."""
    import hushbot.configs

    return Path(next(iter(hushbot.configs.__path__)))


def config_files() -> list[Path]:
    """Return every packaged YAML file, sorted."""
    return sorted(config_root().rglob("*.yaml"))


def decisive(config: Mapping[str, Any], trust: Sequence[str] = ()) -> dict[str, Any]:
    """Return what decides what a run measures, whatever folder it runs in and however fast: the part that is hashed.

    Settings without effect are known of hushbot's own components and of those that `trust` allows to import.
    """
    return without_keys(config, free_keys(config, trust))


def free_keys(config: Mapping[str, Any], trust: Sequence[str] = ()) -> frozenset[str]:
    """Return the keys that may differ when a run is resumed: `UNHASHED_KEYS`, and what is said to have no effect.

    Recipes say so, and the trainer's settings.

    Without canaries their settings decide nothing, nor do those of a watch that never looks: such a run is the one that
    was made before there were any.
    """
    recipes, canaries, watch = config.get("recipe"), config.get("canaries"), config.get("watch")
    keys = set(UNHASHED_KEYS)
    if isinstance(canaries, Mapping) and canaries.get("m") == 0:
        keys.add("canaries")
    if isinstance(watch, Mapping) and (watch.get("every") is None or config.get("fit") is False):
        keys.add("watch")
    owners = {f"recipe.{name}": node for name, node in (recipes.items() if isinstance(recipes, Mapping) else ())}
    for owner, node in (owners | {"trainer": config.get("trainer")}).items():
        if not isinstance(node, Mapping) or "_target_" not in node:
            continue  # what it is instead is told when the configuration is checked
        with contextlib.suppress(ConfigError):  # likewise, or nobody may import it here
            kind = locate_trusted(str(node["_target_"]), trust)
            keys |= {f"{owner}.{setting}" for setting in getattr(kind, "no_effect", ())}
    return frozenset(keys)


def find_problems(config: Mapping[str, Any], trust: Sequence[str] = ()) -> list[str]:
    """Check every setting and component; return one message per problem.

    Components that are classes are built, since only they know their ranges, unless a `_target_` is not allowed;
    nothing is loaded or run.
    """
    problems = plain_problems(config)
    found, refused = _locate_all(config, trust)
    problems += [f"{key}: {problem}" for key, error in refused.items() for problem in error.problems]
    for key, node in components(config):
        if key not in found:
            continue
        wrong = [f"{key}.{problem}" for problem in argument_problems(found[key], arguments_of(node))]
        inner = [f"{key}.{name}" for name, _ in components(arguments_of(node))]
        # Building a component builds those inside it: nothing is built before all are allowed, and no function is run.
        if not wrong and not refused and all(inspect.isclass(found.get(name)) for name in (key, *inner)):
            wrong = _range_problems(node, key)
        problems += wrong
    return list(dict.fromkeys(problems))


def _locate_all(
    config: Mapping[str, Any], trust: Sequence[str]
) -> tuple[dict[str, Callable[..., Any]], dict[str, ConfigError]]:
    """Return every component's class or function by its key, and the errors of those that are not allowed."""
    found, refused = {}, {}
    for key, node in components(config):
        try:
            found[key] = locate_trusted(str(node["_target_"]), trust)
        except ConfigError as error:
            refused[key] = error
    return found, refused


def _range_problems(node: Mapping[str, Any], key: str) -> list[str]:
    try:
        build(node, key)
    except ConfigError as error:
        return [problem if key in problem else f"{key}: {problem}" for problem in error.problems]
    return []


def plain_problems(config: Mapping[str, Any]) -> list[str]:
    """Check the top-level settings that are no components; return one message per problem.

    Strictly: `reveal=no` is a text to Hydra, and any text would count as yes.
    """
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    problems = []
    for key, hint in _plain_types().items():
        if key not in config:
            continue
        try:
            TypeAdapter(hint, config=ConfigDict(strict=True)).validate_python(config[key])
        except ValidationError as error:
            for wrong in error.errors():
                name = ".".join(str(part) for part in (key, *wrong["loc"]))
                problems.append(f"{name}={wrong['input']!r}: {wrong['msg']}")
    return problems + list(_group_problems(config))


def _group_problems(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message per entry of a group that is no component, such as settings of an option not chosen."""
    for group in _DICT_GROUPS:
        entries = config.get(group, {})
        if group == "tracker" and isinstance(entries, Mapping) and "_target_" in entries:
            continue  # one tracker, as its own file has it
        if not isinstance(entries, Mapping):
            yield f"{group}={entries!r} must be a mapping of components; choose options with {group}=NAME"
            continue
        for key, node in entries.items():
            if not isinstance(node, Mapping) or "_target_" not in node:
                yield (
                    f"{group}.{key}={node!r} is no component; choose the option with {group}=, or leave its settings "
                    f"out with ~{group}.{key}"
                )


def _plain_types() -> dict[str, Any]:
    from pydantic import Field

    count = typing.Annotated[int, Field(ge=1)]
    natural = typing.Annotated[int, Field(ge=0)]
    types: dict[str, Any] = {"seed": natural, "seeds": list[natural], "arms": list[str]}
    types |= dict.fromkeys(("fit", "reveal"), bool)
    types |= dict.fromkeys(("runs_dir", "comparison", "target", "start_text"), str)
    types |= dict.fromkeys(
        ("run", "out", "model", "adapter", "url", "key_variable", "reference_model", "manifest"), str | None
    )
    return types | {"inference": dict[str, count]}


def components(config: object, key: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every mapping with a `_target_`, with its dotted key."""
    if isinstance(config, Mapping):
        if "_target_" in config:
            yield key, config
        for name, value in config.items():
            yield from components(value, f"{key}.{name}" if key else str(name))
    elif isinstance(config, list):
        for i, value in enumerate(config):
            yield from components(value, f"{key}[{i}]")


def locate_trusted(target: str, trust: Sequence[str] = ()) -> Callable[..., Any]:
    """Import what a dotted path names, if it is one of our components or the user trusts its package.

    Of hushbot itself, only classes and corpus loaders are components: a configuration that somebody else wrote must
    not call `hushbot.cli.main`, which can be told to trust anything, nor what a module of ours imports.

    Raises:
        ConfigError: It is neither, or it does not exist; nothing outside was imported.
    """
    if any(target.startswith(f"{package}.") for package in trust):
        return locate(target)
    if not target.startswith("hushbot."):
        raise ConfigError(f"_target_={target!r} lies outside hushbot; name it with `--trust {target.split('.')[0]}`")
    found = locate(target)
    is_loader = target.startswith("hushbot.corpora.") and inspect.isfunction(found)
    if not str(found.__module__).startswith("hushbot.") or not (inspect.isclass(found) or is_loader):
        raise ConfigError(f"_target_={target!r} is no component; name a class of hushbot or one of its corpus loaders")
    return found


def locate(target: str) -> Callable[..., Any]:
    """Import what a dotted path names.

    Raises:
        ConfigError: There is no such module or no such name in it.
    """
    import importlib

    module, _, name = target.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"_target_={target!r} cannot be imported: {error}") from error
    if not callable(found):
        raise ConfigError(f"_target_={target!r} is not a class or a function")
    return typing.cast("Callable[..., Any]", found)


def arguments_of(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of a component, without Hydra's own keys."""
    return {str(name): value for name, value in node.items() if not str(name).startswith("_")}


def argument_problems(component: Callable[..., Any], arguments: Mapping[str, Any]) -> list[str]:
    """Check names and types of keyword arguments; return one message per problem, starting with the name."""
    from pydantic import ValidationError

    parameters = inspect.signature(component).parameters
    problems = [
        f"{name} is not a setting of {component.__qualname__}; it has {', '.join(parameters)}"
        for name in arguments
        if name not in parameters
    ]
    hints = _hints(component)
    for name, parameter in parameters.items():
        if name not in arguments:
            if parameter.default is parameter.empty:
                problems.append(f"{name} is missing")
        elif name in hints and not any(True for _ in components(arguments[name])):
            try:
                _adapter(hints[name]).validate_python(arguments[name])
            except ValidationError as error:
                problems.append(f"{name}={arguments[name]!r}: {error.errors()[0]['msg']}")
    return problems


def build(node: Mapping[str, Any], key: str) -> Any:
    """Build one component, nested ones first; values are converted to their field's type (a tuple for a YAML list).

    Raises:
        ConfigError: A value has the wrong type or is outside its range; the message names the key.
    """
    component = locate(str(node["_target_"]))
    hints = _hints(component)
    arguments = {}
    for name, value in arguments_of(node).items():
        built = _build_nested(value, f"{key}.{name}")
        is_plain = name in hints and not any(True for _ in components(value))
        arguments[name] = _adapter(hints[name]).validate_python(built) if is_plain else built
    try:
        return component(**arguments)
    except HushbotError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{key}: {error}") from error


def _build_nested(value: Any, key: str) -> Any:
    if isinstance(value, Mapping):
        if "_target_" in value:
            return build(value, key)
        return {name: _build_nested(item, f"{key}.{name}") for name, item in value.items()}
    if isinstance(value, list):
        return [_build_nested(item, f"{key}[{i}]") for i, item in enumerate(value)]
    return value


def _hints(component: Callable[..., Any]) -> dict[str, Any]:
    """Return the declared types of a component's settings."""
    is_plain_class = inspect.isclass(component) and not dataclasses.is_dataclass(component)
    return typing.get_type_hints(component.__init__ if is_plain_class else component)


def _adapter(hint: Any) -> Any:
    """Return the pydantic checker of one declared type; a class of our own only accepts its instances."""
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter

    try:
        return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
    except PydanticUserError:
        return TypeAdapter(hint)
