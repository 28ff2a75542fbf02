"""Lets the tests read flags, which the programs define, without a command line; each test leaves them as it found them."""

import pytest
from absl import flags
from absl.testing import flagsaver


@pytest.fixture(autouse=True)
def restored_flags():
  flags.FLAGS.mark_as_parsed()
  with flagsaver.flagsaver():
    yield
