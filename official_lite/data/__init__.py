"""Input data: find and read files, mix sources, and use the tf.data service.

Most code that reads files should use `official_lite.core.input_reader.InputReader`, which combines
these modules as configured by a `DataConfig`. For data in memory, use `arrays.from_arrays`. This
package imports none of its modules eagerly.
"""

__all__ = [
    "arrays",
    "data_service",
    "example_stream",
    "file_patterns",
    "file_reading",
    "position",
    "replicas",
]
