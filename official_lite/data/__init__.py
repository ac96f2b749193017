"""Where examples come from: finding files, reading them, mixing sources, the tf.data service.

Most code wants `official_lite.core.input_reader.InputReader`, which puts these together as a
`DataConfig` says. Nothing is imported here eagerly.
"""

__all__ = ["data_service", "file_patterns", "file_reading", "mixing", "tfds_reading"]
