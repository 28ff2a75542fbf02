"""The description of a run beside its checkpoints, and the options that a checkpoint is used with."""

import json
import logging as python_logging

import pytest
from absl import flags
from absl.testing import flagsaver

from deeplab import common
from deeplab.core.base import stored_format
from deeplab.core.base.errors import InputError
from deeplab.core.base.tf_compat import tf
from deeplab.core.base.version import VERSION
from deeplab.core.images import dataset_descriptor
from deeplab.core.run import checkpoint_fit, run_options
from deeplab.datasets import dataset_info

common.define_network_flags()
common.define_data_flags()

FLAGS = flags.FLAGS
_SHAPES = dataset_info.describe('shapes', 3, class_names=['none', 'disc', 'star'])
_RUN_FLAGS = {'depth_multiplier': 0.5, 'atrous_rates': [6, 12], 'output_stride': 16, 'decoder_output_stride': [4],
              'min_resize_value': 65, 'image_pyramid': [0.5, 1.0], 'nas_stem_output_num_conv_filters': 32}


def _options(num_classes=3):
  return common.ModelOptions({'semantic': num_classes}, [65, 65], FLAGS.atrous_rates, FLAGS.output_stride)


def _write(folder, descriptor=_SHAPES, **run_flags):
  with flagsaver.flagsaver(**{**_RUN_FLAGS, **run_flags}):
    run_options.write(str(folder), common.run_flags(_options(descriptor.num_classes)), descriptor)


def _save(folder, **shapes):
  """Writes a checkpoint of variables of these shapes; returns its prefix. `__` in a name stands for `/`."""
  with tf.Graph().as_default(), tf.Session() as session:
    for name, shape in shapes.items():
      tf.get_variable(name.replace('__', '/'), shape)
    session.run(tf.global_variables_initializer())
    return tf.train.Saver().save(session, str(folder / 'model.ckpt'))


def _head(num_classes):
  return {'logits__semantic__biases': [num_classes]}


def _use(prefix, num_classes=3):
  return common.checkpoint_options(prefix, num_classes, [65, 65])


def test_round_trip(tmp_path):
  _write(tmp_path)
  for path in (str(tmp_path), str(tmp_path / 'model.ckpt-8')):
    stored = run_options.read(path)
    assert {name: stored.flags[name] for name in _RUN_FLAGS} == _RUN_FLAGS
    assert stored.dataset == _SHAPES
  assert [path.name for path in tmp_path.iterdir()] == ['model_options.json']


def test_file_names_flags(tmp_path):
  _write(tmp_path)
  content = json.loads((tmp_path / 'model_options.json').read_text())
  assert set(content['flags']) == run_options.stored_flags()
  assert all(name in FLAGS for name in content['flags'])
  assert content['dataset']['class_names'] == ['none', 'disc', 'star']


def test_no_file(tmp_path):
  assert run_options.read(str(tmp_path)) is None


@pytest.mark.parametrize('content, reason', [
    ('', 'Expecting value'), ('{"dataset": {}}', 'flags'), ('[]', 'no JSON object'), ('{"flags": 3, "dataset": {}}', 'int'),
    ('{"flags": {}, "dataset": {"name": "x", "num_classes": 2}}', 'lacks the option'),
])
def test_damaged_file(tmp_path, content, reason):
  (tmp_path / 'model_options.json').write_text(content)
  with pytest.raises(InputError, match=reason):
    run_options.read(str(tmp_path))


def _edit(folder, change):
  path = folder / 'model_options.json'
  content = json.loads(path.read_text())
  change(content)
  path.write_text(json.dumps(content))


