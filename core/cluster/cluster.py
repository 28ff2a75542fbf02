"""Which processes train together, and which of them this one is: from flags, or from the environment variable TF_CONFIG.

Parameter servers hold the variables, workers train; worker 0, the chief, also initialises, saves and writes summaries. TF_CONFIG
is read as Kubeflow, SageMaker and Vertex AI set it. Its chief (or master) becomes worker 0 here, and its worker i then worker
i + 1.
"""

import collections
import json
import re
from typing import NamedTuple

from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf

PS, WORKER, CHIEF, EVALUATOR = 'ps', 'worker', 'chief', 'evaluator'
JOBS = (WORKER, CHIEF, PS, EVALUATOR)
# The flags that describe a cluster.
FLAG_NAMES = ('job_name', 'task', 'ps_hosts', 'worker_hosts', 'master', 'num_ps_tasks', 'num_replicas')

# Another name of the chief in TF_CONFIG.
_MASTER = 'master'
_ADDRESS = re.compile(r'(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):(\d{1,5})')
_MAX_PORT = 65535


class Cluster(NamedTuple):
  """The processes of a training run; by default there is this one alone.

  Attributes:
    job: what this process is: 'ps', 'worker', or 'evaluator', which is no part of the cluster and knows its workers alone.
    task: its index within the job.
    num_ps: number of parameter servers; 0: the variables are in this process.
    num_workers: number of workers.
    ps_hosts: addresses of the parameter servers, tuple of 'host:port'; empty where none is started by train.py.
    worker_hosts: the same of the workers.
    master: address of this worker's server where it was started elsewhere, else ''.
  """
  job: str = WORKER
  task: int = 0
  num_ps: int = 0
  num_workers: int = 1
  ps_hosts: tuple = ()
  worker_hosts: tuple = ()
  master: str = ''

  @property
  def is_ps(self):
    return self.job == PS

  @property
  def is_evaluator(self):
    return self.job == EVALUATOR

  @property
  def is_chief(self):
    return self.job == WORKER and self.task == 0

  @property
  def starts_servers(self):
    return bool(self.ps_hosts)

  @property
  def address(self):
    """Address at which this process serves."""
    return (self.ps_hosts if self.is_ps else self.worker_hosts)[self.task]

  @property
  def device_filters(self):
    """Devices that a session of this process sees: a worker needs no other worker, which may so come and go."""
    own = f'/job:{self.job}/task:{self.task}'
    return [own] if self.is_ps else [f'/job:{PS}', own] if self.num_ps else []

  def device(self):
    """Device function for the graph of a worker: variables on the parameter servers, all else here; None for one process."""
    if not self.num_ps:
      return None
    return tf.train.replica_device_setter(self.num_ps, worker_device=f'/job:{WORKER}/task:{self.task}',
                                          ps_strategy=_LeastLoaded(self.num_ps))


class _LeastLoaded:
  """Gives each variable to the parameter server that has the fewest bytes so far."""

  def __init__(self, num_ps):
    self._bytes = [0] * num_ps

  def __call__(self, variable_op):
    task = self._bytes.index(min(self._bytes))
    num_elements = tf.TensorShape(variable_op.get_attr('shape')).num_elements()
    self._bytes[task] += num_elements * tf.as_dtype(variable_op.get_attr('dtype')).size
    return task


def describe(given, tf_config=''):
  """The cluster that flags or TF_CONFIG mean.

  Args:
    given: dict, name of a flag of FLAG_NAMES that the user set -> value.
    tf_config: value of the environment variable, '' where it is not set.

  Returns:
    Cluster.

  Raises:
    InputError: the description is incomplete or contradicts itself, or flags contradict TF_CONFIG.
  """
  cluster = _from_tf_config(tf_config)
  if cluster is None:
    return _from_flags(given)
  if cluster.is_evaluator and given.get('job_name', EVALUATOR) == EVALUATOR:
    return cluster
  expected = {'job_name': cluster.job, 'task': cluster.task, 'ps_hosts': cluster.ps_hosts, 'worker_hosts': cluster.worker_hosts,
              'master': cluster.master, 'num_ps_tasks': cluster.num_ps, 'num_replicas': cluster.num_workers}
  for name, value in _normal(given).items():
    if value != expected[name]:
      raise InputError(f'--{name}={_text(value)} contradicts TF_CONFIG, which says {_text(expected[name]) or "none"} (its chief '
                       'counts as worker 0). Leave the flag out, or unset TF_CONFIG.')
  return cluster


def _normal(given):
  """The flags with the chief as worker 0 and hosts as tuples; who names a job names a task."""
  normal = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
  if 'job_name' in normal:
    normal.setdefault('task', 0)
    if normal['job_name'] == CHIEF:
      normal['job_name'] = WORKER
  return normal


def _text(value):
  return ','.join(value) if isinstance(value, tuple) else str(value)


def _from_flags(given):
  if given.get('job_name') == EVALUATOR:
    return _checked_evaluator('--job_name=evaluator', given.get('task', 0), given.get('ps_hosts'),
                              tuple(given.get('worker_hosts', ())))
  if given.get('job_name') == CHIEF and given.get('task', 0):
    raise InputError(f'--job_name=chief is worker 0; it goes with no --task={given["task"]}.')
  flags = _normal(given)
  ps_hosts, worker_hosts = flags.get('ps_hosts', ()), flags.get('worker_hosts', ())
  if not ps_hosts and not worker_hosts:
    return _from_counts(flags)
  if 'job_name' not in flags:
    raise InputError('--ps_hosts and --worker_hosts need --job_name (ps, worker or chief) and --task, which say what of it this '
                     'process is.')
  if 'master' in flags:
    raise InputError(f'--master={flags["master"]} is for servers that are started elsewhere; with --ps_hosts and --worker_hosts '
                     'train.py starts its own. Leave one of the two out.')
  for name, hosts_name, hosts in (('num_ps_tasks', 'ps_hosts', ps_hosts), ('num_replicas', 'worker_hosts', worker_hosts)):
    if flags.get(name, len(hosts)) != len(hosts):
      raise InputError(f'--{name}={flags[name]}, but --{hosts_name} names {len(hosts)}. Leave --{name} out.')
  return _checked('--ps_hosts and --worker_hosts', flags['job_name'], flags['task'], ps_hosts, worker_hosts)


