#!/usr/bin/env bash
# Makes .venv-bench, where the libraries that we compare with live: AIF360 0.6.1 with pandas < 2.3 and a NumPy and scikit-learn to go with it,
# Fairlearn and OxonFair, so that they hold nothing back in .venv.
# Usage: experiments/peers/environment.sh [python3]
set -euo pipefail
cd "$(dirname "$0")/../.."
python="${1:-python3}"
venv=.venv-bench

"$python" -m venv "$venv"
"$venv/bin/pip" install --quiet --upgrade pip
# The exact torch pin of constraints.txt takes the CPU build; an unpinned torch brings gigabytes of CUDA.
"$venv/bin/pip" install --quiet --constraint constraints.txt torch torchvision \
  'pandas>=2.2.2,<2.3' 'numpy>=2.0,<2.3' 'scipy>=1.13' 'scikit-learn>=1.5,<1.8' 'fairlearn>=0.15' 'aif360==0.6.1' \
  'pyarrow>=16' 'pydantic>=2.7' 'typer>=0.16' 'rich>=13.7' 'jinja2>=3.1.6' 'safetensors>=0.4.3'
# Without their dependencies: OxonFair asks for a downloader of data sets, and the plotting libraries are not needed here.
"$venv/bin/pip" install --quiet --no-deps 'oxonfair==0.3'
"$venv/bin/pip" install --quiet --no-deps --editable .
touch "$venv/.installed"
