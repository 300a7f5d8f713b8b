"""Tests of this room write to memory."""

from tests.helpers.memory import tmp_path_factory as tmp_path_factory
