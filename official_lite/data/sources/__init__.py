"""Sources of rows: Parquet, Arrow, CSV, Hugging Face datasets and ArrayRecord.

A source divides its rows into chunks, each of which it reads in one call. `DataConfig.source` names
the source, and `InputReader` reads it; see docs/how_to/parquet.md. This package imports none of its
modules eagerly, and the libraries of a source only if a config names it.
"""

__all__ = ["formats", "reading", "registry", "schema"]
