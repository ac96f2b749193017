from official_lite.tools.loaded_run import load_run as load_run

__version__: str
