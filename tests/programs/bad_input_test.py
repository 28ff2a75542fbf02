"""Command lines and files that cannot work: exit code 1 and one message that says what is wrong, before any work is done."""

import json
import shutil

import numpy as np
import pytest
import tiny_run

from deeplab import eval as evaluation
from deeplab import export_model, train, vis
from deeplab.core.base.tf_compat import tf

_REQUIRED = {
    train: ('--dataset_dir={records}', '--train_logdir={out}', '--model_variant=tiny'),
    evaluation: ('--dataset_dir={records}', '--checkpoint_dir={checkpoint}', '--eval_logdir={out}', '--model_variant=tiny',
                 '--max_number_of_evaluations=1', '--aspp_convs_filters=8'),
    vis: ('--dataset_dir={records}', '--checkpoint_dir={checkpoint}', '--vis_logdir={out}', '--model_variant=tiny',
          '--max_number_of_iterations=1', '--aspp_convs_filters=8'),
    export_model: ('--checkpoint_path={checkpoint}', '--export_path={out}/graph.pb', '--model_variant=tiny',
                   '--aspp_convs_filters=8'),
}
_MULTI_STEPS = '--learning_policy=multi_steps '

# Arguments -> part of the message.
_TRAIN = [
    # Names.
    ('--training_bumber_of_steps=2', 'Unknown flag --training_bumber_of_steps; did you mean --training_number_of_steps?'),
    ('--train_spilt=val', 'Unknown flag --train_spilt; did you mean --train_split?'),
    ('--learing_policy=poly', 'Unknown flag --learing_policy; did you mean --learning_policy?'),
    ('--train_bath_size 4', 'Unknown flag --train_bath_size; did you mean --train_batch_size?'),
    ('--Fine_tune_batch_norm=false', 'Unknown flag --Fine_tune_batch_norm; did you mean --fine_tune_batch_norm?'),
    ('--Tf_initial_checkpoint=x', 'Unknown flag --Tf_initial_checkpoint; did you mean --tf_initial_checkpoint?'),
    ('--tf_initial_checkpoints=x', 'Unknown flag --tf_initial_checkpoints; did you mean --tf_initial_checkpoint?'),
    ('--qqqqqq', 'Unknown flag --qqqqqq. --help lists the flags.'),
    ('--vis_crop_sise=65', 'Unknown flag --vis_crop_sise; did you mean --vis_crop_size?'),
    ('train', 'Not a flag: train. Write --name=value.'),
    ('--train_crop_size 65 65', 'Not a flag: 65. Write --name=value.'),
    ('--flagfile={out}/flags.txt', 'flags.txt'),
    ('--dataset_dir', 'Missing value for flag --dataset_dir'),
    # Values.
    ('--train_batch_size=x', 'flag --train_batch_size=x: invalid literal'),
    ('--train_batch_size=8.5', 'flag --train_batch_size=8.5: invalid literal'),
    ('--train_batch_size=0', 'flag --train_batch_size=0: 0 is not a positive integer'),
    ('--num_clones=0', 'flag --num_clones=0: 0 is not a positive integer'),
    ('--training_number_of_steps=0', 'flag --training_number_of_steps=0: 0 is not a positive integer'),
    ('--save_interval_secs=0', 'flag --save_interval_secs=0: 0 is not a positive integer'),
    ('--max_checkpoints_to_keep=-1', 'flag --max_checkpoints_to_keep=-1: -1 is not a non-negative integer'),
    ('--base_learning_rate=-1', 'flag --base_learning_rate=-1: -1.0 is not a non-negative number'),
    ('--base_learning_rate=nan', '--base_learning_rate=nan is no finite number.'),
    ('--weight_decay=inf', '--weight_decay=inf is no finite number.'),
    ('--momentum=1.5', 'flag --momentum=1.5: 1.5 is not a number in the range [0.0, 1.0]'),
    ('--optimizer=sgd', 'flag --optimizer=sgd: value should be one of <momentum|adam>'),
    ('--learning_policy=exp', 'flag --learning_policy=exp: value should be one of <poly|step|cosine|multi_steps>'),
    ('--merge_method=mean', 'flag --merge_method=mean: value should be one of <max|avg>'),
    ('--initialize_last_layer=maybe', 'flag --initialize_last_layer=maybe: choose one of: true, false, auto'),
    ('--noupsample_logits=1', '--noupsample_logits=1 does not take an argument'),
    ('--train_crop_size=513x513', "'513x513' is not a list of whole numbers above 0, such as 6,12,18"),
    ('--train_crop_size=0,65', "'0,65' is not a list of whole numbers above 0"),
    ('--train_crop_size=65.5', "'65.5' is not a list of whole numbers above 0"),
    ('--train_crop_size=65,65,65', '--train_crop_size=65,65,65: give height,width or one number for a square'),
    ('--train_crop_size=', '--train_crop_size=: give height,width or one number for a square'),
    ('--image_pooling_stride=1,1,1', '--image_pooling_stride=1,1,1: give height,width'),
    ('--atrous_rates=6,twelve', "'6,twelve' is not a list of whole numbers above 0"),
    ('--atrous_rates=-6', "'-6' is not a list of whole numbers above 0"),
    ('--label_weights=1,-1,1', "'1,-1,1' is not a list of numbers not below 0, such as 0.5,1.0, nor the word auto"),
    ('--label_weights=none', "'none' is not a list of numbers not below 0"),
    ('--image_pyramid=0,1', '--image_pyramid=0.0,1.0: give scales above 0'),
    # The network.
    ('--model_variant=resnet_v1_50_betaa', '--model_variant=resnet_v1_50_betaa: no such backbone; choose one of: mobilenet_v2, '),
    ('--freeze_backbone --model_variant=x', '--model_variant=x: no such backbone'),
    ('--output_stride=7', '--output_stride=7 does not go with --model_variant=tiny: choose one of: 4, 8, 16, 32'),
    ('--decoder_output_stride=2', '--decoder_output_stride=2 does not go with --model_variant=tiny: choose from: 4'),
    ('--decoder_output_stride=4,8', '--decoder_output_stride=4,8: write the strides in descending order.'),
    ('--decoder_output_is_logits', '--decoder_output_is_logits needs --decoder_output_stride'),
    ('--decoder_output_is_logits --decoder_output_stride=4', '--decoder_filters=256: with --decoder_output_is_logits it must be'),
    ('--multi_grid=1,2,4', '--multi_grid=[1, 2, 4] does not go with --model_variant=tiny'),
    ('--depth_multiplier=0.5 --model_variant=xception_65', '--depth_multiplier=0.5 does not go with --model_variant=xception_65'),
    ('--logits_kernel_size=3', '--logits_kernel_size=3: kernels above 1 need --aspp_with_batch_norm=false'),
    ('--dense_prediction_cell_json={out}/cell.json', 'not a JSON file that can be read'),
    ('--quantize_delay_step=0', '--quantize_delay_step=0 does not go with --model_variant=tiny: only these can be quantised: '
     'mobilenet_v2'),
    # What does not go together.
    ('--train_batch_size=3 --num_clones=2 --clone_on_cpu', '--train_batch_size=3 cannot be split over --num_clones=2'),
    ('--num_clones=8', '--num_clones=8, but this machine has '),
    ('--num_ps_tasks=1', '--num_ps_tasks=1 needs --master'),
    ('--num_replicas=2', '--num_replicas=2 needs --num_ps_tasks'),
    ('--task=1', '--task=1: with --num_replicas=1 it is at most 0.'),
    ('--job_name=evaluator', 'needs --validation_split and --validation_job=evaluator'),
    ('--job_name=evaluator --validation_split=train', 'needs --validation_split and --validation_job=evaluator'),
    ('--validation_interval_steps=5', '--validation_interval_steps=5 has no effect: there is no --validation_split.'),
    ('--early_stopping_validations=5', '--early_stopping_validations=5 has no effect: there is no --validation_split.'),
    ('--validation_split=test', '--validation_split=test has no labels to compare with; choose another split.'),
    ('--ps_hosts=a:1 --job_name=ps', '--ps_hosts and --worker_hosts: there is no worker 0 (chief)'),
    ('--sync_replicas', '--sync_replicas needs a cluster of two or more workers'),
    ('--backup_workers=1', '--backup_workers=1 has no effect: there is no --sync_replicas.'),
    ('--sync_replicas --backup_workers=2 --master=grpc://a:1 --num_ps_tasks=1 --num_replicas=2',
     '--backup_workers=2: of 2 workers at most 1.'),
    ('--slow_start_step=30000', '--slow_start_step=30000 is not less than --training_number_of_steps=30000'),
    (_MULTI_STEPS, '--learning_policy=multi_steps needs --learning_rate_boundaries, ascending, and one more'),
    (_MULTI_STEPS + '--learning_rate_boundaries=20,10 --boundary_learning_rates=1,1,1', 'found [20, 10] and [1.0, 1.0, 1.0]'),
    (_MULTI_STEPS + '--learning_rate_boundaries=10 --boundary_learning_rates=1', 'found [10] and [1.0]'),
    ('--learning_rate_boundaries=10', '--learning_rate_boundaries=10 has no effect: --learning_policy is not multi_steps. Leave'),
    ('--optimizer=adam --base_learning_rate=0.1', '--base_learning_rate=0.1 has no effect: --optimizer=adam has a constant rate'),
    ('--optimizer=adam --slow_start_step=9', '--slow_start_step=9 has no effect: --optimizer=adam has a constant rate'),
    ('--adam_learning_rate=0.1', '--adam_learning_rate=0.1 has no effect: --optimizer is not adam.'),
    ('--top_k_percent_pixels=0', '--top_k_percent_pixels=0.0: give a share of pixels above 0 and up to 1.'),
    ('--top_k_percent_pixels=1.5', '--top_k_percent_pixels=1.5: give a share of pixels above 0 and up to 1.'),
    ('--hard_example_mining_step=-1', 'flag --hard_example_mining_step=-1: -1 is not a non-negative integer'),
    ('--drop_path_keep_prob=0', '--drop_path_keep_prob=0: give a probability above 0'),
    ('--min_scale_factor=2 --max_scale_factor=0.5', '--min_scale_factor=2.0 and --max_scale_factor=0.5: give'),
    ('--min_scale_factor=0', '--min_scale_factor=0.0 and --max_scale_factor=2.0: give a number above 0'),
    ('--scale_factor_step_size=2', '--scale_factor_step_size=2.0 is more than --max_scale_factor=2.0 less --min_scale_factor='),
    ('--max_resize_value=65', '--max_resize_value=65 with --min_resize_value=not set: give both'),
    ('--min_resize_value=65 --max_resize_value=33', '--max_resize_value=33 with --min_resize_value=65: give both'),
    ('--train_batch_size=1', '--fine_tune_batch_norm with 1 image per clone: the pooled image is a single pixel'),
    ('--train_batch_size=2 --num_clones=2 --clone_on_cpu', '--fine_tune_batch_norm with 1 image per clone'),
    ('--label_weights=1,10', '--label_weights holds 2 numbers, data set shapes has 3 classes; give one for each class.'),
    ('--label_weights=0,0,0', '--label_weights are all 0'),
    # Data.
    ('--train_split=test', '--train_split=test has no labels to train on'),
    ('--train_split=train_fine', "No file matches {records}/train_fine-* (split 'train_fine'). The folder holds the splits:"),
    ('--dataset=foo', "--dataset=foo: the records in {records} belong to data set 'shapes'"),
    ('--dataset=foo --dataset_dir={empty}', '--dataset=foo: unknown data set; choose one of ade20k, cityscapes, pascal_voc_seg'),
    ('--dataset_dir={empty}', "No file matches {empty}/train-* (split 'train')."),
    ('--dataset_dir={nowhere}', '--dataset_dir={nowhere}: there is no such folder.'),
    ('--dataset_dir={records}/dataset.json', 'is a file; give the folder that holds it.'),
    ('--dataset_dir={zero}', "Split 'train' has 0 examples: all 4 files of {zero}/train-* are empty."),
    ('--dataset_dir={cut}', 'train-00000-of-00001.tfrecord is damaged after 3 whole records'),
    ('--dataset_dir={text}', 'train-00000-of-00001.tfrecord is no TFRecord file'),
    ('--dataset_dir={no_json}', 'dataset.json is not JSON'),
    ('--dataset_dir={no_classes}', "dataset.json: field 'num_classes' is missing."),
    ('--label_weights=auto --dataset_dir={wrong_label}', 'has label values 7 ('),
    # Checkpoints.
    ('--tf_initial_checkpoint=model.tar.gz', '--tf_initial_checkpoint=model.tar.gz is an archive: unpack it first'),
    ('--tf_initial_checkpoint={nowhere}/model.ckpt', 'there is no such checkpoint. The folder {nowhere} does not exist either.'),
    ('--tf_initial_checkpoint={empty}', '--tf_initial_checkpoint={empty} holds no checkpoint.'),
    ('--tf_initial_checkpoint={checkpoint}-9', 'there is no such checkpoint. Checkpoints in that folder: {checkpoint}.'),
    ('--tf_initial_checkpoint={cut_checkpoint}', 'data files are cut short'),
    ('--tf_initial_checkpoint={text}/train-00000-of-00001.tfrecord', 'is not a usable checkpoint'),
    ('--train_logdir={cut_folder}', '--train_logdir={cut_folder} holds no usable checkpoint'),
    ('--train_logdir={records}/dataset.json', 'dataset.json is a file; give a folder.'),
    ('--profile_logdir={records}/dataset.json', 'dataset.json is a file; give a folder.'),
]
_OTHERS = [
    (evaluation, '--eval_crop_size=large', '--eval_crop_size=large'),
    (evaluation, '--eval_scales=0', '--eval_scales=0.0: give scales above 0'),
    (evaluation, '--eval_split=test', '--eval_split=test has no labels'),
    (evaluation, '--checkpoint_dir={nowhere}', '--checkpoint_dir={nowhere}'),
    (evaluation, '--eval_bath_size=2', 'Unknown flag --eval_bath_size; did you mean --eval_batch_size?'),
    (vis, '--vis_split=train --vis_crop_size=large', '--vis_crop_size=large'),
    (vis, '--colormap_type=voc', 'flag --colormap_type=voc: value should be one of'),
    (vis, '--checkpoint_dir={empty}', '--checkpoint_dir={empty} holds no checkpoint.'),
    (export_model, '--crop_size=0', "'0' is not a list of whole numbers above 0"),
    (export_model, '--checkpoint_path={nowhere}', '--checkpoint_path={nowhere}'),
    (export_model, '--num_classes=7', 'was trained for 3 classes'),
]


