"""Times the training step under several settings, side by side.

    python scripts/benchmarks/benchmark_train.py --setting= --setting=unchanged -- \
        --model_variant=mobilenet_v2 --train_batch_size=4

A setting is a text of flags of train.py (empty: none), or the word `unchanged` (graph, kernels and allocator as the earlier code
would have them on this TensorFlow) or `pytorch` (the twin in scripts/benchmarks, needs torch). What follows `--` are flags of
train.py for all settings. Each setting runs in a process of its own; the processes take turns, A B A B, so that changes of the
machine's speed meet all of them. Ratios and seconds are medians over the rounds.
"""

import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile

from absl import app, flags
from benchmark_input import write_records

FLAGS = flags.FLAGS
flags.DEFINE_multi_string('setting', ['', 'unchanged'], 'Flags of train.py in one text, or unchanged, or pytorch. The first is '
                          'the one that the others are compared with.')
flags.DEFINE_integer('rounds', 5, 'Turns of each setting.', lower_bound=1)
flags.DEFINE_integer('steps', 2, 'Steps per turn.', lower_bound=1)
flags.DEFINE_boolean('end_to_end', True, 'Time the step with the input pipeline, too.')
flags.DEFINE_string('json', None, 'File for all figures.')

_WORKER = pathlib.Path(__file__).with_name('training_worker.py')
_DEFAULTS = {'model_variant': 'mobilenet_v2', 'train_crop_size': '513,513', 'train_batch_size': '4'}
_NUM_OPS = 12


class Worker:
  """A process that waits for its turns.

  Attributes:
    description: what it told after its first step.
  """

  def __init__(self, setting, input_name, train_flags):
    kind = setting if setting in ('unchanged', 'pytorch') else 'train'
    own_flags = shlex.split(setting) if kind == 'train' else []
    # What deeplab sets for its own process would else reach the unchanged one.
    environment = {name: value for name, value in os.environ.items() if name != 'TF_ENABLE_ONEDNN_OPTS'}
    self._process = subprocess.Popen(
        [sys.executable, str(_WORKER), kind, input_name, *train_flags, *own_flags], env=environment,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    self.description = self._read()

  def _read(self):
    for line in self._process.stdout:
      if line.startswith('{'):
        return json.loads(line)
    raise RuntimeError(f'The process {" ".join(self._process.args)} has ended with code {self._process.wait()}; see above.')

  def run(self, num_steps):
    """Mean seconds of that many steps, after one that is not counted: it warms the caches again."""
    self._process.stdin.write(f'{num_steps + 1}\n')
    self._process.stdin.flush()
    return statistics.mean(self._read()['seconds'][1:])

  def close(self):
    self._process.stdin.close()
    self._process.wait()


def take_turns(workers):
  """For each worker its seconds per step, a list of one number per round."""
  rounds = [[worker.run(FLAGS.steps) for worker in workers] for _ in range(FLAGS.rounds)]
  return list(zip(*rounds))


def _train_flags(arguments, folder):
  """Flags of all workers: the given ones over the defaults."""
  given = {argument.lstrip('-').split('=', 1)[0] for argument in arguments}
  defaults = [f'--{name}={value}' for name, value in _DEFAULTS.items() if name not in given]
  return [*defaults, f'--dataset_dir={folder}', f'--train_logdir={folder}', '--training_number_of_steps=1000000',
          '--dataset=pascal_voc_seg', *arguments]


def _ratio(seconds, others):
  """How many times as long the others take, of turns side by side."""
  return statistics.median(other / own for own, other in zip(seconds, others, strict=True))


def compute_figures(setting, worker, seconds, batch_size):
  """Figures of one setting with a fixed batch, dict."""
  median = statistics.median(seconds)
  return {'setting': setting or 'train.py', 'seconds_per_step': median, 'images_per_second': batch_size / median,
          **worker.description}


def pipeline_figures(worker, pipeline_worker):
  """What the input pipeline adds to them, dict; the two workers take turns for it."""
  seconds, end_to_end = take_turns([worker, pipeline_worker])
  median = statistics.median(end_to_end)
  wait = pipeline_worker.description['seconds_by_op'].get('IteratorGetNext', 0.0)
  return {'end_to_end_seconds': median, 'end_to_end_over_compute': _ratio(seconds, end_to_end), 'input_wait_share': wait / median}


def print_figures(rows):
  """One line per setting, then where the time goes."""
  columns = ('s/step', 'images/s', 'end to end', 'input wait', 'peak MB', 'start s', 'ratio')
  print(f'{"setting":<34}' + ''.join(f'{column:>12}' for column in columns))
  for row in rows:
    has_input = 'input_wait_share' in row
    cells = (f'{row["seconds_per_step"]:.3f}', f'{row["images_per_second"]:.2f}',
             f'{row["end_to_end_over_compute"]:.3f}' if has_input else '', f'{row["input_wait_share"]:.1%}' if has_input else '',
             f'{row["peak_megabytes"]:.0f}', f'{sum(row["start"].values()):.1f}', f'{row["seconds_over_first"]:.2f}')
    print(f'{row["setting"]:<34}' + ''.join(f'{cell:>12}' for cell in cells))
  print('end to end: seconds with the input pipeline over those of compute alone; ratio: seconds over those of the first setting')
  for row in rows:
    print(f'\n{row["setting"]}: start ' + ', '.join(f'{name} {seconds:.1f} s' for name, seconds in row['start'].items()))
    by_op = row.get('seconds_by_op', {})
    total = sum(by_op.values())
    for name, seconds in list(by_op.items())[:_NUM_OPS]:
      print(f'  {name:<44}{seconds:>7.3f} s{seconds / total:>7.1%}')
    if 'multiply_adds' in row:
      limit = row['multiply_adds'] / row['multiply_adds_per_second']
      print(f'  {row["multiply_adds"] / 1e9:.1f} G multiply-adds at {row["multiply_adds_per_second"] / 1e9:.1f} G/s take '
            f'{limit:.2f} s: {limit / row["seconds_per_step"]:.0%} of the step')


def main(argv):
  with tempfile.TemporaryDirectory() as folder:
    write_records(folder)
    train_flags = _train_flags(argv[1:], folder)
    batch_size = int(next(flag for flag in reversed(train_flags) if 'train_batch_size' in flag).split('=')[1])
    workers = [Worker(setting, 'fixed', train_flags) for setting in FLAGS.setting]
    turns = take_turns(workers)
    rows = [compute_figures(*row, batch_size) for row in zip(FLAGS.setting, workers, turns, strict=True)]
    for row, worker, setting in zip(rows, workers, FLAGS.setting, strict=True):
      if FLAGS.end_to_end and setting != 'pytorch':
        pipeline_worker = Worker(setting, 'records', train_flags)
        row.update(pipeline_figures(worker, pipeline_worker))
        pipeline_worker.close()
      worker.close()
  for row, seconds in zip(rows, turns, strict=True):
    row['seconds_over_first'] = _ratio(turns[0], seconds)
  print_figures(rows)
  if FLAGS.json:
    pathlib.Path(FLAGS.json).write_text(json.dumps(rows, indent=1), encoding='utf-8')


if __name__ == '__main__':
  app.run(main)
