"""A script that runs one row: `python -m tests.combinations.process <row> <folder>`."""

import json
import pathlib
import sys

import numpy as np
from absl import flags

from tests.combinations import experiment

flags.FLAGS.mark_as_parsed()
row, folder = json.loads(sys.argv[1]), pathlib.Path(sys.argv[2])
model = experiment.run(row, folder)
np.savez(folder / "weights.npz", **experiment.weights_of(model))
