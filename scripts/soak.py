"""Trains for a long time in short epochs, with a checkpoint every few seconds and eval.py beside it, and shows whether it grows.

    python scripts/soak.py --folder=soak --minutes=60

It draws a small data set, trains on it until the time is over, and looks at both processes (Linux: /proc) every few seconds. In
the folder it leaves samples.csv, soak.svg with memory, open files and threads over time, the logs of both programs, and
summary.md, the lines for docs/reliability.md. The exit code is 1 where a process ended by itself or a figure grows to the end.
"""

import csv
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
from absl import app, flags

flags.DEFINE_string('folder', 'soak', 'Folder for data, checkpoints and results.')
flags.DEFINE_float('minutes', 60.0, 'Time to train.', lower_bound=1.0)
flags.DEFINE_float('sample_secs', 5.0, 'Seconds between two looks.', lower_bound=0.1)
flags.DEFINE_list('train_flags', [], 'Further flags of train.py.')
FLAGS = flags.FLAGS

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_NUM_IMAGES = 16
_TRAIN_FLAGS = ('--model_variant=mobilenet_v2', '--depth_multiplier=0.35', '--output_stride=16', '--train_crop_size=65',
                '--train_batch_size=4', '--fine_tune_batch_norm=false', '--save_interval_secs=5', '--save_summaries_secs=5',
                '--log_steps=10', '--max_checkpoints_to_keep=10', '--training_number_of_steps=100000000')
_EVAL_FLAGS = ('--eval_crop_size=auto', '--eval_interval_secs=30')
# Figure -> (unit, growth from the second third of the time to the last that counts as none, relative and in units).
_FIGURES = {'memory': ('MB', 0.03, 5.0), 'open files': ('', 0.0, 2.0), 'threads': ('', 0.0, 2.0)}
_COLORS = {'train.py': '#1f77b4', 'eval.py': '#d62728'}
_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 720, 130, 60, 24, 46


def _prepare_records(folder):
  records = folder / 'tfrecord'
  if (records / 'dataset.json').exists():
    return records
  voc = folder / 'VOC'
  for module, arguments in (
      ('build_shapes_data', [f'--output_dir={voc}', f'--num_train={_NUM_IMAGES}', f'--num_val={_NUM_IMAGES}']),
      ('build_voc2012_data', [f'--image_folder={voc}/JPEGImages', f'--semantic_segmentation_folder={voc}/SegmentationClass',
                              f'--list_folder={voc}/ImageSets/Segmentation', f'--description={voc}/dataset.json',
                              f'--output_dir={records}'])):
    subprocess.run([sys.executable, '-m', f'deeplab.datasets.{module}', *arguments], check=True)
  return records


def _start(program, folder, *arguments):
  with open(folder / f'{program}.log', 'w', encoding='utf-8') as log:
    return subprocess.Popen([sys.executable, str(_ROOT / program), *map(str, arguments)], stdout=log, stderr=log)


def _look(process):
  """Figures of a process now, in the order of _FIGURES; None where it has ended."""
  folder = pathlib.Path('/proc') / str(process.pid)
  try:
    status = dict(line.split(':', 1) for line in (folder / 'status').read_text(encoding='utf-8').splitlines())
    return [int(status['VmRSS'].split()[0]) / 1024, len(os.listdir(folder / 'fd')), int(status['Threads'])]
  except (OSError, KeyError):
    return None


def _watch(processes, seconds, path):
  """Writes a row (seconds, program, figures) for each process and look to a CSV file; the rows, or fewer where one ended."""
  rows, start = [], time.monotonic()
  with open(path, 'w', newline='', encoding='utf-8') as csv_file:
    writer = csv.writer(csv_file)
    writer.writerow(['seconds', 'program', *_FIGURES])
    while time.monotonic() - start < seconds:
      for program, process in processes.items():
        figures = _look(process) if process.poll() is None else None
        if figures is None:
          print(f'{program} has ended by itself; see its log.', file=sys.stderr)
          return rows, False
        rows.append([round(time.monotonic() - start, 1), program, *(round(figure, 1) for figure in figures)])
        writer.writerow(rows[-1])
      csv_file.flush()
      time.sleep(FLAGS.sample_secs)
  return rows, True


def _series(rows, program, index):
  """(minutes, figures) of a program, two arrays."""
  points = np.array([[row[0] / 60, row[2 + index]] for row in rows if row[1] == program])
  return points[:, 0], points[:, 1]


def _middle_and_last(values):
  """Medians of the second and of the last third of the time."""
  third = len(values) // 3
  return float(np.median(values[third:2 * third])), float(np.median(values[2 * third:]))


