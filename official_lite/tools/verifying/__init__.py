"""The checks of the command `verify`."""
