#!/usr/bin/env bash
# Writes the lock files from pyproject.toml. Pins that still fit stay; --upgrade moves all of them.
#
#   requirements.lock     every extra, every platform: what versions live together
#   locks/bootstrap.txt   uv and the build backend, which install the rest
#   locks/release.txt     what `make release` describes a host with
#   locks/compiler.txt    a C compiler, for hosts without one
#   locks/demo.txt        what `make demo` installs, in the versions of requirements.lock
#   locks/test.txt        what `make test`, `make lint` and `make bench` install, likewise
#   locks/docs.txt        what `make docs` installs, likewise
#   locks/jobs.txt, materializer.txt, predict.txt, serving.txt, training.txt   what the images of
#                         docker/ install, likewise
#
# The files name no registry, so that each machine installs from the one it is set up for.
set -euo pipefail
cd "$(dirname "$0")/.."

compile() {
    .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-header --no-annotate "$@"
}

compile "$@" --all-extras pyproject.toml -o requirements.lock
compile "$@" -c requirements.lock locks/bootstrap.in -o locks/bootstrap.txt
compile "$@" -c requirements.lock locks/release.in -o locks/release.txt
compile "$@" -c requirements.lock locks/compiler.in -o locks/compiler.txt
compile --upgrade --extra demo -c requirements.lock pyproject.toml -o locks/demo.txt
compile --upgrade --extra dev -c requirements.lock pyproject.toml -o locks/test.txt
compile --upgrade --extra docs -c requirements.lock pyproject.toml -o locks/docs.txt
for image in jobs:flink materializer:lake,serve serving:serve,oidc predict:predict,oidc training:torch; do
    IFS=, read -ra extras <<<"${image#*:}"
    compile --upgrade "${extras[@]/#/--extra=}" -c requirements.lock pyproject.toml \
        -o "locks/${image%:*}.txt"
done