def _copy_records(paths, name):
  return shutil.copytree(paths['records'], paths['records'].parent / name)


@pytest.fixture(scope='module')
def paths(tmp_path_factory):
  """Name -> path of what the command lines speak about."""
  root = tmp_path_factory.mktemp('bad')
  paths = {name: root / name for name in ('records', 'empty', 'nowhere', 'zero', 'checkpoints', 'cut_folder', 'out')}
  tiny_run.write_records(paths['records'])
  for name in ('empty', 'zero', 'checkpoints'):
    paths[name].mkdir()
  for index in range(4):
    (paths['zero'] / f'train-0000{index}-of-00004.tfrecord').write_bytes(b'')
  for name in ('cut', 'text', 'no_json', 'no_classes'):
    paths[name] = _copy_records(paths, name)
  record_file = paths['cut'] / 'train-00000-of-00001.tfrecord'
  record_file.write_bytes(record_file.read_bytes()[:-9])
  (paths['text'] / 'train-00000-of-00001.tfrecord').write_text('Not a record, however long this text may be.\n')
  (paths['no_json'] / 'dataset.json').write_text('{')
  (paths['no_classes'] / 'dataset.json').write_text(json.dumps({'name': 'shapes'}))
  paths['wrong_label'] = root / 'wrong_label'
  tiny_run.write_records(paths['wrong_label'], [(tiny_run.noise_image(np.random.RandomState(0)),
                                                 np.full(tiny_run.SIZE, 7, np.uint8))])
  paths['checkpoint'] = _save(paths['checkpoints'])
  shutil.copytree(paths['checkpoints'], paths['cut_folder'])
  data_file, = paths['cut_folder'].glob('*.data*')
  data_file.write_bytes(data_file.read_bytes()[:-9])
  paths['cut_checkpoint'] = paths['cut_folder'] / 'model.ckpt'
  return paths


