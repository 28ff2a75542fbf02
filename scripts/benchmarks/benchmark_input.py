"""Measures the input pipeline beside the chain of the earlier code.

Both read the same records (500x375 JPEG images with labels) and give 513x513 training crops. The earlier chain decodes
everything, scales whole images and labels, pads in float and shuffles 100 crops. Each measurement runs in a process of its own:

    python scripts/benchmarks/benchmark_input.py

Images per second and core are images per second of processor time. Memory is measured in further runs, whose allocator gives
freed blocks back at once; that of the shuffle is the peak of a run with it, less the peak of a run without.
"""

import io
import os
import resource
import subprocess
import sys
import tempfile

import numpy as np
from absl import app, flags
from PIL import Image

from deeplab import common, data_generator
from deeplab.core.base.tf_compat import tf
from deeplab.core.images import preprocess_utils
from deeplab.core.networks import feature_extractor
from deeplab.datasets import tfexample

FLAGS = flags.FLAGS
flags.DEFINE_integer('num_images', 400, 'Training crops that are timed.', lower_bound=1)
flags.DEFINE_integer('num_records', 1000, 'Records in the files; fewer than the shuffle takes would flatter it.', lower_bound=1)
flags.DEFINE_integer('batch_size', 8, 'Crops per batch.', lower_bound=1)
flags.DEFINE_string('records', None, 'Folder of the records, where this process measures one chain.')
flags.DEFINE_enum('chain', 'new', ['new', 'earlier'], 'Which chain this process measures.')
flags.DEFINE_boolean('shuffle', True, 'Whether that chain shuffles.')

_HEIGHT, _WIDTH, _CROP = 375, 500, 513
_DIFFERENT_IMAGES, _FILES, _READERS = 20, 4, 4
_SCALES = {'min_scale_factor': 0.5, 'max_scale_factor': 2.0, 'scale_factor_step_size': 0.25}
_VARIANT = 'xception_65'
# Settings of the GNU allocator under which the peak is what is really in use.
_FRUGAL_ALLOCATOR = {'MALLOC_ARENA_MAX': '1', 'MALLOC_MMAP_THRESHOLD_': '32768', 'MALLOC_TRIM_THRESHOLD_': '0'}
_MEMORY_IMAGES = 40


def draw_image(random):
  """(JPEG bytes, PNG bytes) of a soft texture with some grain, about as large as a photograph, and a label of rectangles."""
  coarse = Image.fromarray(random.randint(0, 256, [24, 32, 3], np.uint8)).resize((_WIDTH, _HEIGHT), Image.BICUBIC)
  pixels = np.asarray(coarse, np.float32) + random.normal(0.0, 8.0, [_HEIGHT, _WIDTH, 3])
  label = np.zeros([_HEIGHT, _WIDTH], np.uint8)
  for value in (*random.randint(1, 21, 6), 255):
    top, left = random.randint(0, _HEIGHT - 60), random.randint(0, _WIDTH - 60)
    label[top:top + random.randint(20, 200), left:left + random.randint(20, 200)] = value
  image_file, label_file = io.BytesIO(), io.BytesIO()
  Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(image_file, 'JPEG', quality=90)
  Image.fromarray(label).save(label_file, 'PNG')
  return image_file.getvalue(), label_file.getvalue()


def write_records(folder):
  """Writes --num_records records, which repeat a few images, as split train."""
  random = np.random.RandomState(0)
  images = [draw_image(random) for _ in range(_DIFFERENT_IMAGES)]
  for shard in range(_FILES):
    with tf.io.TFRecordWriter(os.path.join(folder, f'train-{shard:05d}-of-{_FILES:05d}.tfrecord')) as writer:
      for index in range(shard, FLAGS.num_records, _FILES):
        image, label = images[index % _DIFFERENT_IMAGES]
        example = tfexample.image_seg_to_tfexample(image, f'image_{index}', _HEIGHT, _WIDTH, label, 'jpg')
        writer.write(example.SerializeToString())


def _earlier_pad(image, value):
  missing = [[0, tf.maximum(_CROP - tf.shape(image)[axis], 0)] for axis in (0, 1)]
  return tf.pad(image - value, [*missing, [0, 0]]) + value