def test_file_of_a_later_version(tmp_path):
  """Options that this version does not know are left out where they are off, and refused by name where they are in use."""
  _write(tmp_path)
  _edit(tmp_path, lambda content: content.update(format=9, version='2.5.0', off={'pretty': 0, 'license': ''}))
  _edit(tmp_path, lambda content: content['flags'].update(pretty=0))
  _edit(tmp_path, lambda content: content['dataset'].update(license=''))
  stored = run_options.read(str(tmp_path))
  assert 'pretty' not in stored.flags and stored.dataset == _SHAPES
  _edit(tmp_path, lambda content: content['flags'].update(pretty=3))
  with pytest.raises(InputError, match=r'it has pretty=3, which this version, 1\.\d.*, does not know; version 2.5.0 wrote it'):
    run_options.read(str(tmp_path))
  _edit(tmp_path, lambda content: content['flags'].update(pretty=0))
  _edit(tmp_path, lambda content: content['dataset'].update(license='mine'))
  with pytest.raises(InputError, match='it has license=mine'):
    run_options.read(str(tmp_path))


def test_option_that_came_after_the_file(tmp_path, monkeypatch):
  """It has the value with which the run was trained, and is missed in a file that should have it."""
  _write(tmp_path)
  monkeypatch.setattr(run_options, 'ADDED_FLAGS', (stored_format.Added('sharpness', stored_format.FORMAT + 1, 0.0),))
  assert run_options.read(str(tmp_path)).flags['sharpness'] == 0.0
  _edit(tmp_path, lambda content: content.update(format=stored_format.FORMAT + 1))
  with pytest.raises(InputError, match='lacks the option sharpness'):
    run_options.read(str(tmp_path))
  _edit(tmp_path, lambda content: content['flags'].update(sharpness=0.5))
  assert run_options.read(str(tmp_path)).flags['sharpness'] == 0.5


def test_head_says_what_is_off(tmp_path, monkeypatch):
  monkeypatch.setattr(run_options, 'ADDED_FLAGS', (stored_format.Added('sharpness', 3, 0.0),))
  _write(tmp_path)
  content = json.loads((tmp_path / 'model_options.json').read_text())
  assert (content['format'], content['version'], content['off']) == (stored_format.FORMAT, VERSION, {'sharpness': 0.0})


def test_tables_hold_no_format_to_come():
  rows = [*run_options.ADDED_FLAGS, *dataset_descriptor.ADDED_FIELDS]
  assert all(2 <= row.format <= stored_format.FORMAT for row in rows)
  assert {row.name for row in dataset_descriptor.ADDED_FIELDS} <= set(dataset_descriptor.DatasetDescriptor._fields)


@pytest.mark.parametrize('part, value', [('format', '2'), ('format', 0), ('version', 2), ('off', [])])
def test_damaged_head(tmp_path, part, value):
  _write(tmp_path)
  _edit(tmp_path, lambda content: content.update({part: value}))
  with pytest.raises(InputError, match=f"'{part}' is"):
    run_options.read(str(tmp_path))


def _differences(folder, descriptor=_SHAPES, **now):
  with flagsaver.flagsaver(**{**_RUN_FLAGS, **now}):
    return run_options.differences(run_options.read(str(folder)), common.run_flags(_options(descriptor.num_classes)), descriptor)


def test_differences_of_a_resumed_run(tmp_path):
  _write(tmp_path)
  assert _differences(tmp_path) == []
  # Neither decides the variables or the loss.
  assert _differences(tmp_path, min_resize_value=100, label_weights=[1.0, 2.0, 3.0]) == []
  assert _differences(tmp_path, model_variant='xception_65', atrous_rates=None) == [
      '--atrous_rates: 6,12 in the run, not set now', '--model_variant: mobilenet_v2 in the run, xception_65 now']
  assert _differences(tmp_path, dataset_info.describe('forms', 2, class_names=['none', 'disc'])) == [
      'num_classes of the data set: 3 in the run (shapes), 2 now (forms)']
  assert _differences(tmp_path, _SHAPES._replace(ignore_label=0)) == [
      'ignore_label of the data set: 255 in the run (shapes), 0 now (shapes)']


@pytest.mark.parametrize('names, renamed', [
    (['none', 'disc', 'star'], []), (['none', 'circle', 'star'], ['disc -> circle']),
    (['a', 'b', 'c'], ['none -> a', 'disc -> b', 'star -> c'])])
def test_classes_may_be_renamed(tmp_path, names, renamed):
  _write(tmp_path)
  assert _differences(tmp_path, _SHAPES._replace(class_names=names)) == []
  assert run_options.renamed_classes(run_options.read(str(tmp_path)), _SHAPES._replace(class_names=names)) == renamed


