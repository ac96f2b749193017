"""Registries, and the resolution of the names in a config to classes and functions.

A registry is a nested dictionary of things that a config can name. A name is a path such as
`vision/image_classification/resnet18`, in which each part except the last is a group. Keys that are
not strings, such as config classes, are stored unchanged::

    _TASKS: plugins.Collection = {}

    @plugins.register(_TASKS, "vision/digits")
    class DigitsTask: ...

    plugins.lookup(_TASKS, "vision/digits")

A spec is one of the following, tried in this order:

* a registered name: `my_hook`, `vision/digits`
* a top-level class or function of an importable module: `my_package.hooks:MyHook`
* a top-level class or function of a file: `{workspace}/hooks.py:MyHook`, or `{workspace}/hooks.py`
  if the file defines exactly one class of the requested kind

A spec cannot name an attribute of a class or an object (`:MyHook.method`) or a private name of a
module (`:_MyHook`).

Files are loaded under generated module names, so two files called `hooks.py` do not collide and
`sys.path` does not change. Exceptions that a module raises while it is imported are passed through
unchanged.

Where a config lists things to create, an entry is a spec, or a dictionary of the spec as `name` and
its arguments: `{name: early_stopping, metric: accuracy, patience: 3}`.

Under a `Restriction`, which `--safe_config` sets, a config may name only what is registered, and no
argument of an entry may be a path that leads out of the run's directory.
"""

import ast
import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import inspect
import os
import pathlib
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from importlib import metadata
from types import ModuleType
from typing import Any, TypeVar

from absl import logging

from official_lite.common import errors, suggestions

Collection = dict[Any, Any]
Registered = TypeVar("Registered")

import_hint = (
    "Make sure that the module that registers it is imported: pass `--import my_package`, or "
    "import it in `registry_imports.py` or in your code."
)


class DuplicateNameError(errors.ConfigError, KeyError):
    """A name that is registered for two different things."""


def register(
    registered_collection: Collection, reg_key: Hashable
) -> Callable[[Registered], Registered]:
    """Return a decorator that registers an object under `reg_key` and returns it unchanged.

    An object is identified by its module and qualified name. Registering it again replaces the old
    one, so reloading a module or running a notebook cell twice works.

    Raises:
        DuplicateNameError: (a `KeyError`) The key, or a part of its path, already names something
            else.
        ConfigValueError: The name has an empty part, `..` or a control character.
    """

    def decorator(registered: Registered) -> Registered:
        group, leaf = _group_of(registered_collection, reg_key)
        if leaf in group and not _is_same(group[leaf], registered):
            raise DuplicateNameError(
                f"{_shown(reg_key)} is already registered as {_description(group[leaf])}. Register "
                f"{_description(registered)} under another name."
            )
        group[leaf] = registered
        return registered

    return decorator


def lookup(registered_collection: Collection, reg_key: Hashable) -> Any:
    """Return the object that is registered under `reg_key`.

    Raises:
        UnknownNameError: (a `LookupError`) The name is unknown, names a group, or continues beyond
            a registered name. The message suggests the nearest names.
    """
    if not isinstance(reg_key, str):
        if reg_key in registered_collection:
            return registered_collection[reg_key]
        raise _unregistered(registered_collection, reg_key)
    found: Any = registered_collection
    for part in reg_key.split("/"):
        if not isinstance(found, dict) or part not in found:
            raise _unregistered(registered_collection, reg_key)
        found = found[part]
    if isinstance(found, dict):
        raise errors.UnknownNameError(
            f"{reg_key!r} is a group of names, not a name. "
            f"{suggestions.did_you_mean('', (f'{reg_key}/{name}' for name in names(found)))}"
        )
    return found


def names(registered_collection: Collection) -> list[str]:
    """Return all registered names in alphabetical order, without keys that are not strings."""
    return sorted(_walk(registered_collection))


def _walk(collection: Collection) -> Iterator[str]:
    for key, value in collection.items():
        if not isinstance(key, str):
            continue
        if isinstance(value, dict):
            yield from (f"{key}/{name}" for name in _walk(value))
        else:
            yield key