def _from_counts(flags):
  """The cluster of --master, whose addresses only the servers know."""
  num_ps, num_workers, task = flags.get('num_ps_tasks', 0), flags.get('num_replicas', 1), flags.get('task', 0)
  if 'job_name' in flags and (flags['job_name'] == PS or 'master' not in flags):
    raise InputError(f'--job_name={flags["job_name"]} needs --ps_hosts and --worker_hosts, the addresses of all processes.')
  if num_ps and 'master' not in flags:
    raise InputError(f'--num_ps_tasks={num_ps} needs --master, the address of a server of the cluster; or let train.py start the '
                     'servers: --job_name, --task, --ps_hosts and --worker_hosts, or TF_CONFIG.')
  if num_workers > 1 and not num_ps:
    raise InputError(f'--num_replicas={num_workers} needs --num_ps_tasks of 1 or more, for the variables they share.')
  if task >= num_workers:
    raise InputError(f'--task={task}: with --num_replicas={num_workers} it is at most {num_workers - 1}.')
  return Cluster(task=task, num_ps=num_ps, num_workers=num_workers, master=flags.get('master', ''))


def _from_tf_config(text):
  """The cluster of TF_CONFIG, or None where it names no process."""
  if not text.strip():
    return None
  try:
    config = json.loads(text)
    if not config.get('cluster'):
      if 'cluster' not in config and config.get('task'):
        raise InputError(f'TF_CONFIG has a task, but no cluster: {text}')
      return None
    hosts = {job: _host_tuple(addresses) for job, addresses in config['cluster'].items()}
    job, task = config['task']['type'], int(config['task'].get('index', 0))
  except InputError:
    raise
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise InputError('TF_CONFIG should be JSON such as {"cluster": {"chief": ["a:2222"], "ps": ["b:2222"]}, "task": {"type": '
                     f'"chief", "index": 0}}}}; found {text} ({type(error).__name__}: {error}).') from error
  return _from_jobs(hosts, job, task)


def _host_tuple(addresses):
  if not isinstance(addresses, list) or not all(isinstance(address, str) for address in addresses):
    raise TypeError(f'{addresses!r} is no list of addresses')
  return tuple(addresses)


def _from_jobs(hosts, job, task):
  unknown = sorted({*hosts, job}.difference(JOBS, [_MASTER]))
  if unknown:
    raise InputError(f'TF_CONFIG names the job {unknown[0]!r}; choose from: {", ".join((*JOBS, _MASTER))}.')
  chiefs = hosts.get(CHIEF, ()) + hosts.get(_MASTER, ())
  if len(chiefs) > 1:
    raise InputError(f'TF_CONFIG names {len(chiefs)} chiefs: {_text(chiefs)}; there is one.')
  if job == EVALUATOR:
    return _checked_evaluator('TF_CONFIG', task, hosts.get(PS), chiefs + hosts.get(WORKER, ()))
  members = {CHIEF: chiefs, _MASTER: chiefs}.get(job, hosts.get(job, ()))
  _check_task('TF_CONFIG', job, task, members)
  index = task + len(chiefs) if job == WORKER else task
  return _checked('TF_CONFIG', PS if job == PS else WORKER, index, hosts.get(PS, ()), chiefs + hosts.get(WORKER, ()))


def _checked_evaluator(source, task, ps_hosts, worker_hosts):
  if task:
    raise InputError(f'{source}: this process is evaluator {task}; there is one, 0.')
  # A worker that trains alone has no server, and so no address.
  worker_hosts = worker_hosts if ps_hosts else ()
  return Cluster(EVALUATOR, num_workers=max(len(worker_hosts), 1), worker_hosts=worker_hosts)


def _checked(source, job, task, ps_hosts, worker_hosts):
  """Cluster of these addresses; `source` is the word for where they stand."""
  addresses = ps_hosts + worker_hosts
  for address in addresses:
    match = _ADDRESS.fullmatch(address)
    if not match or not 0 < int(match.group(2)) <= _MAX_PORT:
      raise InputError(f'{source}: {address!r} is no address; write host:port, for example 10.0.0.1:2222.')
  repeated = [address for address, count in collections.Counter(addresses).items() if count > 1]
  if repeated:
    raise InputError(f'{source}: {repeated[0]} stands for several processes; each needs an address of its own.')
  if not worker_hosts:
    raise InputError(f'{source}: there is no worker 0 (chief), which initialises and saves the variables.')
  if len(worker_hosts) > 1 and not ps_hosts:
    raise InputError(f'{source}: {len(worker_hosts)} workers need a parameter server (ps) for the variables they share.')
  _check_task(source, job, task, ps_hosts if job == PS else worker_hosts)
  return Cluster(job, task, len(ps_hosts), len(worker_hosts), ps_hosts, worker_hosts)


def _check_task(source, job, task, hosts):
  if not 0 <= task < len(hosts):
    legal = f'0 to {len(hosts) - 1}' if hosts else 'none, as no such process is named'
    raise InputError(f'{source}: this process is {job} {task}; legal indexes: {legal}.')