@pytest.mark.parametrize('names', [['none', 'star', 'disc'], ['disc', 'star', 'none'], ['none', 'star', 'circle']])
def test_classes_in_another_order_are_refused(tmp_path, names):
  _write(tmp_path)
  assert _differences(tmp_path, _SHAPES._replace(class_names=names)) == [
      f'class_names of the data set: none,disc,star in the run (shapes), {",".join(names)} now (shapes)']


def test_unset_pyramid_is_the_image_itself(tmp_path):
  _write(tmp_path, image_pyramid=None)
  assert _differences(tmp_path, image_pyramid=[1.0]) == []
  assert len(_differences(tmp_path, image_pyramid=[0.5])) == 1


def test_flags_left_out_come_from_the_run(tmp_path):
  prefix = _save(tmp_path, **_head(3))
  _write(tmp_path)
  used = _use(prefix)
  options = used.model_options
  assert (options.depth_multiplier, options.atrous_rates, options.decoder_output_stride) == (0.5, [6, 12], [4])
  assert options.nas_architecture_options['nas_stem_output_num_conv_filters'] == 32
  assert options.outputs_to_num_classes == {'semantic': 3} and options.crop_size == [65, 65]
  assert used.image_pyramid == [0.5, 1.0]
  assert used.resize == {'min_resize_value': 65, 'max_resize_value': None, 'resize_factor': None, 'keep_aspect_ratio': True}
  assert used.dataset == _SHAPES


@pytest.mark.parametrize('name, value, stored', [
    ('model_variant', 'xception_65', 'mobilenet_v2'), ('depth_multiplier', 1.0, '0.5'),
    ('decoder_output_stride', [8, 4], '4'), ('atrous_rates', [6, 12, 18], '6,12'), ('aspp_convs_filters', 128, '256'),
    ('nas_stem_output_num_conv_filters', 20, '32')])
def test_given_flag_of_another_network_is_refused(tmp_path, name, value, stored):
  prefix = _save(tmp_path, **_head(3))
  _write(tmp_path)
  text = ','.join(map(str, value)) if isinstance(value, list) else value
  with flagsaver.flagsaver(**{name: value}), pytest.raises(InputError, match=f'--{name} is {text}, the run has {stored}'):
    _use(prefix)


def test_given_flag_that_agrees(tmp_path):
  prefix = _save(tmp_path, **_head(3))
  _write(tmp_path)
  with flagsaver.flagsaver(depth_multiplier=0.5, decoder_output_stride=[4]):
    assert _use(prefix).model_options.depth_multiplier == 0.5


def test_given_flag_that_may_differ_is_used(tmp_path, caplog):
  prefix = _save(tmp_path, **_head(3))
  _write(tmp_path)
  with flagsaver.flagsaver(merge_method='avg', output_stride=8, min_resize_value=100), \
      caplog.at_level(python_logging.INFO, 'absl'):
    used = _use(prefix)
  assert used.model_options.merge_method == 'avg' and used.model_options.output_stride == 8
  assert used.model_options.atrous_rates == [6, 12] and used.resize['min_resize_value'] == 100
  levels = {record.getMessage().split('=')[0].split(' ')[0]: record.levelname for record in caplog.records}
  assert all(levels[name] == 'WARNING' for name in ('--merge_method', '--min_resize_value', '--output_stride'))
  # The rates that cover the same field of view at the other stride.
  assert any('12,24' in record.getMessage() for record in caplog.records if record.levelname == 'WARNING')


@pytest.mark.parametrize('low, high', [(None, 60), (65, 60)])
def test_bounds_of_a_resize_go_together(tmp_path, low, high):
  prefix = _save(tmp_path, **_head(3))
  with flagsaver.flagsaver(min_resize_value=low, max_resize_value=high), \
      pytest.raises(InputError, match=f'--max_resize_value=60 with --min_resize_value={low or "not set"}: give both'):
    _use(prefix)


