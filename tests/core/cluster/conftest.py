"""Clusters of real processes, which end with the test."""

import pytest
from local_cluster import LocalCluster


@pytest.fixture
def make_cluster(tmp_path):
  made = []

  def make(**arguments):
    made.append(LocalCluster(tmp_path, **arguments))
    return made[-1]

  yield make
  for cluster in made:
    cluster.stop_all()
