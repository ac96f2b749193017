"""Reading of configs named on a command line: an experiment, a file or a model directory."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from official_lite.common import errors, suggestions
from official_lite.config import compatibility, epochs, parsing
from official_lite.core import exp_factory
from official_lite.modeling.hyperparams import yaml_io
from official_lite.run import run_reading

__all__ = ["ConfigSource", "changes", "read"]

_FILES = (".yaml", ".yml", ".json")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfigSource:
    """A config and its origin.

    Attributes:
        name: The name as given.
        kind: `experiment`, `file` or `run`.
        config: Nested plain values. A file may contain only some of the fields.
        given: The fields by path, before `auto`, epochs and ratios were resolved; empty for a file.
    """

    name: str
    kind: str
    config: Mapping[str, Any]
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def values(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the fields by path, once as resolved and once as given."""
        became = compatibility.flatten(self.config)
        return became, {**became, **self.given}


def read(name: str, *, config_files: Sequence[str] = (), sets: Sequence[str] = ()) -> ConfigSource:
    """Read the config that a name refers to. Experiments must already be registered.

    Args:
        name: A file that ends in `.yaml`, `.yml` or `.json`, a model directory, or else an
            experiment.
        config_files: For an experiment: files to apply, as with `--config_file`.
        sets: For an experiment: overrides `path=value`, as with `--set`.

    Raises:
        errors.ConfigError: There is no such config, or it can't be read.
    """
    source = _read_path(name)
    if source is None:
        options = parsing.ParseConfigOptions(
            experiment=name, config_file=[*config_files], set=[*sets]
        )
        params = _parse(options)
        given = compatibility.flatten(epochs.given(params).as_dict())
        return ConfigSource(name=name, kind="experiment", config=params.as_dict(), given=given)
    if config_files or sets:
        raise errors.ConfigValueError(
            f"--config_file and --set require an experiment, but {name} is a {source.kind}."
        )
    return source


def changes(old: ConfigSource, new: ConfigSource) -> list[compatibility.Change]:
    """Return the fields that differ, sorted by path.

    A field of a run counts as equal if either its given or its resolved value agrees, as when a run
    is restarted. Fields that a file does not contain count as equal.
    """
    if {old.kind, new.kind} == {"experiment", "file"}:
        # Apply the file to the experiment, which converts types and TF Model Garden field names.
        old, new = _laid_over(old, new), _laid_over(new, old)
    (became, given), (new_became, new_given) = old.values(), new.values()
    paths = {*became, *given} | {*new_became, *new_given}
    for one, other in ((old, new), (new, old)):
        if one.kind == "file" and other.kind != "file":
            paths &= {*one.values()[0]}
    found = []
    for path in sorted(paths):
        olds = [fields.get(path, compatibility.MISSING) for fields in (became, given)]
        news = [fields.get(path, compatibility.MISSING) for fields in (new_became, new_given)]
        if not any(value in news for value in olds):
            found.append(compatibility.Change(path=path, old=olds[0], new=news[0]))
    return found


def _read_path(name: str) -> ConfigSource | None:
    """Read a file or a run; return None if the name must refer to an experiment."""
    if name.endswith(_FILES):
        return ConfigSource(name=name, kind="file", config=yaml_io.read_yaml(name))
    if not os.path.isdir(name) or not run_reading.is_run(name):
        _refuse_unknown(name)
        return None
    run = run_reading.read_run(name)
    if not run.config:
        why = "; ".join(run.problems) or "it has no params.yaml"
        raise errors.ConfigValueError(f"The config of the run in {name} can't be read: {why}.")
    return ConfigSource(name=name, kind="run", config=run.config, given=run.given)


def _refuse_unknown(name: str) -> None:
    known = exp_factory.list_experiments()
    if name in known or ":" in name:
        return
    if os.path.isdir(name):
        raise errors.ConfigValueError(
            f"The directory {name} is not a model directory: it has no run.json."
        )
    raise errors.UnknownNameError(
        (
            f"{name!r} is not an experiment, a config file or a model directory. "
            f"{suggestions.did_you_mean(name, known)}"
        ).rstrip()
    )


def _laid_over(one: ConfigSource, other: ConfigSource) -> ConfigSource:
    """Return a file applied to the experiment `other`; return an experiment unchanged."""
    return read(other.name, config_files=[one.name]) if one.kind == "file" else one


def _parse(options: parsing.ParseConfigOptions) -> Any:
    return parsing.parse_configuration(options, print_return=False)
