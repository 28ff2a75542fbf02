"""Measures training on this machine: one process, two clones, and clusters of one and two workers with a parameter server.

    python scripts/benchmarks/benchmark_cluster.py

Images per second are those that the workers' progress lines name while all of them train, added up. On one machine all processes
share its cores (or GPUs), so a ratio of 1 means that sharing costs nothing; on a machine per worker it can reach their number.
"""

import contextlib
import os
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile

from absl import app, flags
from benchmark_input import write_records

FLAGS = flags.FLAGS
flags.DEFINE_integer('num_steps', 60, 'Training steps of each measurement and worker.', lower_bound=30)
flags.DEFINE_integer('train_batch_size', 4, 'Images per step and worker.', lower_bound=2)
flags.DEFINE_integer('train_crop_size', 257, 'Side of the crops in pixels.', lower_bound=33)
flags.DEFINE_boolean('clone_on_cpu', True, 'Whether clones are on the CPU; else on GPUs, of which there must be two.')
flags.DEFINE_multi_string('train_flag', [], 'A further flag of train.py, such as --train_flag=--model_variant=xception_65; may '
                          'be repeated.')

_TRAIN = str(pathlib.Path(__file__).parents[2] / 'train.py')
_LOG_STEPS = 5
# Lines that are left out: the first steps are slow.
_WARM_UP_LINES = 2
_ROWS = (
    # Name, number of workers of a cluster (0: no cluster), further flags.
    ('one process', 0, []),
    ('one process, two clones', 0, ['--num_clones=2']),
    ('one worker', 1, []),
    ('two workers', 2, []),
    ('two workers, synchronous', 2, ['--sync_replicas']),
)


def free_addresses(count):
  """Addresses on this machine at which nobody serves now."""
  with contextlib.ExitStack() as stack:
    sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
    for free in sockets:
      free.bind(('localhost', 0))
    return [f'localhost:{free.getsockname()[1]}' for free in sockets]


def commands(num_workers, arguments):
  """One command line for each process of a row, the workers first."""
  base = [sys.executable, _TRAIN, *arguments]
  if not num_workers:
    return [base]
  ps, *workers = free_addresses(num_workers + 1)
  base += [f'--ps_hosts={ps}', f'--worker_hosts={",".join(workers)}', '--startup_delay_steps=0']
  members = [('worker', task) for task in range(num_workers)] + [('ps', 0)]
  return [[*base, f'--job_name={job}', f'--task={task}'] for job, task in members]


def images_per_second(logs):
  """Sum over the workers of the median rate that their progress lines name, from when the last begins to when the first ends."""
  lines = [re.findall(r' (\d\d:\d\d:\d\d\.\d+) .* ([\d.]+) images/s', log) for log in logs]
  if min(map(len, lines)) <= _WARM_UP_LINES:
    raise SystemExit(f'--num_steps={FLAGS.num_steps}: one worker was done before another had begun; give more.')
  begin = max(of_one[_WARM_UP_LINES][0] for of_one in lines)
  end = min(of_one[-1][0] for of_one in lines)
  return sum(statistics.median([float(rate) for time, rate in of_one if begin <= time <= end] or [float(of_one[-1][1])])
             for of_one in lines)


def start(command, log):
  with open(log, 'w', encoding='utf-8') as log_file:
    return subprocess.Popen(command, stdout=log_file, stderr=log_file)


def measure(records, num_workers, further_flags):
  """Images per second of all workers of a row together."""
  with tempfile.TemporaryDirectory() as folder:
    arguments = [
        f'--dataset_dir={records}', f'--train_logdir={folder}/run', f'--train_batch_size={FLAGS.train_batch_size}',
        f'--training_number_of_steps={FLAGS.num_steps * (1 if "--sync_replicas" in further_flags else max(num_workers, 1))}',
        f'--train_crop_size={FLAGS.train_crop_size}', f'--clone_on_cpu={FLAGS.clone_on_cpu}', f'--log_steps={_LOG_STEPS}',
        *further_flags, *FLAGS.train_flag]
    lines = commands(num_workers, arguments)
    logs = [os.path.join(folder, f'{index}.log') for index in range(len(lines))]
    processes = [start(*line_and_log) for line_and_log in zip(lines, logs)]
    try:
      exit_codes = [process.wait() for process in processes]
    finally:
      for process in processes:
        process.kill()
    texts = [pathlib.Path(log).read_text(encoding='utf-8') for log in logs]
  for line, exit_code, text in zip(lines, exit_codes, texts):
    if exit_code:
      raise SystemExit(f'{" ".join(line)} ended with {exit_code}:\n{text}')
  return images_per_second(texts[:max(num_workers, 1)])


def main(_):
  with tempfile.TemporaryDirectory() as records:
    write_records(records)
    rates = {name: measure(records, num_workers, further_flags) for name, num_workers, further_flags in _ROWS}
  print(f'{"":<30}{"images/s":>10}{"ratio":>8}')
  for name, rate in rates.items():
    print(f'{name:<30}{rate:>10.2f}{rate / rates["one process"]:>8.2f}')


if __name__ == '__main__':
  FLAGS.set_default('num_records', 200)
  app.run(main)
