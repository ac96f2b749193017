import pytest

from official_lite.common import errors


@pytest.mark.parametrize(
    ("error", "builtin", "code"),
    [
        (errors.UnknownKeyError, KeyError, 2),
        (errors.UnknownNameError, LookupError, 2),
        (errors.ConfigTypeError, TypeError, 2),
        (errors.ConfigValueError, ValueError, 2),
        (errors.DataError, ValueError, 3),
        (errors.DivergedError, RuntimeError, 4),
        (errors.CheckpointError, ValueError, 5),
    ],
)
def test_framework_error_subclasses_a_builtin_error_and_has_an_exit_code(
    error: type[errors.OfficialLiteError], builtin: type[Exception], code: int
) -> None:
    assert issubclass(error, builtin)
    assert error.exit_code == code


def test_unknown_key_error_message_has_no_quotes_around_it() -> None:
    assert str(errors.UnknownKeyError("There is no `x`.")) == "There is no `x`."
