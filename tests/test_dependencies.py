"""The package declares everything that it imports as a dependency."""

import ast
import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).parent.parent
# The distributions whose names differ from their import names, by import name.
DISTRIBUTIONS = {
    "PIL": "pillow",
    "absl": "absl-py",
    "ai_edge_litert": "ai-edge-litert",
    "array_record": "array-record",
    "gin": "gin-config",
    "google": "protobuf",
    "keras_hub": "keras-hub",
    "mlflow": "mlflow-skinny",
    "sklearn": "scikit-learn",
    "tensorflow_datasets": "tensorflow-datasets",
    "yaml": "pyyaml",
}
# Users install `riegeli` themselves, for one of the Model Garden's record formats.
OPTIONAL = {"riegeli"}


def _imported() -> set[str]:
    found = set()
    for path in (ROOT / "official_lite").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    # Tools also import modules of the project in which they are started.
    own = {"official_lite", "registry_imports", "train"}
    return found - own - OPTIONAL - set(sys.stdlib_module_names)


def _name(requirement: str) -> str:
    return re.split(r"[<>=\[]", requirement)[0].strip().lower()


def _declared() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].items()
    lines = [
        *project["dependencies"],
        *(line for name, own in extras if name != "dev" for line in own),
    ]
    return set(map(_name, lines))


def test_every_imported_distribution_is_a_declared_dependency() -> None:
    imported = {DISTRIBUTIONS.get(name, name).lower() for name in _imported()}
    assert imported - _declared() == set()


def test_mlflow_extra_installs_what_a_database_in_the_model_directory_requires() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installed = set(map(_name, project["optional-dependencies"]["mlflow"]))
    assert {"mlflow-skinny", "sqlalchemy", "alembic"} <= installed
