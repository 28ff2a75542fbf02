"""Tests of data_generator.py on records that each test writes itself."""

import io

import numpy as np
import pytest
from PIL import Image

from deeplab import common, data_generator
from deeplab.core.base.tf_compat import tf
from deeplab.datasets import tfexample

_VARIANT = 'mobilenet_v2'


def encode(array, file_format='PNG'):
  file = io.BytesIO()
  Image.fromarray(array).save(file, file_format)
  return file.getvalue()


def make_example(name, label_value=1, size=(20, 30), label_size=None, with_label=True, height=None):
  """Serialized record of a gray image with a label of one value."""
  image = np.full([*size, 3], 100, np.uint8)
  label = np.full(label_size or size, label_value, np.uint8)
  return tfexample.image_seg_to_tfexample(encode(image, 'JPEG'), name, size[0] if height is None else height,
                                          size[1] if height is None else height, encode(label) if with_label else None,
                                          'jpg').SerializeToString()


def write_shards(folder, split, *shards):
  """Files of a split, one per list of serialized records."""
  for index, records in enumerate(shards):
    with tf.io.TFRecordWriter(str(folder / f'{split}-{index:05d}-of-{len(shards):05d}.tfrecord')) as writer:
      for record in records:
        writer.write(record)


def write_names(folder, split, *sizes):
  """Shards of the given numbers of records, whose images are called 0, 1, 2... in order."""
  start = 0
  shards = []
  for size in sizes:
    shards.append([make_example(str(number)) for number in range(start, start + size)])
    start += size
  write_shards(folder, split, *shards)


def make_dataset(folder, split='val', batch_size=1, crop_size=(33, 33), **arguments):
  arguments = {'dataset_name': 'pascal_voc_seg', 'model_variant': _VARIANT, **arguments}
  return data_generator.Dataset(split_name=split, dataset_dir=str(folder), batch_size=batch_size, crop_size=crop_size,
                                **arguments)


def read(folder, *arguments, num_batches=None, **named_arguments):
  """The batches of a data set, all or the first ones."""
  batches = []
  with tf.Graph().as_default(), tf.Session() as session:
    sample = make_dataset(folder, *arguments, **named_arguments).get_one_shot_iterator().get_next()
    while num_batches is None or len(batches) < num_batches:
      try:
        batches.append(session.run(sample))
      except tf.errors.OutOfRangeError:
        break
  return batches


def names_of(batches):
  return [int(name) for batch in batches for name in batch[common.IMAGE_NAME]]


_TRAINING = {'is_training': True, 'should_shuffle': True, 'should_repeat': True}


def test_the_call_that_forks_make(tmp_path):
  write_names(tmp_path, 'train', 3)
  with tf.Graph().as_default(), tf.Session() as session:
    dataset = data_generator.Dataset(
        dataset_name='pascal_voc_seg', split_name='train', dataset_dir=str(tmp_path), batch_size=2, crop_size=[25, 27],
        min_resize_value=None, max_resize_value=None, resize_factor=None, min_scale_factor=0.5, max_scale_factor=2.0,
        scale_factor_step_size=0.25, model_variant='mobilenet_v2', num_readers=2, is_training=True, should_shuffle=True,
        should_repeat=True)
    assert (dataset.num_of_classes, dataset.ignore_label, dataset.num_examples) == (21, 255, 3)
    assert dataset.scale_factor_step_size == 0.25 and dataset.crop_size == [25, 27]
    sample = dataset.get_one_shot_iterator().get_next()
    assert {key: (tensor.dtype, tensor.shape.as_list()) for key, tensor in sample.items()} == {
        common.IMAGE: (tf.float32, [None, 25, 27, 3]), common.LABEL: (tf.int32, [None, 25, 27, 1]),
        common.IMAGE_NAME: (tf.string, [None]), common.HEIGHT: (tf.int64, [None]), common.WIDTH: (tf.int64, [None])}
    for _ in range(2):
      values = session.run(sample)
      assert len(values[common.IMAGE]) == 2
      assert set(np.unique(values[common.LABEL])) <= {1, 255}


def test_evaluation_sample(tmp_path):
  write_shards(tmp_path, 'val', [make_example('a.jpg', 7, (20, 30))])
  [batch] = read(tmp_path)
  assert batch[common.IMAGE_NAME] == [b'a.jpg']
  assert (batch[common.HEIGHT], batch[common.WIDTH]) == (20, 30)
  np.testing.assert_array_equal(batch[common.ORIGINAL_IMAGE], np.full([1, 20, 30, 3], 100))
  np.testing.assert_allclose(batch[common.IMAGE][0, :20, :30], 100)
  np.testing.assert_allclose(batch[common.IMAGE][0, 20:], 127.5)
  assert (batch[common.LABEL][0, :20, :30] == 7).all() and (batch[common.LABEL][0, 20:] == 255).all()


@pytest.mark.parametrize('variant, pixel', [
    ('resnet_v1_50', [123.15, 115.90, 103.06]), ('resnet_v1_18', [123.15, 115.90, 103.06]), ('xception_65', [127.5] * 3)])
