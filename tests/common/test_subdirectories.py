import pytest

from official_lite.common import errors, plugins


@pytest.mark.parametrize("path", ["best", "a/b", "", "with space", "größe", "a..b", "..."])
def test_names_and_paths_below_are_taken(path: str) -> None:
    plugins.require_subdirectory(path, "subdir")


@pytest.mark.parametrize(
    "path", ["..", "../x", "a/../../x", "a\\..\\x", "/tmp/x", "gs://b/x", "a\0b", "a\nb", "\x1b[2J"]
)
def test_what_leads_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(errors.ConfigValueError, match=r"`subdir`.*subdirectory"):
        plugins.require_subdirectory(path, "subdir")
