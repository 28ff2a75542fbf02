"""Batches of network input from the TFRecord files of a data set."""

import os

from absl import logging

from deeplab import common
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.images import input_preprocess, preprocess_utils
from deeplab.core.networks import feature_extractor
from deeplab.datasets import dataset_info, tfexample

# The shuffle holds serialized records of about this size altogether, but no fewer than that number of them.
_SHUFFLE_BYTES = 24 << 20
_MIN_SHUFFLED_RECORDS = 100
# Files that a shuffled reading mixes at a time.
_MIXED_FILES = 8
_PREFETCHED_BATCHES = 2
# A record in a file: length (8 bytes, little endian), its CRC (4), the bytes, their CRC (4).
_LENGTH_BYTES, _HEAD_BYTES, _TAIL_BYTES = 8, 12, 4
_MAX_VALUES_LISTED = 20


class Dataset:
  """The images of a split, preprocessed and batched.

  Attributes:
    num_of_classes: number of classes of the data set.
    ignore_label: label that counts neither in the loss nor in a metric.
    num_examples: number of records in all files of the split.
    The arguments of the constructor under their own names.
  """

  def __init__(self, dataset_name, split_name, dataset_dir, batch_size, crop_size, min_resize_value=None, max_resize_value=None,
               resize_factor=None, min_scale_factor=1., max_scale_factor=1., scale_factor_step_size=0, model_variant=None,
               num_readers=1, is_training=False, should_shuffle=False, should_repeat=False, keep_aspect_ratio=True, seed=None,
               num_replicas=1, replica_index=0, num_parallel_calls=None, with_label=True, with_original_image=True):
    """Finds the files and looks through their structure.

    Args:
      dataset_name: as in --dataset.
      split_name: name of the split; 'test' has no labels.
      dataset_dir: folder of the records.
      batch_size: images per batch; the last one of a data set that does not repeat may be smaller.
      crop_size: (height, width) of the network input in pixels.
      min_resize_value, max_resize_value, resize_factor, min_scale_factor, max_scale_factor, scale_factor_step_size,
        keep_aspect_ratio: as for input_preprocess.preprocess_image_and_label.
      model_variant: name of the backbone, whose zero pixel fills the padding.
      num_readers: files read at a time; a shuffled reading mixes more where there are more.
      is_training: whether to augment.
      should_shuffle: whether files and records come in random order, another one each time.
      should_repeat: whether the data never end.
      seed: number that fixes all random choices, or None.
      num_replicas: number of processes that divide the data among them.
      replica_index: which of them this is, from 0.
      num_parallel_calls: images prepared at a time, or None for as many as pays.
      with_label: whether labels are read; False for records that have none.
      with_original_image: whether samples outside of training hold the image before padding; a batch then needs one size.

    Raises:
      ValueError: the data set is unknown, the split has no files or no examples, or a file is damaged.
    """
    if model_variant is None:
      logging.warning('No model_variant is given: images are padded with the ImageNet mean.')
    descriptor = dataset_info.get_descriptor(dataset_name, dataset_dir)
    self.dataset_name, self.split_name, self.dataset_dir = dataset_name, split_name, dataset_dir
    self.batch_size, self.crop_size, self.model_variant = batch_size, crop_size, model_variant
    self.min_resize_value, self.max_resize_value, self.resize_factor = min_resize_value, max_resize_value, resize_factor
    self.min_scale_factor, self.max_scale_factor = min_scale_factor, max_scale_factor
    self.scale_factor_step_size, self.keep_aspect_ratio = scale_factor_step_size, keep_aspect_ratio
    self.is_training, self.should_shuffle, self.should_repeat = is_training, should_shuffle, should_repeat
    self.seed, self.num_replicas, self.replica_index = seed, num_replicas, replica_index
    self.num_readers, self.num_parallel_calls = num_readers, num_parallel_calls
    self.with_label = with_label and split_name != common.TEST_SET
    self.with_original_image = with_original_image and not is_training
    self.num_of_classes = descriptor.num_classes
    self.ignore_label = descriptor.ignore_label
    self._pad_pixel = feature_extractor.mean_pixel(model_variant)
    self._files = dataset_info.find_split_files(dataset_dir, split_name, dataset_name)
    lengths = [length for path in self._files for length in record_lengths(path)]
    self.num_examples = len(lengths)
    self._record_bytes = sum(lengths) / len(lengths)
    _warn_of_size(descriptor, split_name, self.num_examples)

  def get_one_shot_iterator(self):
    """Iterator over the batches, which needs no initialisation.

    Returns:
      tf.data.Iterator whose get_next() gives a dict. Keys of common.py:
        IMAGE: float32 [batch, crop height, crop width, 3], 0..255, padded.
        LABEL: int32 [batch, crop height, crop width, 1]; absent without labels.
        IMAGE_NAME: string [batch].
        HEIGHT, WIDTH: int64 [batch], of the image in the record.
        ORIGINAL_IMAGE: uint8 (float32 if resized) [batch, height, width, 3]; only outside of training, where wanted.
      Running it raises InvalidArgumentError, with the name of the image in its message, for a label value outside of the
      classes, a missing label, a label of another size than the image, and outside of training an image larger than the crop.
    """
    return tf.data.make_one_shot_iterator(self._batches())

  def get_initializable_iterator(self):
    """The same iterator, which each run of its `initializer` lets begin at the first batch."""
    return tf.data.make_initializable_iterator(self._batches())

  def _batches(self):
    """Dataset of the batches."""
    dataset = self._records()
    # Every draw is made from a number that comes with the record: parallel calls then cannot swap them.
    draws = tf.data.Dataset.random(self.seed).batch(2, drop_remainder=True)
    dataset = tf.data.Dataset.zip((dataset, draws))
    # Converting the plain graph code of the function costs a quarter of the time to the first step, and warns under Python 3.13.
    load = tf.autograph.experimental.do_not_convert(self._load)
    dataset = dataset.map(load, num_parallel_calls=self.num_parallel_calls or tf.data.AUTOTUNE)
    return dataset.batch(self.batch_size).prefetch(_PREFETCHED_BATCHES)

  def _records(self):
    """Dataset of serialized records: this replica's share, shuffled and repeated as wanted."""
    # Replicas share whole files where there are enough for all, else the records of each file.
    by_file = len(self._files) >= self.num_replicas
    files = self._files[self.replica_index::self.num_replicas] if by_file else self._files

    @tf.autograph.experimental.do_not_convert
    def read(path):
      records = tf.data.TFRecordDataset(path)
      return records if by_file else records.shard(self.num_replicas, self.replica_index)

    dataset = tf.data.Dataset.from_tensor_slices(files)
    files_at_a_time = self.num_readers
    if self.should_shuffle:
      dataset = dataset.shuffle(len(files), seed=self.seed)
      files_at_a_time = max(self.num_readers, _MIXED_FILES)
    files_at_a_time = min(files_at_a_time, len(files))
    dataset = dataset.interleave(read, cycle_length=files_at_a_time, block_length=1, num_parallel_calls=files_at_a_time)
    if self.should_shuffle:
      # Before decoding, where a record is fifty times smaller than its crop; before repeating, so that each epoch is complete.
      dataset = dataset.shuffle(max(int(_SHUFFLE_BYTES / self._record_bytes), _MIN_SHUFFLED_RECORDS), seed=self.seed)
    return dataset.repeat() if self.should_repeat else dataset

  def _load(self, serialized, seed):
    """Sample from a serialized record."""
    record = tfexample.parse_features(serialized)
    image = tfexample.decode_image(record.image)
    height, width, _ = tf.unstack(tf.shape(image, out_type=tf.int64))
    label = self._decode_label(record, height, width) if self.with_label else None
    original_image, image, label = input_preprocess.preprocess_image_and_label(
        image, label, self.crop_size[0], self.crop_size[1], self.min_resize_value, self.max_resize_value, self.resize_factor,
        self.min_scale_factor, self.max_scale_factor, self.scale_factor_step_size, self.ignore_label, self.is_training,
        self._pad_pixel, self.keep_aspect_ratio, record.name, seed)
    sample = {common.IMAGE: image, common.LABEL: label, common.IMAGE_NAME: record.name, common.HEIGHT: height,
              common.WIDTH: width, common.ORIGINAL_IMAGE: original_image if self.with_original_image else None}
    return {key: tensor for key, tensor in sample.items() if tensor is not None}

  def _decode_label(self, record, height, width):
    """uint8 [height, width, 1], checked to go with the image and to hold nothing but classes and the ignored value."""
    present = preprocess_utils.require(tf.strings.length(record.label) > 0, f'Image {{}} has no label; only split '
                                       f'{common.TEST_SET} may lack them.', record.name)
    with tf.control_dependencies([present]):
      label = tfexample.decode_label(tf.identity(record.label))
    label_height, label_width, _ = tf.unstack(tf.shape(label, out_type=tf.int64))
    same_size = preprocess_utils.require(
        tf.logical_and(tf.equal(label_height, height), tf.equal(label_width, width)),
        'Image {} is {}x{} but its label is {}x{} (height x width).', record.name, height, width, label_height, label_width)
    wrong = tf.logical_and(label > self.num_of_classes - 1, tf.not_equal(label, self.ignore_label))
    known_values = tf.cond(tf.reduce_any(wrong), lambda: self._refuse_values(tf.boolean_mask(label, wrong), record.name),
                           tf.no_op)
    with tf.control_dependencies([same_size, known_values]):
      return tf.identity(label)

  def _refuse_values(self, values, image_name):
    values, _ = tf.unique(values)
    return preprocess_utils.require(
        False, f'The label of image {{}} holds values that are no class: {{}}. Data set {self.dataset_name} has '
        f'num_classes={self.num_of_classes} (values 0 to {self.num_of_classes - 1}) and ignore_label={self.ignore_label}.',
        image_name, tf.sort(values)[:_MAX_VALUES_LISTED])


