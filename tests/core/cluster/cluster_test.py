"""The description of a cluster: which flags and TF_CONFIG are understood, and which are refused."""

import json

import pytest

from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.cluster import cluster

_HOSTS = {'ps_hosts': ['a:1', 'b:1'], 'worker_hosts': ['c:1', 'd:1']}


def _tf_config(job, index=0, **hosts):
  return json.dumps({'cluster': hosts, 'task': {'type': job, 'index': index}})


def test_no_description_is_one_process():
  alone = cluster.describe({})
  assert alone == cluster.Cluster('worker', 0, 0, 1, (), (), '')
  assert alone.is_chief and not alone.starts_servers and alone.device() is None and alone.device_filters == []


@pytest.mark.parametrize('given, job, task, address', [
    ({'job_name': 'ps', 'task': 1}, 'ps', 1, 'b:1'), ({'job_name': 'worker', 'task': 1}, 'worker', 1, 'd:1'),
    ({'job_name': 'chief'}, 'worker', 0, 'c:1'),
    ({'job_name': 'worker', 'num_ps_tasks': 2, 'num_replicas': 2}, 'worker', 0, 'c:1')])
def test_flags_with_addresses(given, job, task, address):
  described = cluster.describe({**_HOSTS, **given})
  assert described == cluster.Cluster(job, task, 2, 2, ('a:1', 'b:1'), ('c:1', 'd:1'))
  assert described.address == address and described.starts_servers
  assert described.is_chief == (address == 'c:1') and described.is_ps == (job == 'ps')


def test_flags_with_a_master():
  given = {'master': 'grpc://x:1', 'num_ps_tasks': 1, 'num_replicas': 3, 'task': 2}
  assert cluster.describe(given) == cluster.Cluster('worker', 2, 1, 3, (), (), 'grpc://x:1')


# As Kubeflow, SageMaker (a ps on every machine) and Vertex AI set it.
@pytest.mark.parametrize('config, expected', [
    (_tf_config('worker', 1, chief=['c:1'], worker=['d:1', 'e:1'], ps=['a:1']),
     cluster.Cluster('worker', 2, 1, 3, ('a:1',), ('c:1', 'd:1', 'e:1'))),
    (_tf_config('worker', 0, worker=['c:1', 'd:1'], ps=['a:1']), cluster.Cluster('worker', 0, 1, 2, ('a:1',), ('c:1', 'd:1'))),
    (_tf_config('master', 0, master=['c:1'], worker=['d:1'], ps=['c:2', 'd:2']),
     cluster.Cluster('worker', 0, 2, 2, ('c:2', 'd:2'), ('c:1', 'd:1'))),
    (_tf_config('ps', '1', master=['c:1'], worker=['d:1'], ps=['c:2', 'd:2']),
     cluster.Cluster('ps', 1, 2, 2, ('c:2', 'd:2'), ('c:1', 'd:1'))),
    (_tf_config('chief', 0, chief=['127.0.0.1:2222']), cluster.Cluster('worker', 0, 0, 1, (), ('127.0.0.1:2222',))),
    ('{"cluster": {}, "task": {}, "environment": "cloud"}', cluster.Cluster()), ('{}', cluster.Cluster()),
    ('', cluster.Cluster()),
])
def test_tf_config(config, expected):
  assert cluster.describe({}, config) == expected


@pytest.mark.parametrize('given, message', [
    ({'ps_hosts': ['a:1'], 'job_name': 'ps'}, 'no worker 0'),
    ({**_HOSTS, 'job_name': 'worker', 'task': 2}, 'this process is worker 2; legal indexes: 0 to 1'),
    ({**_HOSTS, 'job_name': 'ps', 'task': 2}, 'this process is ps 2; legal indexes: 0 to 1'),
    ({**_HOSTS, 'job_name': 'ps', 'task': -1}, 'this process is ps -1'),
    ({'job_name': 'ps', 'worker_hosts': ['c:1']}, 'this process is ps 0; legal indexes: none'),
    ({**_HOSTS, 'job_name': 'chief', 'task': 1}, '--job_name=chief is worker 0; it goes with no --task=1'),
    ({'ps_hosts': ['a:1'], 'worker_hosts': ['c:1', 'a:1'], 'job_name': 'worker'}, 'a:1 stands for several processes'),
    ({'job_name': 'worker', 'worker_hosts': ['c:1', 'd:1']}, '2 workers need a parameter server'),
    ({**_HOSTS}, 'need --job_name'),
    ({**_HOSTS, 'job_name': 'worker', 'master': 'grpc://x:1'}, '--master=grpc://x:1 is for servers that are started elsewhere'),
    ({**_HOSTS, 'job_name': 'worker', 'num_replicas': 3}, '--num_replicas=3, but --worker_hosts names 2'),
    ({**_HOSTS, 'job_name': 'worker', 'num_ps_tasks': 1}, '--num_ps_tasks=1, but --ps_hosts names 2'),
    ({'ps_hosts': ['grpc://a:1'], 'worker_hosts': ['c:1'], 'job_name': 'ps'}, "'grpc://a:1' is no address; write host:port"),
    ({'ps_hosts': ['a'], 'worker_hosts': ['c:1'], 'job_name': 'ps'}, "'a' is no address"),
    ({'ps_hosts': ['a:70000'], 'worker_hosts': ['c:1'], 'job_name': 'ps'}, "'a:70000' is no address"),
    ({'job_name': 'ps'}, '--job_name=ps needs --ps_hosts'),
    ({'job_name': 'evaluator', 'task': 1}, 'this process is evaluator 1; there is one, 0'),
    ({'num_ps_tasks': 1}, '--num_ps_tasks=1 needs --master'),
    ({'num_replicas': 2}, '--num_replicas=2 needs --num_ps_tasks'),
    ({'master': 'grpc://x:1', 'num_ps_tasks': 1, 'num_replicas': 2, 'task': 2}, '--task=2: with --num_replicas=2 it is at most'),
])
def test_wrong_flags_are_refused(given, message):
  with pytest.raises(InputError, match=message):
    cluster.describe(given)