def _group_of(collection: Collection, key: Hashable) -> tuple[Collection, Hashable]:
    if not isinstance(key, str):
        return collection, key
    *group_names, leaf = _checked_parts(key)
    group = collection
    for depth, part in enumerate(group_names, start=1):
        group = group.setdefault(part, {})
        if not isinstance(group, dict):
            prefix = "/".join(group_names[:depth])
            raise DuplicateNameError(
                f"{key!r} can't be registered: {prefix!r} is already registered as "
                f"{_description(group)}, so it can't be a group of names as well. Use another name."
            )
    return group, leaf


def _checked_parts(name: str) -> list[str]:
    parts = name.split("/")
    if not name.isprintable() or any(part in ("", ".", "..") for part in parts):
        raise errors.ConfigValueError(
            f"{name!r} is not a valid name. Expected parts separated by single slashes, such as "
            "`vision/digits`, without `..` or control characters."
        )
    return parts


def _is_same(old: Any, new: Any) -> bool:
    if old is new or (isinstance(old, str) and old == new):
        return True
    identity = _identity(new)
    return identity is not None and identity == _identity(old)


def _identity(thing: Any) -> tuple[str, str] | None:
    """Return an object's module and qualified name; None if they do not identify the object.

    Lambdas and objects defined inside functions have no unique name.
    """
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if module is None or name is None or "<" in name:
        return None
    return module, name


def _unregistered(collection: Collection, key: Hashable) -> errors.UnknownNameError:
    if isinstance(key, str):
        answer = suggestions.did_you_mean(key, names(collection))
    else:
        # Remove the backticks, because `did_you_mean` adds them.
        others = (_shown(other).strip("`") for other in collection if not isinstance(other, str))
        answer = suggestions.did_you_mean(_shown(key).strip("`"), others)
    message = f"{_shown(key)} is not registered. {answer} {import_hint}"
    return errors.UnknownNameError(message.replace("  ", " "))


def _shown(key: Hashable) -> str:
    return repr(key) if isinstance(key, str) else _description(key)


def _description(thing: Any) -> str:
    if isinstance(thing, dict):
        return "a group of names"
    if isinstance(thing, str):
        return f"`{thing}`"
    return f"`{name_of(thing)}`" if hasattr(thing, "__qualname__") else repr(thing)


# The prefix of the module names that are generated for files.
FILE_MODULES = "official_lite_plugin_"


def module_of(thing: Any) -> str:
    """Return the module name of a class, function or module; for a loaded file, its path."""
    name = str(thing.__name__ if isinstance(thing, ModuleType) else thing.__module__)
    if not name.startswith(FILE_MODULES):
        return name
    return str(getattr(sys.modules.get(name), "__file__", None) or name)


def name_of(thing: Any) -> str:
    """Return `package.module.Class` or `path/to/file.py:Class`."""
    separator = ":" if thing.__module__.startswith(FILE_MODULES) else "."
    return f"{module_of(thing)}{separator}{thing.__qualname__}"


def described(function: Callable[..., Any]) -> str:
    """Return the name of a function, and the file and line where it starts, for a message."""
    inner = inspect.unwrap(getattr(function, "__func__", function))
    code = getattr(inner, "__code__", None)
    place = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
    return f"`{getattr(inner, '__qualname__', inner)}`{place}"


def require_signature(function: Callable[..., Any], remedy: str, *args: str, **kwargs: str) -> None:
    """Check that a function or class accepts the positional and keyword arguments of a call.

    The values of the arguments do not matter; `remedy` ends the message.

    Raises:
        ConfigTypeError: The function does not accept these arguments.
    """
    try:
        # Check the signature of a wrapper itself, because a wrapper, such as that of
        # `gin.configurable`, may add arguments.
        inspect.signature(function, follow_wrapped=False).bind(*args, **kwargs)
    except TypeError as error:
        is_class = inspect.isclass(function)
        shown = described(inspect.getattr_static(function, "__init__") if is_class else function)
        arguments = ", ".join([*args, *(f"{name}=…" for name in kwargs)])
        call = f"{getattr(function, '__name__', function)}({arguments})"
        raise errors.ConfigTypeError(
            f"{shown} is called as `{call}`, but does not accept these arguments: {error}. {remedy}"
        ) from error


