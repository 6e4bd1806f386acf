"""Loads the fixtures of the harness."""

import pytest

pytest.register_assert_rewrite("harness")

pytest_plugins = ["harness.fixtures"]
