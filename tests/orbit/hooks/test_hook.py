from official_lite import orbit


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
