"""From a command line, YAML and gin to the config of a run. Nothing here needs TensorFlow."""
