"""Where examples come from: finding files, reading them, mixing sources, the tf.data service.

Most code that reads files wants `official_lite.core.input_reader.InputReader`, which puts these
together as a `DataConfig` says; for data in memory there is `arrays.from_arrays`. Nothing is
imported here eagerly.
"""

__all__ = [
    "arrays",
    "data_service",
    "example_stream",
    "file_patterns",
    "file_reading",
    "mixing",
    "position",
    "replicas",
    "tfds_reading",
    "whole_batches",
]
