"""Flags: those of the earlier programs are there, each has a reader, lists and switches take all their forms."""

import ast
import pathlib
import subprocess
import sys

import pytest
import tiny_run
from absl import flags

from deeplab import common, export_model, train, train_flags, vis
from deeplab import eval as evaluation

FLAGS = flags.FLAGS
_ROOT = pathlib.Path(__file__).parents[2]
_SHARED = '''min_resize_value max_resize_value resize_factor keep_aspect_ratio logits_kernel_size model_variant image_pyramid
    add_image_level_feature image_pooling_crop_size image_pooling_stride aspp_with_batch_norm aspp_with_separable_conv multi_grid
    depth_multiplier divisible_by decoder_output_stride decoder_use_separable_conv merge_method prediction_with_upsampled_logits
    dense_prediction_cell_json nas_stem_output_num_conv_filters nas_use_classification_head nas_remove_os32_stride
    use_bounded_activation aspp_with_concat_projection aspp_with_squeeze_and_excitation aspp_convs_filters decoder_use_sum_merge
    decoder_filters decoder_output_is_logits image_se_uses_qsigmoid label_weights batch_norm_decay atrous_rates output_stride
    quantize_delay_step'''
# What the programs of 2019 and 2021 took.
_EARLIER = {
    'train_flags.py': '''num_clones clone_on_cpu num_replicas startup_delay_steps num_ps_tasks master task train_logdir log_steps
        save_interval_secs save_summaries_secs save_summaries_images profile_logdir optimizer learning_policy base_learning_rate
        decay_steps end_learning_rate learning_rate_decay_factor learning_rate_decay_step learning_power
        training_number_of_steps momentum adam_learning_rate adam_epsilon train_batch_size weight_decay train_crop_size
        last_layer_gradient_multiplier upsample_logits drop_path_keep_prob tf_initial_checkpoint initialize_last_layer
        last_layers_contain_logits_only slow_start_step slow_start_learning_rate fine_tune_batch_norm min_scale_factor
        max_scale_factor scale_factor_step_size hard_example_mining_step top_k_percent_pixels dataset train_split dataset_dir''',
    'eval.py': '''master eval_logdir checkpoint_dir eval_batch_size eval_crop_size eval_interval_secs eval_scales
        add_flipped_images dataset eval_split dataset_dir max_number_of_evaluations''',
    'vis.py': '''master vis_logdir checkpoint_dir vis_batch_size vis_crop_size eval_interval_secs eval_scales add_flipped_images
        dataset vis_split dataset_dir max_number_of_iterations colormap_type also_save_raw_predictions''',
    'export_model.py': '''checkpoint_path export_path num_classes crop_size inference_scales add_flipped_images
        save_inference_graph''',
}


def _strings(path):
  """(texts that define a flag, all other texts and FLAGS.name attributes) in a file."""
  defined, read = [], set()
  tree = ast.parse(path.read_text(encoding='utf-8'))
  definitions = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args
                 and getattr(node.func, 'attr', getattr(node.func, 'id', '')).lower().startswith('define_')
                 and isinstance(node.args[0], ast.Constant)]
  names = {id(node.args[0]) for node in definitions}
  for node in ast.walk(tree):
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
      if id(node) in names:
        defined.append(node.value)
      else:
        read.add(node.value)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == 'FLAGS':
      read.add(node.attr)
  return defined, read


def _sources():
  return [path for pattern in ('*.py', 'core/**/*.py', 'datasets/**/*.py') for path in _ROOT.glob(pattern)]


@pytest.mark.parametrize('source', _EARLIER)
def test_flags_of_the_earlier_programs(source):
  defined = {name for path in ('common.py', source) for name in _strings(_ROOT / path)[0]}
  assert set((_SHARED + ' ' + _EARLIER[source]).split()) <= defined


def test_each_flag_has_a_reader():
  defined, read = [], set()
  for path in _sources():
    names, texts = _strings(path)
    defined += names
    read |= texts
  assert len(defined) > 130
  # Labels have one format; the flag is there for the commands of before.
  assert set(defined) - read == {'label_format'}


