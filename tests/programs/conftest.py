"""What the tests of several programs share."""

import pytest
import tiny_network


@pytest.fixture(scope='module')
def run_dir(tmp_path_factory):
  """Folder of a trained tiny_network."""
  folder = tmp_path_factory.mktemp('train')
  tiny_network.write_run(folder)
  return folder
