"""Imports everything that registers an experiment. Only configs: TensorFlow is not needed here.

A project of one's own has such a file too, or names its modules with `--import`.
"""

import experiments.vision.digits.configs  # noqa: F401  (imported for its registrations)
