import pytest

from official_lite import orbit
from official_lite.common import errors
from official_lite.orbit.hooks.hook import output_directory


def test_hook_that_overrides_one_method_works(make_trainer, make_controller):
    class Starts(orbit.Hook):
        started = False

        def before_train(self):
            self.started = True

    hook = Starts()
    make_controller(make_trainer(), hooks=[hook]).train(2)
    assert hook.started


def test_libai_info_hook_logs_every_hundred(make_trainer, make_controller):
    class InfoHook(orbit.Hook):
        every_n_steps = 1
        seen = ()

        def after_step(self):
            if self.iter % 100 == 0:
                self.seen += (self.iter,)

    hook = InfoHook()
    make_controller(make_trainer(), hooks=[hook]).train(202)
    assert hook.seen == (0, 100, 200)


def test_state_is_empty_until_a_hook_remembers():
    hook = orbit.Hook()
    hook.load_state_dict({})
    assert hook.state_dict() == {}


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