def require_constructed(thing: object, attribute: str, arguments: str = "") -> None:
    """Check that an object has an attribute that the constructor of its base class sets.

    Raises:
        ConfigTypeError: The object lacks the attribute. The message shows how to call the
            constructor with `arguments`.
    """
    if not hasattr(thing, attribute):
        raise errors.ConfigTypeError(
            f"{described(type(thing).__init__)} does not call the constructor of the base class. "
            f"Add `super().__init__({arguments})` as its first line."
        )


@dataclasses.dataclass(frozen=True)
class Restriction:
    """A limit on configs, which may then name only what is registered.

    Attributes:
        reason: The reason, as the second half of a sentence, and the remedy.
        trusted: Specs, entries and paths that were passed by code and are exempt.
    """

    reason: str
    trusted: Sequence[Any] = ()


_restriction: Restriction | None = None


def restrict(restriction: Restriction | None) -> None:
    """Set the restriction of this process; None removes it."""
    global _restriction
    _restriction = restriction


def restriction() -> Restriction | None:
    """Return the restriction of this process, so that it can be passed to child processes."""
    return _restriction


def refuse(value: Any, problem: str, remedy: str) -> None:
    """Raise an error for a config value under a restriction, unless the value is trusted.

    Raises:
        ConfigValueError: The value is refused. The message contains the problem, the reason of the
            restriction, and the remedy.
    """
    if _restriction is not None and value not in _restriction.trusted:
        raise errors.ConfigValueError(f"{problem}, and {_restriction.reason} {remedy}")


def refuse_code(spec: str) -> None:
    """Raise an error under a restriction for a text that would import a module or run a file.

    Raises:
        ConfigValueError: The text is refused.
    """
    if names_code(spec):
        # The config sets the workspace and so determines which file a relative path refers to. A
        # relative path is therefore never trusted.
        given = None if _names_relative_file(spec) else spec
        refuse(given, f"{spec!r} can run code", "Use a registered name instead.")


def resolve(
    spec: Any,
    *,
    registry: Collection | None = None,
    base: type | None = None,
    workspace: str | os.PathLike[str] | None = None,
    kind: str = "plugin",
) -> Any:
    """Return the class or callable that `spec` names.

    Args:
        spec: A string as described in the module docstring. Anything else is returned as is, so
            code may pass a class where a config passes its name.
        registry: The registered names. A name may be registered with another spec, which is then
            resolved, so a class can be registered without importing it.
        base: The required type of the result. A class must be a subclass of it; any other object
            must be an instance of it or a callable that creates one.
        workspace: The value of `{workspace}` and the directory that relative file paths start from.
            Defaults to the current directory.
        kind: What is being resolved, for error messages.

    Raises:
        UnknownNameError: `spec` is neither a registered name nor an existing module, file or
            attribute.
        ConfigTypeError: The result does not match `base`.
        ConfigValueError: A file without `:Attr` defines no class of the requested kind or more than
            one; the spec contains `{workspace}` and there is no workspace; it names a private or
            nested attribute; or a restriction refuses it.
    """
    found = spec
    if isinstance(spec, str):
        found = _find(spec, registry, base, workspace, kind)
    _check_base(found, base, spec, kind)
    return found


def factory(
    entry: Any,
    *,
    num_args: int = 0,
    registry: Collection | None = None,
    base: type | None = None,
    workspace: str | os.PathLike[str] | None = None,
    kind: str = "plugin",
    is_part: bool = False,
) -> Callable[..., Any]:
    """Return a callable that creates the object described by a config entry.

    Nothing is created yet.

    Args:
        entry: A spec, or a dictionary of `name` and keyword arguments.
        num_args: The number of positional arguments with which the factory will be called.
        registry: As for `resolve`.
        base: As for `resolve`.
        workspace: As for `resolve`.
        kind: As for `resolve`.
        is_part: Whether the entry is an argument of another entry, whose paths have been checked.

    Raises:
        ConfigTypeError: The entry is neither a spec nor such a dictionary, or an argument is
            missing.
        ConfigValueError: An argument is a path that the restriction refuses.
        UnknownNameError: The name is unknown, or the object has no argument of a given name.
    """
    named = entry if isinstance(entry, Mapping) else {"name": entry}
    if not isinstance(entry, str | Mapping) or not isinstance(named.get("name"), str):
        raise errors.ConfigTypeError(
            f"A {kind} must be a name or a mapping such as {{name: …, argument: value}}; got "
            f"{entry!r}."
        )
    name, arguments = named["name"], {k: v for k, v in named.items() if k != "name"}
    if not is_part:
        _refuse_paths_outside(entry, arguments, f"{kind} {name!r}")
    found = resolve(name, registry=registry, base=base, workspace=workspace, kind=kind)
    _check_arguments(found, num_args, arguments, f"{kind} {name!r}")
    return functools.partial(found, **arguments)