def _earlier_sample(record):
  image = tf.cast(tfexample.decode_image(record.image), tf.float32)
  label = tf.cast(tfexample.decode_label(record.label), tf.int32)
  scale = preprocess_utils.get_random_scale(*_SCALES.values())
  size = tf.cast(tf.cast(tf.shape(image)[:2], tf.float32) * scale, tf.int32)
  image = tf.image.resize_bilinear(image[tf.newaxis], size, align_corners=True)[0]
  label = tf.image.resize_nearest_neighbor(label[tf.newaxis], size, align_corners=True)[0]
  image = _earlier_pad(image, feature_extractor.mean_pixel(_VARIANT))
  label = _earlier_pad(label, 255)
  image, label = preprocess_utils.random_crop([image, label], _CROP, _CROP)
  image, label, _ = preprocess_utils.flip_dim([image, label], 0.5, dim=1)
  return {common.IMAGE: image, common.LABEL: label, common.IMAGE_NAME: record.name, common.HEIGHT: record.height,
          common.WIDTH: record.width}


def earlier_iterator():
  """The earlier chain."""
  files = sorted(tf.io.gfile.glob(os.path.join(FLAGS.records, 'train-*')))
  dataset = tf.data.TFRecordDataset(files, num_parallel_reads=_READERS)
  dataset = dataset.map(tfexample.parse_features, num_parallel_calls=_READERS).map(_earlier_sample, num_parallel_calls=_READERS)
  if FLAGS.shuffle:
    dataset = dataset.shuffle(100)
  return tf.data.make_one_shot_iterator(dataset.repeat().batch(FLAGS.batch_size).prefetch(FLAGS.batch_size))


def new_iterator():
  """The chain that training uses."""
  return data_generator.Dataset(
      'pascal_voc_seg', 'train', FLAGS.records, FLAGS.batch_size, [_CROP, _CROP], model_variant=_VARIANT, num_readers=_READERS,
      is_training=True, should_shuffle=FLAGS.shuffle, should_repeat=True, **_SCALES).get_one_shot_iterator()


def _processor_seconds():
  usage = resource.getrusage(resource.RUSAGE_SELF)
  return usage.ru_utime + usage.ru_stime


def _peak_megabytes():
  # Kilobytes, on macOS bytes.
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == 'darwin' else 2**10)


def measure():
  """Runs one chain and prints images per second of processor time and the growth of the peak of memory in MB."""
  batch = (new_iterator if FLAGS.chain == 'new' else earlier_iterator)().get_next()
  fetches = tf.group(batch[common.IMAGE], batch[common.LABEL])
  with tf.Session() as session:
    before = _peak_megabytes()
    # The prefetched batches count as made before the clock starts.
    for _ in range(2 * FLAGS.batch_size):
      session.run(fetches)
    start = _processor_seconds()
    num_batches = -(-FLAGS.num_images // FLAGS.batch_size)
    for _ in range(num_batches):
      session.run(fetches)
    seconds = _processor_seconds() - start
  print(num_batches * FLAGS.batch_size / seconds, _peak_megabytes() - before)


def _measure_in_process(folder, chain, num_images, shuffle=True, environment=None):
  """(images per second and core, peak of memory in MB)."""
  command = [sys.executable, os.path.abspath(__file__), f'--records={folder}', f'--chain={chain}', f'--shuffle={shuffle}',
             f'--num_images={num_images}', f'--batch_size={FLAGS.batch_size}']
  process = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})})
  return [float(number) for number in process.stdout.split()]


def measure_chain(folder, chain):
  """(images per second and core, peak of memory in MB, memory of the shuffle in MB)."""
  rate, _ = _measure_in_process(folder, chain, FLAGS.num_images)
  _, peak = _measure_in_process(folder, chain, _MEMORY_IMAGES, True, _FRUGAL_ALLOCATOR)
  _, peak_without = _measure_in_process(folder, chain, _MEMORY_IMAGES, False, _FRUGAL_ALLOCATOR)
  return rate, peak, peak - peak_without


def main(_):
  if FLAGS.records:
    measure()
    return
  with tempfile.TemporaryDirectory() as folder:
    write_records(folder)
    rows = {chain: measure_chain(folder, chain) for chain in ('earlier', 'new')}
  print(f'{"chain":<10}{"images/s per core":>20}{"peak memory, MB":>20}{"of it shuffle, MB":>20}')
  for chain, (rate, peak, shuffle) in rows.items():
    print(f'{chain:<10}{rate:>20.1f}{peak:>20.0f}{shuffle:>20.0f}')
  print(f'new / earlier: speed {rows["new"][0] / rows["earlier"][0]:.2f}, '
        f'memory of the shuffle {rows["new"][2] / rows["earlier"][2]:.3f}')


if __name__ == '__main__':
  app.run(main)
