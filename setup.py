"""Installs the packages and the commands.

In a checkout, `python train.py` and `python eval.py` are `towers-train` and `towers-eval`.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent

setup(
    name="towers",
    version=re.search(
        r'^__version__ = "(.+)"$', (HERE / "towers/version.py").read_text(), re.M
    ).group(1),
    description="Data-parallel training of Keras models: the same bits on any number of devices",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    keywords="tensorflow keras cifar10 multi-gpu data-parallel towers tutorial",
    classifiers=[
        "Intended Audience :: Education",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    packages=find_packages(include=["towers", "towers.*", "towers_cli", "input_pipeline"]),
    entry_points={
        "console_scripts": [
            "towers-train = towers_cli.train:command",
            "towers-eval = towers_cli.evaluate:command",
            "towers-predict = towers_cli.predict:main",
            "towers-compare = towers_cli.compare:main",
            "towers-launch = towers_cli.launch:main",
            "towers-check-pictures = towers_cli.check_pictures:main",
        ]
    },
    python_requires=">=3.11",
    install_requires=[
        "absl-py>=2.1",
        "array_record>=0.6",
        "h5py",  # Keras writes weights with it; a run that begins with some reads them by layer
        "importlib_resources",  # TFDS 4.9.10 needs it to prepare a data set, undeclared
        "keras>=3.15,<4",
        "numpy>=2",
        "pillow>=10.1",
        "psutil",
        "tensorboard>=2.21",  # TensorFlow 2.21 writes summaries with it and does not require it
        "tensorflow>=2.21,<3",
        "tensorflow-datasets>=4.9.10",
        "tqdm>=4.66",
    ],
    extras_require={
        "benchmark": ["matplotlib>=3.9"],
        "docs": [
            "jupytext>=1.19",
            "myst-nb>=1.4",
            "sphinx>=9",
            "sphinx-book-theme>=1.4",
            "sphinx-copybutton>=0.5",
        ],
        "gpu": ["tensorflow[and-cuda]>=2.21,<3"],
        "profile": ["xprof>=2.21"],
        "ray": ["ray[train]>=2.60"],
        "test": [
            "hypothesis>=6",
            "import-linter>=2.16",
            "kubeflow-trainer-api>=2.3",
            "kubeflow-training>=1.9",
            "pytest>=8",
            "pytest-xdist>=3.7",
            "pyyaml>=6",
            "ruff>=0.15",
        ],
    },
)
