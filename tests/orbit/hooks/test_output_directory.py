import pytest

from official_lite import orbit
from official_lite.common import errors
from official_lite.orbit.hooks.output_directory import output_directory


@pytest.fixture
def attached_hook(make_trainer, make_controller):
    def attach(model_dir):
        hook = orbit.Hook()
        make_controller(make_trainer(), hooks=[hook], model_dir=model_dir)
        return hook

    return attach


def test_relative_folder_is_in_the_model_dir(attached_hook):
    assert output_directory(attached_hook("/runs/digits"), "profile") == "/runs/digits/profile"


@pytest.mark.parametrize("directory", ["/tmp/profile", "gs://bucket/profile"])
def test_other_folders_stay(attached_hook, directory):
    assert output_directory(attached_hook(None), directory) == directory


def test_without_a_model_dir_a_relative_folder_is_nowhere(attached_hook):
    with pytest.raises(errors.ConfigValueError, match="Hook writes to `profile`"):
        output_directory(attached_hook(None), "profile")
