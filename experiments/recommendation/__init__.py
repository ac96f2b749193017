"""Experiments on recommendation: what somebody clicks on, what to show."""
