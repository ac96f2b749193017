"""Functions that create, open and inspect the storage of a study."""

import json
import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import optuna
import sqlalchemy.exc
from optuna import pruners, samplers, storages
from optuna.storages import journal
from sqlalchemy import pool

from official_lite.common import errors, files, plugins
from official_lite.config import compatibility
from official_lite.search import search_config

__all__ = ["CONFIG_FILE", "create_study", "open_study", "read_config"]

CONFIG_FILE = "search.yaml"
_JOURNAL = "study.journal"
_ORIGIN = "official_lite"

# In these blocks and fields, a change that is harmless for a run does not affect the values of
# trials either. Elsewhere it may, for example if it adds training steps.
_INCIDENTAL = (
    "prediction.",
    "runtime.",
    "task.predict_data.",
    "task.train_data.",
    "trainer.max_to_keep",
    "trainer.writers",
)


class _Journal(journal.JournalFileBackend):
    """The journal file of a study.

    A killed process or a full disk may leave an incomplete last line. Optuna would append to that
    line and could then no longer read the journal. This class removes the incomplete line before it
    appends.

    Args:
        path: The path of the file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._turn = journal.JournalFileSymlinkLock(path)
        super().__init__(path, self._turn)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        self._turn.acquire()
        try:
            end = _end_of_lines(self._path)
            if end < files.size(self._path):
                files.truncate(self._path, end)
            try:
                with files.open_file(self._path, "ab") as file:
                    file.write(lines.encode())
                    file.flush()
                    os.fsync(file.fileno())
            except OSError:
                files.truncate(self._path, end)
                raise
        finally:
            self._turn.release()


def _end_of_lines(path: str) -> int:
    """Return the position after the last line break of a file."""
    with files.open_file(path, "rb") as file:
        start = file.seek(0, os.SEEK_END)
        tail = b""
        while start > 0 and b"\n" not in tail:
            start = max(0, start - 2**16)
            file.seek(start)
            tail = file.read(2**16)
        return start + tail.rfind(b"\n") + 1


def create_study(
    config: search_config.SearchConfig,
    study_dir: str,
    *,
    origin: Mapping[str, Any],
    optional_origin: Collection[str] = (),
    allow_config_change: bool = False,
) -> optuna.Study:
    """Create a study, or open the existing one.

    Args:
        config: The config of the study.
        study_dir: The directory of the study.
        origin: The settings, by name, that must not change for trial values to be comparable.
        optional_origin: The names in `origin` that the record of an existing study may lack.
        allow_config_change: Whether `origin` may differ from that of the existing study.

    Raises:
        errors.ConfigError: If the existing study has a different objective, space or `origin`, or
            the storage can't be opened.
    """
    if not config.storage and files.is_remote(study_dir):
        raise errors.ConfigValueError(
            f"The journal of a study can't be stored in {study_dir}, which does not support "
            "appending. Set `search.storage` to a database."
        )
    files.makedirs(study_dir)
    study = optuna.create_study(
        storage=_open_storage(config, study_dir),
        study_name=_study_name(config, study_dir),
        directions=config.directions,
        sampler=samplers.RandomSampler(),
        load_if_exists=True,
    )
    measured = {
        "search.final_value": config.final_value,
        "search.mode": config.mode,
        "search.evaluator": search_config.entry_of(config.evaluator),
    }
    wanted = {**origin, "search.direction": config.directions, **measured}
    found = study.user_attrs.get(_ORIGIN)
    if found is not None:
        # Earlier versions did not record how values are measured, nor fields that were added later.
        # They recorded the tasks of a multi-task study as one list instead of one entry per task.
        new = {name: wanted[name] for name in optional_origin}
        recorded = {**new, **measured, **compatibility.by_task(found)}
        _check_origin(recorded, wanted, study_dir, allow_config_change)
    if found != wanted:
        # Later starts of the study must match this config, because its change was allowed.
        study.set_user_attr(_ORIGIN, wanted)
    return study


def open_study(
    config: search_config.SearchConfig,
    study_dir: str,
    sampler: samplers.BaseSampler | None = None,
    pruner: pruners.BasePruner | None = None,
) -> optuna.Study:
    """Open an existing study.

    Args:
        config: The config of the study. The plugins that it names are not imported.
        study_dir: The directory of the study.
        sampler: Sampler for new trials; needed only to create trials.
        pruner: Pruner that ends trials early; needed only to run trials.

    Raises:
        errors.ConfigError: If the study does not exist.
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
            f"There is no study {_study_name(config, study_dir)!r} in {_describe(config)}. Check "
            "the study's directory and `search.study_name`."
        ) from error


