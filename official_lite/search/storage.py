"""Where a study is kept, and how it is opened: by workers, by trials, by whoever looks at it."""

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
import sqlalchemy.exc
from optuna import pruners, samplers, storages
from optuna.storages import journal
from sqlalchemy import pool

from official_lite.common import errors, files, plugins
from official_lite.search import search_config

__all__ = ["CONFIG_FILE", "create_study", "open_study", "read_config"]

CONFIG_FILE = "search.yaml"
_JOURNAL = "study.journal"
_ORIGIN = "official_lite"


def create_study(
    config: search_config.SearchConfig,
    study_dir: str,
    *,
    origin: Mapping[str, Any],
    allow_config_change: bool = False,
) -> optuna.Study:
    """Creates a study, or opens the one that is there.

    Args:
        config: Of the study.
        study_dir: The directory of the study.
        origin: What must be the same for values to be comparable, by name.
        allow_config_change: Whether it may differ all the same.

    Raises:
        errors.ConfigError: The study that is there looks for something else, or the storage can't
            be opened.
    """
    if not config.storage and files.is_remote(study_dir):
        raise errors.ConfigValueError(
            f"The journal of a study can't be kept in {study_dir}: it has to be appended to. "
            "Set `search.storage` to a database."
        )
    files.makedirs(study_dir)
    study = optuna.create_study(
        storage=_open_storage(config, study_dir),
        study_name=_study_name(config, study_dir),
        directions=config.directions,
        sampler=samplers.RandomSampler(),
        load_if_exists=True,
    )
    wanted = {**origin, "search.direction": config.directions}
    if _ORIGIN not in study.user_attrs:
        study.set_user_attr(_ORIGIN, wanted)
    _check_origin(study.user_attrs[_ORIGIN], wanted, study_dir, allow_config_change)
    return study


def open_study(
    config: search_config.SearchConfig,
    study_dir: str,
    sampler: samplers.BaseSampler | None = None,
    pruner: pruners.BasePruner | None = None,
) -> optuna.Study:
    """Opens a study that is there.

    Args:
        config: Of the study. Nothing that it names is imported.
        study_dir: Its directory.
        sampler: How new trials are chosen, for whoever asks for one.
        pruner: What ends trials early, for whoever runs them.

    Raises:
        errors.ConfigError: There is none.
    """
    try:
        return optuna.load_study(
            study_name=_study_name(config, study_dir),
            storage=_open_storage(config, study_dir),
            sampler=sampler or samplers.RandomSampler(),
            pruner=pruner or pruners.NopPruner(),
        )
    except KeyError as error:
        raise errors.ConfigValueError(
            f"There is no study {_study_name(config, study_dir)!r} in {_describe(config)}."
        ) from error


def read_config(study_dir: str, given_storages: Sequence[str] = ()) -> search_config.SearchConfig:
    """Read the config of a study that may come from anywhere, so as to look at the study.

    Args:
        study_dir: The directory of the study.
        given_storages: The databases that may be opened. To open one is to connect to a server, or
            to write its tables into a file.

    Raises:
        errors.ConfigError: There is no study, or it is in a database that was not given.
    """
    path = os.path.join(study_dir, CONFIG_FILE)
    if not files.exists(path):
        raise errors.ConfigValueError(f"{study_dir} holds no study: there is no {path}.")
    config = search_config.SearchConfig.from_yaml(path)
    if config.storage:
        given = {_without_password(url): url for url in given_storages}
        if (wanted := _without_password(config.storage)) not in given:
            raise errors.ConfigValueError(
                f"{path} says that the study is in the database {wanted}, and a study may come "
                f"from anywhere. If you trust it, pass --storage={shlex.quote(wanted)}"
            )
        config.storage = given[wanted]
    return config


def _check_origin(
    recorded: Mapping[str, Any], wanted: Mapping[str, Any], study_dir: str, is_allowed: bool
) -> None:
    changed = [
        path for path in sorted({*recorded, *wanted}) if recorded.get(path) != wanted.get(path)
    ]
    can_be_allowed = not any(path.startswith("search.") for path in changed)
    if not changed or (is_allowed and can_be_allowed):
        return
    shown = "\n".join(f"  {p}: {recorded.get(p)!r} -> {wanted.get(p)!r}" for p in changed)
    raise errors.ConfigValueError(
        f"{study_dir} holds a study of something else:\n{shown}\nIts values can't be compared with "
        "those of this one: give another --model_dir"
        + (", or pass --allow_config_change." if can_be_allowed else ".")
    )


def _open_storage(config: search_config.SearchConfig, study_dir: str) -> storages.BaseStorage:
    # Its own lines say what ours say, once more.
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if not config.storage:
        path = os.path.join(study_dir, _JOURNAL)
        return storages.JournalStorage(journal.JournalFileBackend(path))
    plugins.refuse(
        config.storage,
        f"`search.storage` is {_describe(config)}, a database that would be written to",
        "Leave it empty: the study is then in a file of its directory.",
    )
    try:
        # Connections that are kept would be closed by nobody; a study has little to say.
        return storages.RDBStorage(config.storage, engine_kwargs={"poolclass": pool.NullPool})
    except (ImportError, ValueError, sqlalchemy.exc.SQLAlchemyError) as error:
        raise errors.ConfigValueError(
            f"`search.storage`: {_describe(config)} can't be opened: {error}"
        ) from error


def _study_name(config: search_config.SearchConfig, study_dir: str) -> str:
    if config.study_name:
        return config.study_name
    # A journal holds one study, and may be moved together with its directory.
    return os.path.abspath(study_dir) if config.storage else "study"


def _describe(config: search_config.SearchConfig) -> str:
    """The storage without a password."""
    return _without_password(config.storage) if config.storage else "the journal"


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return scheme + separator + rest.rpartition("@")[2]
