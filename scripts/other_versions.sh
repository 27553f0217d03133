#!/usr/bin/env bash
# Runs a small job with other versions of the dependencies than the tests have, in an environment of its own that is kept between runs.
# "newest" takes what the package index offers today; with its CUDA build of torch that is about 6 GB. "lowest" takes the lowest version that
# pyproject.toml states for each dependency of the package, and the newest of everything that these need.
# Usage: scripts/other_versions.sh newest|lowest [python3]
set -euo pipefail
cd "$(dirname "$0")/.."
kind="$1" python="${2:-python3}" venv=".venv-$1"

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
if [ "$kind" = lowest ]; then
  "$venv/bin/python" - > "$venv/versions.txt" <<'LOWEST'
import tomllib
with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
extras = project["optional-dependencies"]
every = [*project["dependencies"], *extras["torch"], *extras["parquet"], *extras["studies"]]
print("\n".join(each for each in every if not each.startswith("equipoise[")).replace(">=", "=="))
LOWEST
  "$venv/bin/pip" install --quiet --requirement "$venv/versions.txt" --editable '.[studies]'
else
  "$venv/bin/pip" install --quiet --upgrade --upgrade-strategy eager --editable '.[studies]'
fi
"$venv/bin/python" scripts/small_job.py
