# Equipoise with its demo: docker build --tag equipoise . && docker run --rm --volume "$PWD/demo-output:/work/demo-output" equipoise
# A command of your own: docker run --rm --volume "$PWD:/work" equipoise audit scores.csv --label y --score p --group sex
# PyTorch of the usual package index comes with CUDA, for several gigabytes; for a small image that computes on the CPU, name PyTorch's own
# index of CPU builds: docker build --build-arg PIP_EXTRA_INDEX_URL=... --tag equipoise .
FROM python:3.12-slim
ARG PIP_EXTRA_INDEX_URL
ENV OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1
COPY pyproject.toml README.md LICENSE constraints.txt /source/
COPY src /source/src
RUN pip install --no-cache-dir --constraint /source/constraints.txt "/source[studies,onnx,dicom]" && rm -rf /source
RUN useradd --create-home equipoise && mkdir /work && chown equipoise /work
USER equipoise
WORKDIR /work
ENTRYPOINT ["equipoise"]
CMD ["demo", "--out", "demo-output", "--overwrite"]
