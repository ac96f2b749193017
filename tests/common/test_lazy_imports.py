import pathlib
import subprocess
import sys

INIT = """
from official_lite.common import plugins
__getattr__, __all__ = plugins.attach_stub(__name__, __file__)
"""

STUB = """
from package.heavier import heavier_name as heavier_name
from package.heavy import heavy_name as heavy_name
"""

CHECK = """
import sys
import package
from package import light

def loaded():
    return sorted(name for name in sys.modules if "heav" in name)

assert not hasattr(package, "__wrapped__")
assert sorted(package.__all__) == ["heavier_name", "heavy_name"]
assert loaded() == []
assert package.heavy_name == 1
assert loaded() == ["package.heavy"]
assert package.heavier.heavier_name is package.heavier_name
for hidden in ("unlisted", "nothing"):
    try:
        getattr(package, hidden)
    except AttributeError as error:
        assert str(error) == f"module 'package' has no attribute {hidden!r}"
    else:
        raise AssertionError(hidden)
"""


def test_names_are_found_on_first_use_and_nothing_is_imported_before(
    tmp_path: pathlib.Path,
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text(INIT)
    (package / "__init__.pyi").write_text(STUB)
    (package / "light.py").write_text("")
    (package / "heavy.py").write_text("heavy_name = 1\nunlisted = 2\n")
    (package / "heavier.py").write_text("heavier_name = object()\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{CHECK}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
