"""Lists of pages and blocks that the tests run in a special way or not at all, with reasons."""

# Pages whose commands are run and not only parsed. The pages of one tuple share a session.
SESSIONS = [
    ("docs/start.md", "docs/tools.md"),
    ("docs/concepts.md",),
    ("docs/how_to/own_data.md", "docs/how_to/own_task.md"),
    ("docs/how_to/regression.md",),
    ("docs/how_to/own_trainer.md",),
    ("docs/how_to/own_hook.md",),
    ("docs/how_to/own_stage.md",),
    ("docs/how_to/own_package.md",),
    ("docs/how_to/inference.md",),
    ("docs/how_to/predict.md",),
    ("docs/how_to/own_files.md",),
    ("docs/how_to/parquet.md",),
    ("docs/how_to/recipes.md",),
    ("docs/how_to/augmentation.md",),
    ("docs/coming_from_keras.md",),
    ("docs/coming_from_lightning.md",),
    ("docs/coming_from_libai.md",),
    ("docs/coming_from_paddlerec.md",),
    ("docs/coming_from_nni.md",),
]

# Pages whose commands take long to run.
SLOW = {
    "docs/tools.md",
    "docs/how_to/own_files.md",
    "docs/how_to/own_task.md",
    "docs/how_to/parquet.md",
    "docs/how_to/own_hook.md",
    "docs/coming_from_nni.md",
}

# The reasons why blocks are not run, by the page and the first words of the block.
NOT_RUN = {
    ("docs/start.md", "git clone"): "fetches and installs",
    ("docs/how_to/parquet.md", "pip install"): "fetches and installs",
    ("docs/how_to/own_package.md", "python -m official_lite.tools new"): (
        "tests/tools/test_new.py does it"
    ),
    ("docs/coming_from_lightning.md", "import lightning"): "Lightning is not installed",
    ("docs/coming_from_libai.md", "from libai"): "LiBai is not installed",
    ("docs/coming_from_paddlerec.md", "from paddlerec"): "PaddleRec is not installed",
    ("docs/coming_from_nni.md", "import nni"): "NNI is not installed",
    ("experiments/tabular/README.md", "from statsmodels"): "statsmodels is not installed",
    ("docs/coming_from_tfm.md", "from official_lite.checkpoint import keras2"): (
        "needs a checkpoint of Keras 2; tests/checkpoint/test_keras2_converter.py makes some"
    ),
}

# Experiments that only code written by the reader registers.
NOT_REGISTERED = {"demo/lines": "is in what `tools new demo` writes"}

# Blocks under a comment such as `<!-- driver -->` are run by the page's own test.
OWN_TESTS = {
    "docs/hooks.md": "tests/end_to_end/test_documented_code.py",
    "docs/nas.md": "tests/end_to_end/test_documented_code.py",
    "docs/porting.md": "tests/ports/test_moved_project.py",
    "docs/search.md": "tests/end_to_end/test_documented_code.py",
    "docs/stages.md": "tests/end_to_end/test_stages.py",
}