def test_no_flag_begins_like_the_negation_of_a_switch():
  # training_folder tells flags by their names without this prefix.
  assert not [name for path in _sources() for name in _strings(path)[0] if name.startswith('no')]


def test_programs_know_the_flags_of_each_other():
  programs = [common, train_flags, train, evaluation, vis, export_model]
  ours = {flag.name for program in programs for flag in FLAGS.get_flags_for_module(program.__name__)}
  assert common._flags_of_all_programs() == ours
  assert {'train_batch_size', 'eval_crop_size', 'vis_split', 'export_path', 'atrous_rates', 'checkpoint_dir'} <= ours


class _Parser:
  """A program that looks at its flags and ends."""
  __name__ = 'parser'

  def __init__(self, look):
    self.run = lambda: common.run_program(lambda argv: look())


def _parse(name, *arguments):
  values = []
  code, log = tiny_run.run(_Parser(lambda: values.append(FLAGS[name].value)), *arguments)
  assert not code, log
  return values[0]


@pytest.mark.parametrize('arguments, value', [
    ([], None), (['--atrous_rates=6,12,18'], [6, 12, 18]), (['--atrous_rates', '6, 12'], [6, 12]),
    (['--atrous_rates=6', '--atrous_rates=12'], [6, 12]), (['--atrous_rates=6,12', '--atrous_rates=18'], [6, 12, 18]),
    (['--atrous_rates=6', '--atrous_rates=12,18'], [12, 18]),
    (["--atrous_rates="], [])])
def test_list(arguments, value):
  assert _parse('atrous_rates', *arguments) == value


@pytest.mark.parametrize('arguments, value', [
    ([], [513, 513]), (['--train_crop_size=65,33'], [65, 33]), (['--train_crop_size=65', '--train_crop_size=33'], [65, 33])])
def test_list_with_a_default(arguments, value):
  assert _parse('train_crop_size', *arguments) == value


def _list_flags():
  """Names of all list flags -> two values of each, as texts without a comma."""
  names = [name for name in FLAGS if isinstance(FLAGS[name], common._ListFlag)]
  texts = {'ps_hosts': ['a:1', 'b:2'], 'worker_hosts': ['a:1', 'b:2'], 'frozen_scopes': ['a', 'b']}
  return {name: texts.get(name, ['64', '32']) for name in names}


@pytest.mark.parametrize('name', sorted(_list_flags()))
def test_list_given_in_two_places(name, tmp_path):
  """The command line replaces what a flags file says; in one place single values append, and one with a comma replaces."""
  one, two = _list_flags()[name]
  parsed = FLAGS[name].parser.parse
  (tmp_path / 'old.txt').write_text(f'# of a run\n--{name}={one}\n--{name}={one}\n')
  (tmp_path / 'nested.txt').write_text(f'--flagfile={tmp_path}/old.txt\n--{name}={two}\n')
  old = f'--flagfile={tmp_path}/old.txt'
  for arguments, value in (
      ([old], f'{one},{one}'), ([old, f'--{name}={two}'], two), ([old, f'--{name}={two},{one}'], f'{two},{one}'),
      ([old, f'--{name}', two, f'-{name}={one}'], f'{two},{one}'), ([f'--{name}={two}', old], f'{one},{one}'),
      ([f'--{name}={one}', f'--{name}={two}'], f'{one},{two}'), ([f'--{name}={one}', f'--{name}={two},{two}'], f'{two},{two}'),
      (['--flagfile', f'{tmp_path}/nested.txt'], two)):
    assert _parse(name, *arguments) == parsed(value), arguments


def test_rates_of_a_repeated_run(tmp_path):
  (tmp_path / 'flags.txt').write_text('--atrous_rates=6\n--atrous_rates=12\n')
  assert _parse('atrous_rates', f'--flagfile={tmp_path}/flags.txt', '--atrous_rates=3,6,9') == [3, 6, 9]