def test_padding_is_what_the_network_maps_to_0(tmp_path, variant, pixel):
  write_names(tmp_path, 'val', 1)
  [batch] = read(tmp_path, model_variant=variant)
  np.testing.assert_allclose(batch[common.IMAGE][0, -1, -1], pixel, rtol=1e-6)


def test_files_are_read_in_order_alternating(tmp_path):
  write_names(tmp_path, 'val', 2, 2, 1, 0)
  assert names_of(read(tmp_path, num_readers=2)) == [0, 2, 1, 3, 4]
  assert names_of(read(tmp_path, num_readers=1)) == [0, 1, 2, 3, 4]


def test_last_batch_is_short(tmp_path):
  write_names(tmp_path, 'val', 5)
  assert [len(batch[common.IMAGE]) for batch in read(tmp_path, batch_size=2)] == [2, 2, 1]


def test_images_of_different_size_need_no_original_in_a_batch(tmp_path):
  write_shards(tmp_path, 'val', [make_example('0', size=(20, 30)), make_example('1', size=(10, 12))])
  [batch] = read(tmp_path, batch_size=2, with_original_image=False)
  assert common.ORIGINAL_IMAGE not in batch
  assert batch[common.IMAGE].shape == (2, 33, 33, 3)


def test_resized_original_is_float(tmp_path):
  write_names(tmp_path, 'val', 1)
  [batch] = read(tmp_path, min_resize_value=10, max_resize_value=40)
  assert batch[common.ORIGINAL_IMAGE].shape == (1, 10, 15, 3) and batch[common.ORIGINAL_IMAGE].dtype == np.float32
  assert batch[common.HEIGHT] == 20


def test_keep_aspect_ratio(tmp_path):
  write_names(tmp_path, 'val', 1)
  [batch] = read(tmp_path, min_resize_value=10, max_resize_value=40, keep_aspect_ratio=False)
  assert batch[common.ORIGINAL_IMAGE].shape == (1, 15, 15, 3)


def test_split_without_labels(tmp_path):
  write_shards(tmp_path, 'test', [make_example('a', with_label=False)])
  [batch] = read(tmp_path, 'test')
  assert common.LABEL not in batch and batch[common.IMAGE].shape == (1, 33, 33, 3)


def test_labels_can_be_left_out(tmp_path):
  write_shards(tmp_path, 'val', [make_example('a', with_label=False)])
  [batch] = read(tmp_path, with_label=False)
  assert common.LABEL not in batch


@pytest.mark.parametrize('training', [True, False])
def test_missing_label_is_an_error(tmp_path, training):
  write_shards(tmp_path, 'val', [make_example('street.jpg', with_label=False)])
  with pytest.raises(tf.errors.InvalidArgumentError, match='Image street.jpg has no label'):
    read(tmp_path, **(_TRAINING if training else {}))


@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize('value', [21, 100, 254])
def test_label_outside_of_the_classes_is_an_error(tmp_path, training, value):
  write_shards(tmp_path, 'val', [make_example('street.jpg', value)])
  with pytest.raises(tf.errors.InvalidArgumentError) as error:
    read(tmp_path, **(_TRAINING if training else {}))
  assert (f'The label of image street.jpg holds values that are no class: [{value}]. Data set pascal_voc_seg has num_classes=21 '
          '(values 0 to 20) and ignore_label=255.') in str(error.value)


def test_all_wrong_values_of_a_label_are_named(tmp_path):
  label = np.repeat(np.array([0, 20, 255, 30, 22], np.uint8), 4).reshape(4, 5)
  example = tfexample.image_seg_to_tfexample(encode(np.zeros([4, 5, 3], np.uint8)), 'a', 4, 5, encode(label), 'png')
  write_shards(tmp_path, 'val', [example.SerializeToString()])
  with pytest.raises(tf.errors.InvalidArgumentError, match=r'no class: \[22 30\]'):
    read(tmp_path)


@pytest.mark.parametrize('dataset, value', [('pascal_voc_seg', 20), ('pascal_voc_seg', 255), ('ade20k', 150), ('ade20k', 0)])
def test_classes_and_ignored_value_are_accepted(tmp_path, dataset, value):
  write_shards(tmp_path, 'val', [make_example('a', value)])
  [batch] = read(tmp_path, dataset_name=dataset)
  assert (batch[common.LABEL][0, :20, :30] == value).all()


def test_label_of_another_size_is_an_error(tmp_path):
  write_shards(tmp_path, 'val', [make_example('street.jpg', size=(20, 30), label_size=(20, 29))])
  with pytest.raises(tf.errors.InvalidArgumentError, match='Image street.jpg is 20x30 but its label is 20x29'):
    read(tmp_path)