@pytest.mark.parametrize('config, message', [
    (_tf_config('worker', 0, ps=['a:1']), 'this process is worker 0; legal indexes: none'),
    (_tf_config('ps', 0, ps=['a:1']), 'no worker 0'),
    (_tf_config('worker', 1, chief=['c:1'], worker=['d:1'], ps=['a:1']), 'this process is worker 1; legal indexes: 0 to 0'),
    (_tf_config('chief', 0, chief=['c:1'], worker=['c:1'], ps=['a:1']), 'c:1 stands for several processes'),
    (_tf_config('chief', 0, chief=['c:1'], master=['d:1'], ps=['a:1']), '2 chiefs'),
    (_tf_config('chief', 0, chief=['c:1'], worker=['d:1']), '2 workers need a parameter server'),
    (_tf_config('evaluator', 1, chief=['c:1']), 'this process is evaluator 1; there is one, 0'),
    (_tf_config('chieff', 0, chief=['c:1']), "names the job 'chieff'"),
    (_tf_config('chief', 0, chief='c:1'), "'c:1' is no list of addresses"),
    ('{"cluster": {"chief": ["c:1"]}}', 'should be JSON such as'), ('{cluster', 'should be JSON such as'),
    ('[]', 'should be JSON such as'),
    ('{"task": {"type": "worker", "index": 1}}', 'has a task, but no cluster'),
])
def test_wrong_tf_config_is_refused(config, message):
  with pytest.raises(InputError, match=message):
    cluster.describe({}, config)


def test_evaluator_is_no_part_of_the_cluster():
  config = _tf_config('evaluator', 0, chief=['c:1'], worker=['d:1'], ps=['a:1'])
  found = cluster.describe({}, config)
  assert found == cluster.describe({'job_name': 'evaluator', 'ps_hosts': ['a:1'], 'worker_hosts': ['c:1', 'd:1']})
  assert found.is_evaluator and not found.starts_servers and not found.is_chief and found.worker_hosts[0] == 'c:1'
  # A process that trains alone answers at no address.
  assert cluster.describe({}, _tf_config('evaluator', 0, chief=['c:1'])).worker_hosts == ()
  assert cluster.describe({'job_name': 'evaluator'}).is_evaluator


@pytest.mark.parametrize('given, message', [
    ({'job_name': 'worker'}, '--job_name=worker contradicts TF_CONFIG, which says ps'),
    ({'job_name': 'ps'}, '--task=0 contradicts TF_CONFIG, which says 1'),
    ({'task': 2}, '--task=2 contradicts'),
    ({'ps_hosts': ['b:1', 'a:1']}, '--ps_hosts=b:1,a:1 contradicts TF_CONFIG, which says a:1,b:1'),
    ({'num_replicas': 3}, '--num_replicas=3 contradicts'),
    ({'master': 'grpc://x:1'}, '--master=grpc://x:1 contradicts TF_CONFIG, which says none'),
])
def test_flags_that_contradict_tf_config_are_refused(given, message):
  with pytest.raises(InputError, match=message):
    cluster.describe(given, _tf_config('ps', 1, worker=['c:1', 'd:1'], ps=['a:1', 'b:1']))


def test_flags_that_agree_with_tf_config():
  config = _tf_config('ps', 1, worker=['c:1', 'd:1'], ps=['a:1', 'b:1'])
  assert cluster.describe({**_HOSTS, 'job_name': 'ps', 'task': 1}, config) == cluster.describe({}, config)


def test_variables_are_spread_by_size():
  sizes = [100, 60, 30, 20, 10]
  with tf.Graph().as_default(), tf.device(cluster.describe({**_HOSTS, 'job_name': 'worker', 'task': 1}).device()):
    variables = [tf.get_variable(f'v{index}', [size]) for index, size in enumerate(sizes)]
    total = tf.add_n([tf.reduce_sum(variable) for variable in variables])
  # 100 | 60 + 30 + 20, where the fourth finds 100 against 90, and the last 100 against 110.
  assert [variable.device for variable in variables] == [f'/job:ps/task:{task}' for task in (0, 1, 1, 1, 0)]
  assert total.device == '/job:worker/task:1'
