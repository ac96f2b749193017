"""A config by what a command line calls it: an experiment, a file, or the folder of a run."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from official_lite.common import errors, suggestions
from official_lite.core import config_changes, config_parsing, exp_factory
from official_lite.modeling.hyperparams import yaml_io
from official_lite.reports import run_reading

__all__ = ["ConfigSource", "changes", "read"]

_FILES = (".yaml", ".yml", ".json")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfigSource:
    """A config, and where it is from.

    Attributes:
        name: As it was called.
        kind: `experiment`, `file` or `run`.
        config: Nested plain values. A file may hold a few of them only.
        given: Of a run: its fields by their paths before `auto` and epochs were decided.
    """

    name: str
    kind: str
    config: Mapping[str, Any]
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def values(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The fields by their paths: what became of them, and as they were given."""
        became = config_changes.flatten(self.config)
        return became, {**became, **self.given}


def read(name: str, *, config_files: Sequence[str] = (), sets: Sequence[str] = ()) -> ConfigSource:
    """The config that a name means; experiments have to be registered by now.

    Args:
        name: A file that ends in `.yaml`, `.yml` or `.json`, the folder of a run, or else an
            experiment.
        config_files: Of an experiment: what is laid over it, as by `--config_file`.
        sets: Of an experiment: `path=value`, as by `--set`.

    Raises:
        errors.ConfigError: There is no such thing, or it can't be read.
    """
    source = _read_path(name)
    if source is None:
        options = config_parsing.ParseConfigOptions(
            experiment=name, config_file=[*config_files], set=[*sets]
        )
        params = _parse(options)
        return ConfigSource(name=name, kind="experiment", config=params.as_dict())
    if config_files or sets:
        raise errors.ConfigValueError(
            f"{name} is a {source.kind}; only an experiment takes --config_file and --set."
        )
    return source


def changes(old: ConfigSource, new: ConfigSource) -> list[config_changes.Change]:
    """The fields that differ, by their paths.

    A run may agree by what it was given or by what became of it, as when it is started again. What
    a file does not say is as in the other.
    """
    if {old.kind, new.kind} == {"experiment", "file"}:
        # Read as a command would, with its types and the names that TFM has for fields.
        old, new = _laid_over(old, new), _laid_over(new, old)
    (became, given), (new_became, new_given) = old.values(), new.values()
    paths = {*became, *given} | {*new_became, *new_given}
    for one, other in ((old, new), (new, old)):
        if one.kind == "file" and other.kind != "file":
            paths &= {*one.values()[0]}
    found = []
    for path in sorted(paths):
        olds = [fields.get(path, config_changes.MISSING) for fields in (became, given)]
        news = [fields.get(path, config_changes.MISSING) for fields in (new_became, new_given)]
        if not any(value in news for value in olds):
            found.append(config_changes.Change(path=path, old=olds[0], new=news[0]))
    return found


def _read_path(name: str) -> ConfigSource | None:
    """That of a file or a run; None if the name must be that of an experiment."""
    if name.endswith(_FILES):
        return ConfigSource(name=name, kind="file", config=yaml_io.read_yaml(name))
    if not os.path.isdir(name) or not run_reading.is_run(name):
        _refuse_unknown(name)
        return None
    run = run_reading.read_run(name)
    if not run.config:
        why = "; ".join(run.problems) or "it has no params.yaml"
        raise errors.ConfigValueError(f"The run in {name} has no config to be read: {why}.")
    return ConfigSource(name=name, kind="run", config=run.config, given=run.given)


def _refuse_unknown(name: str) -> None:
    known = exp_factory.list_experiments()
    if name in known or ":" in name:
        return
    if os.path.isdir(name):
        raise errors.ConfigValueError(f"The folder {name} is not that of a run: no run.json there.")
    raise errors.UnknownNameError(
        f"{name!r} is no experiment, no config file and no folder of a run. "
        f"{suggestions.did_you_mean(name, known)}".rstrip()
    )


def _laid_over(one: ConfigSource, other: ConfigSource) -> ConfigSource:
    """A file as the experiment with it laid over; an experiment as it is."""
    return read(other.name, config_files=[one.name]) if one.kind == "file" else one


def _parse(options: config_parsing.ParseConfigOptions) -> Any:
    return config_parsing.parse_configuration(options, print_return=False)