def _save(folder):
  with tf.Graph().as_default(), tf.Session() as session:
    tf.get_variable('logits/semantic/biases', [3])
    session.run(tf.global_variables_initializer())
    return tf.train.Saver().save(session, str(folder / 'model.ckpt'))


def _refusal(program, paths, arguments):
  """The one error message of a command line."""
  code, log = tiny_run.run(program, *(argument.format(**paths) for argument in (*_REQUIRED[program], *arguments.split())))
  assert code == 1
  *before, error = log.split('ERROR ')
  assert len(before) == 1
  return error


@pytest.mark.parametrize('arguments, message', _TRAIN)
def test_train(paths, arguments, message):
  error = _refusal(train, paths, arguments)
  assert message.format(**paths) in error
  assert len(error.splitlines()) == 1 or 'problems' in error
  # Nothing was begun.
  assert not paths['out'].exists()


@pytest.mark.parametrize('program, arguments, message', _OTHERS)
def test_other_programs(paths, program, arguments, message):
  assert message.format(**paths) in _refusal(program, paths, arguments)
  shutil.rmtree(paths['out'], ignore_errors=True)


@pytest.mark.parametrize('program, names', [
    (train, '--train_logdir and --dataset_dir'), (evaluation, '--checkpoint_dir and --eval_logdir and --dataset_dir'),
    (vis, '--checkpoint_dir and --vis_logdir'), (export_model, '--checkpoint_path')])
def test_required_flags(program, names):
  code, log = tiny_run.run(program)
  assert code == 1
  assert log == f'ERROR {names} must be given. --help lists the flags.'


def test_enough_cases():
  assert len(_TRAIN) + len(_OTHERS) >= 60


def test_in_a_process(paths):
  process = tiny_run.start_process(f'--dataset_dir={paths["empty"]}', f'--train_logdir={paths["out"]}', '--train_split=val')
  output, _ = process.communicate()
  assert process.returncode == 1
  assert f"] No file matches {paths['empty']}/val-* (split 'val'). The folder is empty." in output
  assert 'Traceback' not in output
