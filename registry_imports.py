"""Imports everything that registers an experiment. Only configs: TensorFlow is not needed here.

A project of one's own has such a file too, or names its modules with `--import`.
"""

# Imported for their registrations.
import experiments.nas.digits.configs
import experiments.recommendation.deepfm.configs
import experiments.recommendation.dlrm.configs
import experiments.recommendation.tdm.configs
import experiments.vision.digits.configs  # noqa: F401
