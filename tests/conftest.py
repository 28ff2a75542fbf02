"""Lets the tests read flags, which the programs define, without a command line; each test leaves them as it found them."""

import logging

import pytest
from absl import flags
from absl.testing import flagsaver


@pytest.fixture
def absl_log(caplog):
  """caplog that sees what the programs log."""
  logger = logging.getLogger('absl')
  propagate, logger.propagate = logger.propagate, True
  yield caplog
  logger.propagate = propagate


@pytest.fixture(autouse=True)
def restored_flags():
  flags.FLAGS.mark_as_parsed()
  with flagsaver.flagsaver():
    yield