@pytest.mark.parametrize('content, message', [
    (None, 'is no text file that can be read'), ('--flagfile={path}', 'stands in that file itself')])
def test_flags_file_that_cannot_be_read(tmp_path, content, message):
  path = tmp_path / 'flags.txt'
  if content:
    path.write_text(content.format(path=path))
  code, log = tiny_run.run(_Parser(lambda: None), f'--flagfile={path}')
  assert code == 1 and f'ERROR --flagfile={path} {message}' in log


def test_list_without_a_value():
  code, log = tiny_run.run(_Parser(lambda: None), '--atrous_rates')
  assert code == 1 and 'Missing value for flag --atrous_rates' in log


def test_flags_of_a_run_do_not_name_its_folder(tmp_path):
  """A run that is repeated by its flags.txt needs a folder of its own; a file that somebody wrote may name one."""
  flags_file = tmp_path / 'flags.txt'
  flags_file.write_text('--train_logdir=old\n--dataset_dir=records\n')
  looked = []
  parser = _Parser(None)
  parser.run = lambda: common.run_program(lambda argv: looked.append(FLAGS.train_logdir), ['train_logdir'], ['train_logdir'])
  assert not tiny_run.run(parser, f'--flagfile={flags_file}')[0]
  (tmp_path / 'model_options.json').write_text('{}')
  code, log = tiny_run.run(parser, f'--flagfile={flags_file}')
  assert code == 1 and f'ERROR --train_logdir must be given: the one in --flagfile={flags_file} is that of the run' in log
  assert not tiny_run.run(parser, '--train_logdir=new', f'--flagfile={flags_file}')[0]
  assert looked == ['old', 'new']


def test_list_of_fractions_and_of_texts():
  assert _parse('image_pyramid', '--image_pyramid=0.5,1') == [0.5, 1.0]
  assert _parse('label_weights', '--label_weights=1', '--label_weights=10') == [1.0, 10.0]
  assert _parse('label_weights', '--label_weights=auto') == ['auto']
  assert _parse('frozen_scopes', '--frozen_scopes=a/b,c', '--frozen_scopes=d') == ['a/b', 'c', 'd']


@pytest.mark.parametrize('argument, value', [
    ('--initialize_last_layer', True), ('--noinitialize_last_layer', False), ('--initialize_last_layer=true', True),
    ('--initialize_last_layer=False', False), ('--initialize_last_layer=0', False), ('--initialize_last_layer=auto', 'auto')])
def test_switch(argument, value):
  assert _parse('initialize_last_layer', argument) is value or value == 'auto'


def test_gpu_memory():
  settings = []
  for arguments in ([], ['--gpu_memory_growth']):
    tiny_run.run(_Parser(lambda: settings.append(common.session_config())), *arguments)
  assert [setting.gpu_options.allow_growth for setting in settings] == [False, True]
  assert settings[0].allow_soft_placement


def test_flags_in_force_are_a_flagfile(tmp_path):
  given = ['--atrous_rates=6,12', '--initialize_last_layer=auto', '--noupsample_logits', '--train_crop_size=65,33',
           '--base_learning_rate=0.007', '--tf_initial_checkpoint=a b', '--frozen_scopes=x/y']
  lines = []
  look = _Parser(lambda: lines.append(common.flags_in_force()))
  tiny_run.run(look, *given)
  (tmp_path / 'flags.txt').write_text('\n'.join(lines[0]) + '\n')
  tiny_run.run(look, f'--flagfile={tmp_path}/flags.txt')
  assert lines[0] == lines[1]
  assert {'--atrous_rates=12', '--initialize_last_layer=auto', '--noupsample_logits', '--train_batch_size=8'} <= set(lines[0])
  assert not [line for line in lines[0] if 'verbosity' in line or line.startswith('--flagfile')]