def test_without_a_description_the_flags_decide(tmp_path):
  prefix = _save(tmp_path, **_head(3))
  with flagsaver.flagsaver(depth_multiplier=0.35, atrous_rates=[3]):
    used = _use(prefix)
  assert used.model_options.depth_multiplier == 0.35 and used.model_options.atrous_rates == [3]
  assert used.dataset is None


@pytest.mark.parametrize('shapes', [_head(21), {'decoder__decoder_conv0__biases': [21]}])
def test_number_of_classes(tmp_path, shapes):
  prefix = _save(tmp_path, **shapes)
  with pytest.raises(InputError, match='trained for 21 classes, the data set has 2'):
    _use(prefix, 2)
  assert _use(prefix, None).model_options.outputs_to_num_classes == {'semantic': 21}


def test_no_head(tmp_path):
  prefix = _save(tmp_path, MobilenetV2__Conv__weights=[3])
  with pytest.raises(InputError, match='number of classes'):
    _use(prefix, None)


def _check(folder, in_checkpoint, in_network):
  prefix = _save(folder, **in_checkpoint)
  with tf.Graph().as_default():
    checkpoint_fit.check_variables(
        prefix, [tf.get_variable(name.replace('__', '/'), shape) for name, shape in in_network.items()])


@pytest.mark.parametrize('name, flag', [
    ('aspp1_depthwise__BatchNorm__beta', 'atrous_rates'), ('decoder__feature_projection0__weights', 'decoder_output_stride'),
    ('image_pooling__weights', 'add_image_level_feature'), ('concat_projection__weights', 'aspp_with_concat_projection'),
    ('meta_architecture__branch_0__weights', 'dense_prediction_cell_json')])
def test_head_in_one_of_both_only(tmp_path, name, flag):
  scope = name.split('__')[0]
  with pytest.raises(InputError, match=rf'lacks {scope} \(1 variables\).*--{flag}'):
    _check(tmp_path, _head(3), {**_head(3), name: [2]})
  with pytest.raises(InputError, match=rf'holds {scope} \(1 variables\), which this network lacks.*--{flag}'):
    _check(tmp_path, {**_head(3), name: [2]}, _head(3))


def test_other_shape_or_backbone(tmp_path):
  with pytest.raises(InputError, match=r'MobilenetV2/Conv/weights is \[4\] in it and \[8\] in this network.*--depth_multiplier'):
    _check(tmp_path, {'MobilenetV2__Conv__weights': [4]}, {'MobilenetV2__Conv__weights': [8]})
  with pytest.raises(InputError, match='lacks resnet_v1_50.*--model_variant'):
    _check(tmp_path, {'MobilenetV2__Conv__weights': [4]}, {'resnet_v1_50__conv1__weights': [8]})


def test_what_only_training_needs_may_be_left(tmp_path):
  _check(tmp_path, {**_head(3), 'global_step': [], 'logits__semantic__biases__Momentum': [3], 'MobilenetV2__Logits__w': [2]},
         _head(3))


def test_checkpoint_of_8_bits_in_floating_point_is_warned_of(tmp_path, caplog):
  ranges = {'aspp0__act_quant__min': [], 'aspp0__act_quant__max': []}
  _check(tmp_path, {**_head(3), **ranges}, {**_head(3), **ranges})
  _check(tmp_path, _head(3), _head(3))
  assert not caplog.text
  _check(tmp_path, {**_head(3), **ranges}, _head(3))
  assert 'trained for 8-bit arithmetic, but is used in floating point: give --quantize_delay_step=0.' in caplog.text


def test_data_set_of_the_run_is_the_default(tmp_path):
  prefix, records = str(tmp_path / 'model.ckpt-8'), tmp_path / 'records'
  records.mkdir()
  name = lambda: dataset_info.name_for_checkpoint(prefix, FLAGS.dataset, 'dataset' in common.given_flags(), str(records))
  assert name() == 'pascal_voc_seg'
  _write(tmp_path, dataset_info.get_descriptor('cityscapes'))
  assert name() == 'cityscapes'
  with flagsaver.flagsaver(dataset='ade20k'):
    assert name() == 'ade20k'
  dataset_info.write_description(_SHAPES, str(records / 'dataset.json'))
  assert name() == 'pascal_voc_seg'
