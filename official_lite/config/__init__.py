"""The config of a run, from the command line, YAML and gin. This package needs no TensorFlow."""