def _grows(name, middle, last):
  _, relative, absolute = _FIGURES[name]
  return last - middle > max(relative * middle, absolute)


def _plot(rows):
  """SVG text: one panel for each figure, one line for each program."""
  end = max(row[0] for row in rows) / 60
  parts = []
  for index, (name, (unit, _, _)) in enumerate(_FIGURES.items()):
    bottom = _TOP + index * (_HEIGHT + _GAP) + _HEIGHT
    top_value = 1.1 * max(row[2 + index] for row in rows)
    parts.append(f'<text x="{_LEFT}" y="{bottom - _HEIGHT - 6}">{name}{f", {unit}" if unit else ""}</text>'
                 f'<path d="M{_LEFT},{bottom - _HEIGHT}V{bottom}H{_LEFT + _WIDTH}" fill="none" stroke="#888"/>')
    parts += [f'<text x="{_LEFT - 6}" y="{bottom - share * _HEIGHT + 4:.0f}" text-anchor="end">{share * top_value:.0f}</text>'
              for share in (0, 0.5, 1)]
    parts += [f'<text x="{_LEFT + share * _WIDTH:.0f}" y="{bottom + 16}" text-anchor="middle">{share * end:.0f} min</text>'
              for share in (0, 0.25, 0.5, 0.75, 1)]
    for program, color in _COLORS.items():
      points = ' '.join(f'{_LEFT + minute / end * _WIDTH:.1f},{bottom - value / top_value * _HEIGHT:.1f}'
                        for minute, value in zip(*_series(rows, program, index), strict=True))
      parts.append(f'<polyline points="{points}" fill="none" stroke="{color}"/>')
  for index, (program, color) in enumerate(_COLORS.items()):
    parts.append(f'<text x="{_LEFT + _WIDTH - 140 + 76 * index}" y="{_TOP - 6}" fill="{color}">{program}</text>')
  height = _TOP + len(_FIGURES) * (_HEIGHT + _GAP)
  return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 30}" height="{height}" font-family="sans-serif" '
          f'font-size="12"><rect width="100%" height="100%" fill="#fff"/>\n' + '\n'.join(parts) + '\n</svg>\n')


def _summary(rows, folder):
  """(Markdown text, whether a figure grows)."""
  grown, lines = False, ['| program | figure | at the middle | at the end |', '|---|---|---|---|']
  for program in _COLORS:
    for index, (name, (unit, _, _)) in enumerate(_FIGURES.items()):
      middle, last = _middle_and_last(_series(rows, program, index)[1])
      grown |= _grows(name, middle, last)
      lines.append(f'| {program} | {name} | {middle:.0f} {unit} | {last:.0f} {unit} |'.replace('  ', ' '))
  train_log = (folder / 'train.py.log').read_text(encoding='utf-8')
  steps = [int(part.split('/')[0]) for part in train_log.split('] step ')[1:]]
  num_evaluations = (folder / 'eval.py.log').read_text(encoding='utf-8').count('] Done with ')
  facts = (f'{max(row[0] for row in rows) / 60:.0f} minutes, {max(steps, default=0)} steps '
           f'({max(steps, default=0) * 4 // _NUM_IMAGES} epochs), a checkpoint every 5 seconds, {num_evaluations} evaluations.')
  return facts + '\n\n' + '\n'.join(lines) + '\n', grown


def main(unused_argv):
  folder = pathlib.Path(FLAGS.folder).resolve()
  folder.mkdir(parents=True, exist_ok=True)
  records = _prepare_records(folder)
  processes = {}
  try:
    processes['train.py'] = _start('train.py', folder, *_TRAIN_FLAGS, f'--dataset_dir={records}',
                                   f'--train_logdir={folder}/train', *FLAGS.train_flags)
    processes['eval.py'] = _start('eval.py', folder, *_EVAL_FLAGS, f'--dataset_dir={records}',
                                  f'--checkpoint_dir={folder}/train', f'--eval_logdir={folder}/eval')
    rows, survived = _watch(processes, 60 * FLAGS.minutes, folder / 'samples.csv')
  finally:
    for process in processes.values():
      if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    codes = {program: process.wait() for program, process in processes.items()}
  if not survived:
    return 1
  (folder / 'soak.svg').write_text(_plot(rows), encoding='utf-8')
  text, grown = _summary(rows, folder)
  (folder / 'summary.md').write_text(text, encoding='utf-8')
  print(text)
  if codes['train.py'] != 128 + signal.SIGTERM:
    print(f'train.py ended with {codes["train.py"]} on SIGTERM.', file=sys.stderr)
    return 1
  return int(grown)


if __name__ == '__main__':
  app.run(main)