def read_config(study_dir: str, given_storages: Sequence[str] = ()) -> search_config.SearchConfig:
    """Read the config of a study from an untrusted source, in order to inspect the study.

    Args:
        study_dir: The directory of the study.
        given_storages: URLs of the databases that may be opened. Opening a database connects to a
            server or writes tables to a file, so a database must be allowed explicitly.

    Raises:
        errors.ConfigError: If there is no study, or its database is not in `given_storages`.
    """
    path = os.path.join(study_dir, CONFIG_FILE)
    if not files.exists(path):
        files.require_directory(study_dir)
        raise errors.ConfigValueError(
            f"{study_dir} is not the directory of a study: {path} does not exist. Pass the "
            "`model_dir` of a search."
        )
    config = search_config.SearchConfig.from_yaml(path)
    if config.storage:
        given = {_without_password(url): url for url in given_storages}
        if (wanted := _without_password(config.storage)) not in given:
            raise errors.ConfigValueError(
                f"{path} names the database {wanted}, which is not opened unless you confirm it. "
                f"If you trust this study, pass --storage={shlex.quote(wanted)}"
            )
        config.storage = given[wanted]
    return config


def _check_origin(
    recorded: Mapping[str, Any], wanted: Mapping[str, Any], study_dir: str, is_allowed: bool
) -> None:
    changed = [
        path
        for path in sorted({*recorded, *wanted})
        if recorded.get(path) != wanted.get(path) and not _is_incidental(path)
    ]
    can_be_allowed = not any(path.startswith("search.") for path in changed)
    if not changed or (is_allowed and can_be_allowed):
        return
    shown = "\n".join(f"  {p}: {recorded.get(p)!r} -> {wanted.get(p)!r}" for p in changed)
    raise errors.ConfigValueError(
        (
            f"{study_dir} contains a study with a different config:\n{shown}\nThe trial values of "
            "the two studies can't be compared. Use another `model_dir`"
        )
        + (
            ", or pass --allow_config_change (in Python: `allow_config_change=True`)."
            if can_be_allowed
            else "."
        )
    )


def _is_incidental(path: str) -> bool:
    is_known = compatibility.without_routine(path).startswith(_INCIDENTAL)
    return is_known and compatibility.is_harmless(path)


def _open_storage(config: search_config.SearchConfig, study_dir: str) -> storages.BaseStorage:
    # Silence Optuna's info messages, which repeat the messages of this package.
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if not config.storage:
        path = os.path.join(study_dir, _JOURNAL)
        return storages.JournalStorage(_Journal(path))
    plugins.refuse(
        config.storage,
        f"`search.storage` is {_describe(config)}, a database to which the study would write",
        "Leave the field empty to store the study in a file in its directory.",
    )
    try:
        # Don't pool connections: nothing would close them, and a study sends few queries.
        return storages.RDBStorage(config.storage, engine_kwargs={"poolclass": pool.NullPool})
    except (ImportError, ValueError, sqlalchemy.exc.SQLAlchemyError) as error:
        raise errors.ConfigValueError(
            f"`search.storage` is {_describe(config)}, which can't be opened: {error}"
        ) from error


def _study_name(config: search_config.SearchConfig, study_dir: str) -> str:
    if config.study_name:
        return config.study_name
    # A journal holds a single study and may be moved together with its directory, so the study's
    # name must not depend on the path.
    return os.path.abspath(study_dir) if config.storage else "study"


def _describe(config: search_config.SearchConfig) -> str:
    """Return the storage URL without user name and password, or `the journal` if none is set."""
    return _without_password(config.storage) if config.storage else "the journal"


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return scheme + separator + rest.rpartition("@")[2]