def import_spec(spec: str, *, kind: str = "plugin") -> Any:
    """Import the object that a spec names. Restrictions do not apply: the spec comes from code.

    Raises:
        UnknownNameError: The module, file or attribute does not exist.
    """
    return _import(spec, None, None, kind)


def load_module(spec: str, *, workspace: str | os.PathLike[str] | None = None) -> ModuleType:
    """Import `my_package.module`, or the file that a path ending in `.py` names.

    Raises:
        UnknownNameError: The module or file does not exist.
    """
    if _is_file(spec):
        return _load_file(_path_of(spec, workspace))
    try:
        return importlib.import_module(spec)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{spec}.".startswith(f"{error.name}."):
            raise
        raise errors.UnknownNameError(
            f"{spec!r} can't be imported: there is no module `{error.name}`. Install it, or start "
            "Python in the directory that contains it. To import a file, pass its path: "
            f"`{spec}.py`."
        ) from error


def names_code(spec: str) -> bool:
    """Return whether a text, used as a spec, would import a module or run a file."""
    return _is_file(spec) or _split(spec)[1] is not None


def _find(
    spec: str,
    registry: Collection | None,
    base: type | None,
    workspace: str | os.PathLike[str] | None,
    kind: str,
) -> Any:
    known = names(registry) if registry else []
    if registry and spec in known:
        found = lookup(registry, spec)
        return _import(found, base, workspace, kind) if isinstance(found, str) else found
    if not names_code(spec):
        raise _unknown(spec, known, kind)
    refuse_code(spec)
    return _import(spec, base, workspace, kind)


def _import(
    spec: str, base: type | None, workspace: str | os.PathLike[str] | None, kind: str
) -> Any:
    module_spec, attribute = _split(spec)
    if not names_code(spec):
        raise _unknown(spec, [], kind)
    if attribute is not None:
        return _attribute_of(load_module(module_spec, workspace=workspace), attribute, spec)
    return _only_subclass(load_module(spec, workspace=workspace), base, spec, kind)


def _split(spec: str) -> tuple[str, str | None]:
    module_spec, _, attribute = spec.rpartition(":")
    # The colon of `C:\hooks.py` is followed by text that cannot be an attribute.
    if module_spec and all(part.isidentifier() for part in attribute.split(".")):
        return module_spec, attribute
    return spec, None


def _is_file(spec: str) -> bool:
    return spec.endswith(".py")


def _names_relative_file(spec: str) -> bool:
    path, _ = _split(spec)
    return _is_file(path) and not os.path.isabs(os.path.expanduser(path))


def _path_of(spec: str, workspace: str | os.PathLike[str] | None) -> pathlib.Path:
    if "{workspace}" in spec:
        if workspace is None:
            raise errors.ConfigValueError(
                f"{spec!r} can't be resolved, because no workspace is set. Write the full path, "
                "or set `workspace`."
            )
        spec = spec.replace("{workspace}", os.fspath(workspace))
    path = pathlib.Path(workspace or ".", spec).expanduser().resolve()
    if not path.is_file():
        near = [str(other) for other in path.parent.glob("*.py")]
        raise errors.UnknownNameError(
            f"There is no file `{path}`. {suggestions.did_you_mean(str(path), near)}".rstrip()
        )
    return path


def _load_file(path: pathlib.Path) -> ModuleType:
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:12]
    name = f"{FILE_MODULES}{digest}_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise errors.UnknownNameError(f"`{path}` can't be imported as Python source.")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickle look up the module by name while it is still being executed.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        _explain_import(error, path)
        raise
    return module


