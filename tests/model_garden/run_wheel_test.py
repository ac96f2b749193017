"""Run one test file of the installed `tf-models-official` wheel against this project's packages.

    python tests/model_garden/run_wheel_test.py official/core/registry_test.py [absl test flags]

The file's text is read from the wheel, its imports are rewritten in memory, and it is run as the
main module. No part of the text is written to disk.
"""

import importlib.metadata
import linecache
import os
import re
import sys

DISTRIBUTION = "tf-models-official"

# The import changes that porting a project requires.
PORT = [
    (r"\bofficial\.", "official_lite."),
    (r"(?m)^import orbit(\.utils)?$", "from official_lite import orbit"),
    (r"(?m)^from orbit\b", "from official_lite.orbit"),
    (r"(?m)^import tensorflow as tf, tf_keras$", "import tensorflow as tf\nimport keras"),
    (r"(?m)^import tf_keras$", "import keras"),
    (r"\btf_keras\b", "keras"),
]
# Names that are in another module here, or private in the Model Garden.
MOVED = [
    (r"from official_lite\.nlp import continuous", "from official_lite.core import continuous"),
    (r"(?m)^.*_orbit_api_gauge.*$", ""),
    # The Model Garden always registers the mock experiment. Here, importing it registers it.
    (
        r"from official_lite.common import registry_imports",
        "import official_lite.utils.testing.mock_task",
    ),
]
# Names that Keras 3 changed; a test written for Keras 2 can't run without these rewrites.
KERAS_3 = [
    (r"\blosses\.MSE\b", "losses.mean_squared_error"),
    (r"\.reset_states\(\)", ".reset_state()"),
    (r"\.optimizers\.(experimental|legacy)\.", ".optimizers."),
    (r"\bself\.model\.variables\b", "self.model.trainable_variables"),
]


def read_source(path: str) -> str:
    """Return the source of a file in the wheel, with all rewrites."""
    located = importlib.metadata.distribution(DISTRIBUTION).locate_file(path)
    with open(os.fspath(located), encoding="utf-8") as file:
        source = file.read()
    for pattern, replacement in PORT + MOVED + KERAS_3:
        source = re.sub(pattern, replacement, source)
    return source


if __name__ == "__main__":
    wheel_path = sys.argv.pop(1)
    source_text = read_source(wheel_path)
    # AutoGraph and tracebacks look the source up here.
    linecache.cache[wheel_path] = (
        len(source_text),
        None,
        source_text.splitlines(keepends=True),
        wheel_path,
    )
    exec(compile(source_text, wheel_path, "exec"), globals())
