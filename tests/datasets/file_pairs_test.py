"""datasets/file_pairs.py: which label belongs to which image, and that no file is lost in silence."""

import pathlib

import numpy as np
import pytest
from PIL import Image

from deeplab.core.base.errors import InputError
from deeplab.datasets import build_cityscapes_data, build_data, build_own_data, dataset_info, file_pairs


def _touch(root, *paths):
  for path in paths:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(b'')


def _write(root, *paths):
  """Images of noise and, where the path ends in .png, labels of two classes."""
  for path in paths:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(0).integers(0, 2, [12, 16], np.uint8)
    Image.fromarray(values if path.endswith('.png') else values[..., np.newaxis].repeat(3, axis=2) * 255).save(root / path)


def _of_folders(root, image_format=None):
  return file_pairs.pairs_of_folders(str(root / 'images'), str(root / 'labels'), image_format)


def _problems(pairs, root):
  return sorted(pair.problem.replace(f'{root}/', '') for pair in pairs if pair.problem)


def _files(pairs, root):
  """{name: (image, label)} of the pairs without problem, below `root`."""
  return {pair.name: tuple(str(pathlib.Path(path).relative_to(root)) for path in (pair.image, pair.label))
          for pair in pairs if not pair.problem}


def test_images_of_all_formats_are_converted(tmp_path):
  extensions = ['jpg', 'tif', 'webp', 'bmp']
  for extension in extensions:
    _write(tmp_path, f'images/{extension}.{extension}', f'labels/{extension}.png')
  descriptor = build_data.build({'train': _of_folders(tmp_path)}, dataset_info.describe('x', 2), str(tmp_path / 'out'), 1)
  assert descriptor.splits_to_sizes == {'train': 4}


def test_every_file_without_partner_is_named(tmp_path):
  _touch(tmp_path, 'images/a.jpg', 'labels/a.png', 'images/b.tif', 'labels/c.png', 'images/d.HEIC', 'labels/d.png',
         'images/e.jpg', 'labels/e.bmp', 'images/readme.txt', 'images/.hidden.jpg', 'images/more/f.jpg', 'images/more/g.png')
  pairs = _of_folders(tmp_path)
  # The file of the phone is a pair; that it cannot be read is told when it is.
  assert _files(pairs, tmp_path) == {'a': ('images/a.jpg', 'labels/a.png'), 'd': ('images/d.HEIC', 'labels/d.png')}
  assert _problems(pairs, tmp_path) == [
      'images/b.tif has no label: labels holds no b.png.', 'images/e.jpg has no label: labels holds no e.png.',
      'images/more holds 2 pictures; folders in a folder are not looked into. Move them up, or name them as more/<name> in lists '
      '(--list_folder).',
      'labels/c.png has no image: images holds no picture of that name.',
      'labels/e.bmp is neither taken as an image nor as a label, which must be PNG; convert it or move it away.']


def test_losses_stop_the_conversion_unless_they_are_skipped(tmp_path):
  _write(tmp_path, 'images/a.jpg', 'labels/a.png', 'labels/b.png')
  arguments = dataset_info.describe('x', 2), str(tmp_path / 'out'), 1
  with pytest.raises(InputError, match=r'1 problems.*\n.*labels/b.png has no image'):
    build_data.build({'train': _of_folders(tmp_path)}, *arguments)
  assert not list((tmp_path / 'out').iterdir())
  assert build_data.build({'train': _of_folders(tmp_path)}, *arguments, skip_broken=True).splits_to_sizes == {'train': 1}


def test_a_readable_file_is_taken_before_the_original_of_a_phone(tmp_path):
  _touch(tmp_path, 'images/a.jpg', 'images/a.heic', 'labels/a.png')
  pairs = _of_folders(tmp_path)
  assert _files(pairs, tmp_path) == {'a': ('images/a.jpg', 'labels/a.png')}
  problem, = _problems(pairs, tmp_path)
  assert problem.startswith('images/a.heic is neither taken as an image nor as a label')
  assert _problems(_of_folders(tmp_path, 'jpg'), tmp_path) == []


def test_several_files_of_a_name_need_a_choice(tmp_path):
  _touch(tmp_path, 'images/a.jpg', 'images/a.tif', 'labels/a.png')
  assert _problems(_of_folders(tmp_path), tmp_path) == [
      'a stands for several files: images/a.jpg, images/a.tif; remove all but one, or choose by --image_format.']
  assert _files(_of_folders(tmp_path, 'tif'), tmp_path) == {'a': ('images/a.tif', 'labels/a.png')}


def test_images_and_labels_in_one_folder(tmp_path):
  _touch(tmp_path, 'all/a.jpg', 'all/a.png', 'all/b.png', 'all/c.jpg')
  pairs = file_pairs.pairs_of_folders(str(tmp_path / 'all'), str(tmp_path / 'all'))
  assert _files(pairs, tmp_path) == {'a': ('all/a.jpg', 'all/a.png')}
  assert _problems(pairs, tmp_path) == ['all/b.png has no image: all holds no picture of that name.',
                                        'all/c.jpg has no label: all holds no c.png.']