@pytest.mark.parametrize('arguments, warning', [
    (['--train_batch_size=7', '--training_number_of_steps=40000'], '--fine_tune_batch_norm with 7 images per clone'),
    (['--train_batch_size=16', '--num_clones=4', '--clone_on_cpu'], '--fine_tune_batch_norm with 4 images per clone'),
    (['--training_number_of_steps=1000'], 'hardly move in 1000 steps: training may look good and evaluation bad. For so few '
     'steps give --batch_norm_decay=0.99,'),
    (['--learning_power=1', '--learning_policy=step'], '--learning_power=1.0 has no effect: --learning_policy is not poly.'),
    (['--learning_rate_decay_step=9'], '--learning_rate_decay_step=9 has no effect: --learning_policy is not step.'),
    (['--slow_start_burnin_type=linear'], '--slow_start_burnin_type=linear has no effect: --slow_start_step is 0.'),
    (['--hard_example_mining_step=9'], '--hard_example_mining_step=9 has no effect: --top_k_percent_pixels is 1.'),
    (['--noinitialize_last_layer'], '--initialize_last_layer=false has no effect: there is no --tf_initial_checkpoint.'),
    (['--resize_factor=16'], '--resize_factor=16 has no effect: there is no --min_resize_value.'),
    (['--nokeep_aspect_ratio'], '--nokeep_aspect_ratio has no effect: there is no --min_resize_value.'),
    (['--batch_norm_decay=0.9', '--nofine_tune_batch_norm'], '--batch_norm_decay=0.9 has no effect'),
    (['--drop_path_keep_prob=0.5'], '--drop_path_keep_prob=0.5 has no effect: --model_variant is no NAS network.'),
    (['--startup_delay_steps=0'], '--startup_delay_steps=0 has no effect: there is one worker.'),
    (['--optimizer=adam', '--momentum=0.5'], '--momentum=0.5 has no effect: --optimizer is adam.'),
])
def test_warning(arguments, warning):
  code, log = tiny_run.run(_Parser(train_flags.check), *arguments)
  assert not code, log
  assert len([line for line in log.splitlines() if line.startswith('WARNING') and warning in line]) == 1


@pytest.mark.parametrize('arguments', [
    ['--train_batch_size=8', '--training_number_of_steps=30000'],
    # Values that are the defaults are no contradiction: a file of flags may hold them.
    ['--optimizer=adam', '--base_learning_rate=0.0001', '--learning_policy=poly', '--training_number_of_steps=30000'],
    ['--train_batch_size=1', '--nofine_tune_batch_norm'],
    ['--train_batch_size=1', '--noadd_image_level_feature', '--batch_norm_decay=0.9', '--train_crop_size=65'],
])
def test_no_warning(arguments):
  code, log = tiny_run.run(_Parser(train_flags.check), *arguments)
  assert not code, log
  assert 'has no effect' not in log and 'hardly move' not in log


def test_flags_of_other_programs_in_a_process(tmp_path):
  (tmp_path / 'flags.txt').write_text('--vis_split=val\n--nosave_inference_graph\n')
  command = ['--vis_crop_size', '65,65', f'--flagfile={tmp_path}/flags.txt', '--dataset_dir=x']
  process = subprocess.run([sys.executable, str(_ROOT / 'train.py'), *command], capture_output=True, text=True, check=False)
  # TensorFlow may write lines of its own.
  warning, error = [line for line in process.stderr.splitlines() if '] --' in line]
  assert warning.endswith('] --vis_crop_size, --vis_split, --nosave_inference_graph: of another program, no effect here.')
  assert error.endswith('] --train_logdir must be given. --help lists the flags.')
  assert process.returncode == 1


def test_help_lists_the_flags():
  process = subprocess.run([sys.executable, str(_ROOT / 'train.py'), '--help'], capture_output=True, text=True, check=False)
  for name in ('train_batch_size', 'atrous_rates', 'model_variant', 'dataset_dir', '[no]initialize_last_layer'):
    assert f'--{name}:' in process.stdout, process.stdout