def _explain_import(error: BaseException, path: pathlib.Path) -> None:
    """Raise an error with a remedy if a file failed to import another file of its directory."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        neighbor = path.parent / error.name.partition(".")[0]
        if neighbor.is_dir() or neighbor.with_suffix(".py").is_file():
            raise errors.ConfigValueError(
                f"`{path}` imports `{error.name}`, which is next to it but not on Python's path. "
                f"Set PYTHONPATH={path.parent}."
            ) from error
    elif isinstance(error, ImportError) and "attempted relative import" in str(error):
        raise errors.ConfigValueError(
            f"`{path}` has a relative import, such as `from . import helper`, but a file that is "
            "loaded by its path belongs to no package. Write `import helper` and set "
            f"PYTHONPATH={path.parent}, or name the module instead of the file: "
            f"`{path.parent.name}.{path.stem}`, from the directory that contains "
            f"`{path.parent.name}`."
        ) from error


def _attribute_of(module: ModuleType, attribute: str, spec: str) -> Any:
    name, dot, _ = attribute.partition(".")
    # Do not use `vars(module)`, because some modules create attributes on access.
    is_there = hasattr(module, name)
    if is_there and not dot and not name.startswith("_"):
        return getattr(module, name)
    if is_there:
        raise errors.ConfigValueError(
            f"{spec!r}: `{attribute}` is {'nested in' if dot else 'private in'} "
            f"`{name if dot else module_of(module)}`; expected a public class or function that a "
            "module defines directly, such as `package.module:Class`."
        )
    public = [name for name in vars(module) if not name.startswith("_")]
    raise errors.UnknownNameError(
        f"{spec!r}: there is no `{name}` in `{module_of(module)}`. "
        f"{suggestions.did_you_mean(name, public)}".rstrip()
    )


def _only_subclass(module: ModuleType, base: type | None, spec: str, kind: str) -> Any:
    if base is None:
        raise errors.ConfigValueError(
            f"{spec!r} is a file; name the {kind} in it as well: `{spec}:Name`."
        )
    candidates = [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and value.__module__ == module.__name__
        and issubclass(value, base)
        and not inspect.isabstract(value)
    ]
    if len(candidates) == 1:
        return candidates[0]
    found = " and ".join(f"`{candidate.__name__}`" for candidate in candidates) or "none"
    example = candidates[0].__name__ if candidates else "Name"
    raise errors.ConfigValueError(
        f"{spec!r} must define exactly one subclass of `{base.__name__}`; found {found}. Name one "
        f"of them: `{spec}:{example}`."
    )


def stays_inside(path: str) -> bool:
    """Return whether a path is relative and stays inside the directory that it is joined to."""
    is_relative = not os.path.isabs(path) and "://" not in path
    return is_relative and path.isprintable() and ".." not in path.replace("\\", "/").split("/")


def require_subdirectory(path: str, field: str) -> None:
    """Check that a path is the name of a subdirectory or a relative path to one.

    Raises:
        ConfigValueError: The path leads out of the directory or has control characters.
    """
    if not stays_inside(path):
        raise errors.ConfigValueError(
            f"`{field}` must be the name of a subdirectory, without a leading slash, `..` or "
            f"control characters; got {path!r}."
        )


def _refuse_paths_outside(entry: Any, arguments: Mapping[str, Any], described: str) -> None:
    for name, value in arguments.items():
        for text in _texts(value):
            if text.startswith("~") or not stays_inside(text):
                refuse(
                    entry,
                    f"`{name}` of the {described} is {text!r}, which is outside the model "
                    "directory",
                    "Expected a relative path without `..`.",
                )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for element in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(element)


def _may_be_a_number(value: Any) -> bool:
    """Return whether a constructor might convert a value to a number."""
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return False
    return not isinstance(value, Mapping)


def _check_arguments(
    found: Callable[..., Any], num_args: int, arguments: Mapping[str, Any], described: str
) -> None:
    parameters = inspect.signature(found).parameters
    named = [p.name for p in parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    named = named[num_args:]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name in arguments:
        if name not in named and not takes_any:
            raise errors.UnknownNameError(
                f"The {described} has no argument `{name}`. "
                f"{suggestions.did_you_mean(name, named) if named else 'It takes no arguments.'}"
            )
        annotation = parameters[name].annotation if name in parameters else ""
        wanted = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        is_number = wanted.removesuffix(" | None") in ("bool", "float", "int")
        if is_number and not _may_be_a_number(arguments[name]):
            raise errors.ConfigTypeError(
                f"The argument `{name}` of the {described} must be {wanted}; got "
                f"{arguments[name]!r}."
            )
    try:
        inspect.signature(found).bind(*[None] * num_args, **arguments)
    except TypeError as error:
        required = [p.name for p in parameters.values() if p.default is p.empty and p.name in named]
        wanted = "".join(f", {name}: …" for name in required)
        raise errors.ConfigTypeError(
            f"The {described} can't be created: {error}. Expected {{name: …{wanted}}}."
        ) from error


def _check_base(found: Any, base: type | None, spec: Any, kind: str) -> None:
    if base is None or isinstance(found, base):
        return
    if inspect.isclass(found):
        if issubclass(found, base):
            return
        problem = f"`{name_of(found)}` is not a subclass of it"
    elif callable(found):
        return
    else:
        problem = f"got {found!r}"
    raise errors.ConfigTypeError(f"The {kind} {spec!r} must be a `{name_of(base)}`; {problem}.")


def _unknown(spec: str, known: list[str], kind: str) -> errors.UnknownNameError:
    within = [name for name in known if name.startswith(f"{spec}/")]
    answer = suggestions.did_you_mean(spec, within or known)
    if "." in spec:
        answer = f"If it is a class in a module, write `{':'.join(spec.rsplit('.', 1))}`. {answer}"
    message = f"There is no {kind} {spec!r}. {answer} {import_hint}"
    return errors.UnknownNameError(message.replace("  ", " "))


@functools.cache
def import_group(group: str) -> tuple[str, ...]:
    """Import the modules that installed packages declare in a group, once per process.

    A module that cannot be imported is skipped with a warning, because the run may not need it.

    Returns:
        One sentence about each module that was skipped.
    """
    left_out = []
    for entry_point in sorted(metadata.entry_points(group=group), key=_origin):
        try:
            entry_point.load()
        # Catch everything: this is third-party code, which may even try to exit the process.
        except (Exception, SystemExit) as error:
            left_out.append(
                f"The entry point `{entry_point.name} = {entry_point.value}` of "
                f"{_origin(entry_point)} can't be imported: {type(error).__name__}: {error}."
            )
            logging.warning("%s", left_out[-1])
    return tuple(left_out)


def _origin(entry_point: metadata.EntryPoint) -> str:
    distribution = entry_point.dist
    return f"{distribution.name} {distribution.version}" if distribution else "an unknown package"


def attach_stub(importer: str, file: str) -> tuple[Callable[[str], Any], list[str]]:
    """Return the `__getattr__` and the `__all__` of a module whose names are listed in a stub.

    The stub `__init__.pyi` next to `__init__.py` lists each name once, as type checkers require::

        from official_lite.nas.choices import Cell as Cell

    The module imports `Cell` when it is used for the first time::

        __getattr__, __all__ = plugins.attach_stub(__name__, __file__)

    This is the convention of SPEC 1 of Scientific Python.

    Args:
        importer: The `__name__` of the module. The modules of a package are found, too.
        file: The `__file__` of the module.
    """
    tree = ast.parse(pathlib.Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    sources = {alias.name: str(node.module) for node in imports for alias in node.names}

    def find(name: str) -> Any:
        module = sys.modules[importer]
        if name in sources:
            found = getattr(importlib.import_module(sources[name]), name)
            setattr(module, name, found)
            return found
        # `from package import module` looks up an attribute before it imports the module.
        if not name.startswith("_") and hasattr(module, "__path__"):
            if importlib.util.find_spec(f"{importer}.{name}"):
                return importlib.import_module(f"{importer}.{name}")
        raise AttributeError(f"module {importer!r} has no attribute {name!r}")

    return find, [*sources]
