"""Installs DeepLab: the repository root is the package `deeplab`, `core` and `datasets` are packages inside it."""

import pathlib
import re

import setuptools

_TENSORFLOW_RANGE = '>=2.16,<2.22'
# Compressed run lengths of COCO annotations.
_COCO = ['pycocotools>=2.0.7']
_VERSION = re.search(r"VERSION = '(.+)'", pathlib.Path(__file__).with_name('core').joinpath('base', 'version.py').read_text(
    encoding='utf-8'))[1]
# onnx 1.19.0 asks for types that the ml_dtypes of TensorFlow 2.16 and 2.17 lack, without saying so in its requirements.
_ONNX = ['tf2onnx>=1.16.1', 'onnx!=1.19.0']
_PACKAGES = ['deeplab', *(f'deeplab.{name}' for name in setuptools.find_packages(include=['core*', 'datasets*']))]

setuptools.setup(
    name='deeplab-slim',
    version=_VERSION,
    description='DeepLabv3+ training, evaluation and export in TF1 style on current TensorFlow',
    long_description=pathlib.Path(__file__).with_name('README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    python_requires='>=3.10,<3.14',
    packages=_PACKAGES,
    package_dir={'deeplab': '.', **{name: name.removeprefix('deeplab.').replace('.', '/') for name in _PACKAGES[1:]}},
    package_data={'deeplab.core': ['*.json']},
    install_requires=[
        f'tensorflow{_TENSORFLOW_RANGE}',
        f'tf-keras{_TENSORFLOW_RANGE}',
        'tf-slim==1.1.0',
        'numpy',
        'absl-py',
        'pillow>=10.1',
    ],
    extras_require={
        'coco': _COCO,
        'onnx': _ONNX,
        'test': ['pytest', 'pytest-xdist', 'hypothesis', 'onnxruntime', *_COCO, *_ONNX],
        'lint': ['mypy', 'ruff'],
        'benchmark': ['torch', 'onnxruntime', *_ONNX],
    },
    entry_points={
        'console_scripts': [
            'deeplab-train = deeplab.train:run',
            'deeplab-eval = deeplab.eval:run',
            'deeplab-vis = deeplab.vis:run',
            'deeplab-export = deeplab.export_model:run',
        ]
    },
)
