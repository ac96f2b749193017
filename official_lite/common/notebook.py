"""The notebook or IPython shell in which the program runs, if any."""

import builtins
from typing import Any

__all__ = ["cell_of", "shell"]


def shell() -> Any | None:
    """Return the running IPython shell, which a notebook has, too; None in any other program."""
    get_ipython = getattr(builtins, "get_ipython", None)
    return get_ipython() if get_ipython is not None else None


def cell_of(path: str) -> str | None:
    """Return the cell, such as `In[3]`, whose code has this file name in tracebacks."""
    # Older versions of IPython lack the method. Showing an error must not raise another one.
    format_code_name = getattr(getattr(shell(), "compile", None), "format_code_name", None)
    label_and_name = format_code_name(path) if format_code_name is not None else None
    return label_and_name[1] if label_and_name else None