def test_labels_in_a_folder_of_the_images(tmp_path):
  _touch(tmp_path, 'images/a.jpg', 'images/labels/a.png', 'images/.trash/b.jpg')
  pairs = file_pairs.pairs_of_folders(str(tmp_path / 'images'), str(tmp_path / 'images/labels'))
  assert _files(pairs, tmp_path) == {'a': ('images/a.jpg', 'images/labels/a.png')} and not _problems(pairs, tmp_path)


def test_broken_pairs_are_no_part_of_the_draw():
  pairs = [build_data.Pair(str(index), 'image', 'label', 'broken' if index < 8 else None) for index in range(10)]
  splits = build_own_data.split_pairs(pairs, 0.1)
  assert [pair.problem for pair in splits['val']] == [None] and len(splits['train']) == 9


def test_label_of_cityscapes_without_image_is_named(tmp_path):
  _touch(tmp_path, 'leftImg8bit/train/ulm/ulm_1_leftImg8bit.png', 'gtFine/train/ulm/ulm_1_gtFine_labelTrainIds.png',
         'gtFine/train/ulm/ulm_2_gtFine_labelTrainIds.png', 'gtFine/train/ulm/ulm_2_gtFine_color.png')
  pairs = build_cityscapes_data.pairs_of_root(str(tmp_path))['train_fine']
  assert _problems(pairs, tmp_path) == ['gtFine/train/ulm/ulm_2_gtFine_labelTrainIds.png has no image in leftImg8bit/train.']


def _of_lists(root, **lists):
  _touch(root / 'JPEGImages', 'a.jpg', 'b c.jpeg', 'day1/d.png', 'day2/d.png')
  _touch(root / 'SegmentationClass', 'a.png', 'a_mask.png', 'b c.png', 'day1/d.png', 'day2/d.png')
  (root / 'lists').mkdir(exist_ok=True)
  for split, lines in lists.items():
    (root / f'lists/{split}.txt').write_text('\n'.join(lines) + '\n')
  return file_pairs.pairs_of_lists(*(str(root / name) for name in ('lists', 'JPEGImages', 'SegmentationClass')))


_A = {'a': ('JPEGImages/a.jpg', 'SegmentationClass/a.png')}
_B = {'b c': ('JPEGImages/b c.jpeg', 'SegmentationClass/b c.png')}
_D = {'day1_d': ('JPEGImages/day1/d.png', 'SegmentationClass/day1/d.png')}


@pytest.mark.parametrize('line, expected', [
    ('a', _A), ('a.jpg', _A), ('a.png', _A), ('./a.jpg', _A), ('JPEGImages/a.jpg', _A), ('/home/me/voc/JPEGImages/a.jpg', _A),
    (r'C:\voc\JPEGImages\a.jpg', _A), ('JPEGImages/a.jpg SegmentationClass/a.png', _A),
    ('/JPEGImages/a.jpg /SegmentationClass/a.png', _A), ('a.jpg\ta.png', _A), ('a.jpg, a.png', _A), ('a a', _A),
    ('b c', _B), ('b c.jpeg', _B), ('JPEGImages/b c.jpeg SegmentationClass/b c.png', _B), ('b c b c', _B),
    ('day1/d', _D), ('JPEGImages/day1/d.png', _D), ('day1/d.png day1/d.png', _D),
    ('JPEGImages/a.jpg SegmentationClass/a_mask.png', {'a': ('JPEGImages/a.jpg', 'SegmentationClass/a_mask.png')}),
])
def test_line_of_a_list(tmp_path, line, expected):
  pairs = _of_lists(tmp_path, train=[line])['train']
  assert not _problems(pairs, tmp_path) and _files(pairs, tmp_path) == expected


@pytest.mark.parametrize('line, problem', [
    ('lost.jpg', "lists/train.txt names 'lost.jpg', but JPEGImages holds no such image."),
    ('../a', "lists/train.txt names '../b', but JPEGImages holds no such image."),
    ('a.jpg lost.png', 'JPEGImages/a.jpg has no label: SegmentationClass holds no lost.png.')])
def test_line_that_finds_nothing(tmp_path, line, problem):
  line = line.replace('../a', '../b')
  assert _problems(_of_lists(tmp_path, train=[line])['train'], tmp_path) == [problem]


def test_image_named_twice_in_two_ways_is_refused(tmp_path):
  with pytest.raises(InputError, match='train.txt names .*a.jpg.* more than once'):
    _of_lists(tmp_path, train=['a', 'JPEGImages/a.jpg'])


def test_files_that_no_list_names_are_counted(tmp_path, absl_log):
  absl_log.set_level('INFO', 'absl')
  splits = _of_lists(tmp_path, train=['a'], test=['b c'])
  assert _files(splits['test'], tmp_path) == _B
  assert 'neither 0 of the images' in absl_log.text and 'nor 1 of the labels' in absl_log.text