def test_image_larger_than_the_crop_is_an_error(tmp_path):
  write_shards(tmp_path, 'val', [make_example('street.jpg', size=(60, 70))])
  with pytest.raises(tf.errors.InvalidArgumentError,
                     match='Image street.jpg is 60x70 .* crop is 49x49; a crop of at least 60,70 is needed, best 65,81'):
    read(tmp_path, crop_size=(49, 49))


def test_training_is_reproducible_under_a_seed(tmp_path):
  write_names(tmp_path, 'train', *[6] * 5)
  arguments = {'batch_size': 4, 'num_batches': 9, 'min_scale_factor': 0.5, 'max_scale_factor': 2.0, **_TRAINING}
  runs = [read(tmp_path, 'train', seed=seed, **arguments) for seed in (1, 1, 2)]
  for first, again in zip(runs[0], runs[1], strict=True):
    for key in first:
      np.testing.assert_array_equal(first[key], again[key])
  assert names_of(runs[0]) != names_of(runs[2])


def test_runs_without_a_seed_differ(tmp_path):
  write_names(tmp_path, 'train', 30)
  assert names_of(read(tmp_path, 'train', num_batches=20, **_TRAINING)) != names_of(
      read(tmp_path, 'train', num_batches=20, **_TRAINING))


def test_each_epoch_is_complete_and_in_its_own_order(tmp_path):
  write_names(tmp_path, 'train', *[5] * 4)
  names = names_of(read(tmp_path, 'train', num_batches=40, seed=0, **_TRAINING))
  first, second = names[:20], names[20:]
  assert sorted(first) == sorted(second) == list(range(20))
  assert first != second and first != sorted(first)


def test_draws_differ_within_a_run(tmp_path):
  write_names(tmp_path, 'train', 1)
  batches = read(tmp_path, 'train', num_batches=8, seed=0, min_scale_factor=0.5, max_scale_factor=2.0, **_TRAINING)
  assert len({batch[common.LABEL].tobytes() for batch in batches}) > 4


@pytest.mark.parametrize('shards', [(3, 4, 2), (9,)])
def test_replicas_divide_the_records(tmp_path, shards):
  write_names(tmp_path, 'train', *shards)
  shares = [names_of(read(tmp_path, 'train', num_replicas=2, replica_index=index)) for index in (0, 1)]
  assert sorted(shares[0] + shares[1]) == list(range(9))
  assert abs(len(shares[0]) - len(shares[1])) <= 3


def test_number_of_parallel_calls(tmp_path):
  write_names(tmp_path, 'val', 3)
  assert names_of(read(tmp_path, num_parallel_calls=1)) == [0, 1, 2]


def test_missing_split(tmp_path):
  write_names(tmp_path, 'train', 1)
  with pytest.raises(ValueError, match=r'val-\*.*train'):
    make_dataset(tmp_path, 'val')


def test_unknown_dataset(tmp_path):
  with pytest.raises(ValueError, match='pascal_voc_seg'):
    make_dataset(tmp_path, dataset_name='foo')


def test_empty_files(tmp_path):
  for index in range(4):
    (tmp_path / f'train-{index:05d}-of-00004.tfrecord').touch()
  with pytest.raises(ValueError, match="'train' has 0 examples"):
    make_dataset(tmp_path, 'train')


@pytest.mark.parametrize('content', [b'abc', b'no records at all ' * 20])
def test_foreign_file_is_named(tmp_path, content):
  write_names(tmp_path, 'val', 1, 1)
  (tmp_path / 'val-00001-of-00002.tfrecord').write_bytes(content)
  with pytest.raises(ValueError, match='val-00001-of-00002.tfrecord'):
    make_dataset(tmp_path)


@pytest.mark.parametrize('missing', [1, 4, 100])
def test_truncated_file_is_named(tmp_path, missing):
  write_names(tmp_path, 'val', 1, 3)
  path = tmp_path / 'val-00001-of-00002.tfrecord'
  path.write_bytes(path.read_bytes()[:-missing])
  with pytest.raises(ValueError, match='val-00001-of-00002.tfrecord ends within record 2'):
    make_dataset(tmp_path)


def test_record_lengths(tmp_path):
  write_shards(tmp_path, 'val', [b'abc', b'', b'x' * 1000])
  assert data_generator.record_lengths(str(tmp_path / 'val-00000-of-00001.tfrecord')) == [3, 0, 1000]


@pytest.mark.parametrize('height', [None, 0])
def test_largest_image_size(tmp_path, height):
  """With sizes in the records, and decoded where they are absent."""
  sizes = {'a': (20, 30), 'b': (41, 12)}
  write_shards(tmp_path, 'val', [make_example(name, size=size, height=height) for name, size in sizes.items()])
  assert data_generator.largest_image_size('pascal_voc_seg', 'val', str(tmp_path)) == (41, 30)


def test_largest_image_size_after_resizing(tmp_path):
  write_shards(tmp_path, 'val', [make_example('a', size=(20, 30)), make_example('b', size=(40, 10))])
  assert data_generator.largest_image_size('pascal_voc_seg', 'val', str(tmp_path), 40, 90, 8) == (89, 65)
