"""Tests for datasets/annotations/readers.py and what build_own_data says to an export that none of the tools wrote."""

import annotated
import pytest

from deeplab.core.base.errors import InputError


@pytest.mark.parametrize('name, content, message', [
    ('nowhere', None, 'nowhere: there is no such file or folder'),
    ('export.zip', b'PK', 'is an archive; unpack it'),
    ('export.xml', b'<a/>', r'is no export that is known. These are:\n  labelme2voc: a folder with class_names.txt'),
    ('export.json', b'{"images": [', r'export.json is not JSON \(.*line 1'),
    ('export.json', b'\xff\xfe', 'export.json is no text in UTF-8'),
    ('export.json', b'[' * 100000, 'export.json is not JSON'),
    ('folder/readme.txt', b'', 'folder is no export that is known(.|\n)*docs/own_data.md'),
])
def test_unknown_exports_are_told_and_nothing_is_written(tmp_path, name, content, message):
  path = tmp_path / name
  if content is not None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
  with pytest.raises(InputError, match=message):
    annotated.convert(tmp_path / name.split('/')[0], tmp_path / 'out')
  assert annotated.wrote_nothing(tmp_path / 'out')


@pytest.mark.parametrize('flag', ['--label_folder=x', '--list_folder=x'])
def test_flags_that_annotations_replaces_are_refused(tmp_path, flag):
  with pytest.raises(InputError, match=f'{flag}: --annotations=.* says this itself'):
    annotated.convert(tmp_path, tmp_path / 'out', flag)