def _warn_of_size(descriptor, split_name, num_examples):
  declared = descriptor.splits_to_sizes.get(split_name, num_examples)
  if declared != num_examples:
    logging.warning('Split %r of data set %r should have %d examples; its files hold %d.', split_name, descriptor.name, declared,
                    num_examples)


def record_lengths(path):
  """Sizes of the records of a file, told from their heads; what they hold is not read.

  Args:
    path: TFRecord file.

  Returns:
    List of sizes in bytes.

  Raises:
    ValueError: the file ends within a record.
  """
  lengths = []
  position, size = 0, tf.io.gfile.stat(path).length
  # TensorFlow's own file reads half a megabyte ahead after each seek; for remote files there is no other.
  with (open if os.path.exists(path) else tf.io.gfile.GFile)(path, 'rb') as record_file:
    while position < size:
      record_file.seek(position)
      length = int.from_bytes(record_file.read(_LENGTH_BYTES), 'little')
      position += _HEAD_BYTES + length + _TAIL_BYTES
      if position > size:
        raise InputError(f'{path} ends within record {len(lengths)} (counted from 0), after {size} bytes: it is damaged or was '
                         'not written to the end. Copy it again, or convert the data set again.')
      lengths.append(length)
  return lengths


def largest_image_size(dataset_name, split_name, dataset_dir, min_resize_value=None, max_resize_value=None, resize_factor=None,
                       keep_aspect_ratio=True):
  """The crop into which every image of a split fits.

  Args:
    dataset_name: as in --dataset.
    split_name: name of the split.
    dataset_dir: folder of the records.
    min_resize_value, max_resize_value, resize_factor, keep_aspect_ratio: resizing before the crop, as for Dataset.

  Returns:
    (height, width): the largest of each after resizing, Python ints.

  Raises:
    ValueError: the split has no files or no examples.
  """
  @tf.autograph.experimental.do_not_convert
  def image_size(serialized):
    record = tfexample.parse_features(serialized)
    height, width = tf.cond(tf.minimum(record.height, record.width) > 0, lambda: (record.height, record.width),
                            lambda: tuple(tf.unstack(tf.shape(tfexample.decode_image(record.image), out_type=tf.int64)[:2])))
    size = tf.cast(tf.stack([height, width]), tf.int32)
    if min_resize_value or max_resize_value:
      size = tf.stack(preprocess_utils.resized_size(size[0], size[1], min_resize_value, max_resize_value, resize_factor,
                                                    keep_aspect_ratio))
    return size

  # The accelerator is left to the session that follows.
  with tf.Graph().as_default(), tf.Session(config=tf.ConfigProto(device_count={'GPU': 0})) as session:
    sizes = tf.data.TFRecordDataset(dataset_info.find_split_files(dataset_dir, split_name, dataset_name))
    sizes = sizes.map(image_size, num_parallel_calls=tf.data.AUTOTUNE)
    largest = sizes.reduce(tf.zeros([2], tf.int32), tf.maximum)
    height, width = session.run(largest)
  return int(height), int(width)
