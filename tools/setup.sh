#!/usr/bin/env bash
# Makes .venv ready for a profile (demo, docs or test) from nothing but Python 3.11 or 3.12 (docs
# and test also from 3.13, for which Flink's Python has no release):
# uv and the hashed lock of the profile into .venv, the Flink jars and an archive of their classes
# into the user's cache.
# A second run finds everything and takes a fraction of a second.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=${1:?usage: tools/setup.sh demo|docs|test}
lock=locks/$profile.txt
stamp=.venv/.ready-$profile

say() { echo "set-up: $*" >&2; }

case $profile in
demo | docs | test) ;;
*)
    say "unknown profile '$profile'; available: demo, docs, test"
    exit 2
    ;;
esac

# the first Python that is too new: the demo runs Flink, the tests read the lake
case $profile in
demo) before=13 supported="3.11 or 3.12" ;;
*) before=14 supported="3.11, 3.12 or 3.13" ;;
esac

fits() {
    "$1" -c "import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, $before))" \
        >/dev/null 2>&1
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        fits "$PYTHON" || { say "PYTHON=$PYTHON is not Python $supported"; exit 2; }
        echo "$PYTHON"
        return
    fi
    for candidate in python3.11 python3.12 python3 python python3.13; do
        if fits "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    say "no Python $supported on PATH; install one, or name it: make PYTHON=/path/to/python3.11"
    exit 2
}

if ! fits .venv/bin/python; then
    python=$(find_python)
    say "making .venv with $("$python" --version)"
    "$python" -m venv --clear .venv || {
        say "$python cannot make a virtual environment; on Debian: apt install python3-venv"
        exit 2
    }
fi

# the stamp names what it was made from; the path too, as a virtual environment cannot be moved
core=paimon_features/core/native
wanted="$(pwd) $(cat "$lock" locks/bootstrap.txt locks/compiler.txt pyproject.toml hatch_build.py \
    $core/core.c $core/stable_abi.h | cksum)"
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    say "installing $lock into .venv"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
        -r locks/bootstrap.txt
    uv() { .venv/bin/python -m uv pip "$@" --quiet --python .venv/bin/python; }
    uv install --require-hashes -r "$lock"
    # the editable install compiles the native core
    if ! .venv/bin/python hatch_build.py; then
        say "no C compiler here: installing one into .venv"
        uv install --require-hashes -r locks/compiler.txt
    fi
    uv install --no-deps --no-build-isolation --editable .
    echo "$wanted" >"$stamp"
fi

if [ "$profile" != docs ]; then
    archive=--class-archive
    # there is no Flink for Python 3.13
    .venv/bin/python -c "import importlib.util as u, sys; sys.exit(not u.find_spec('pyflink'))" ||
        archive=
    # without an archive jobs start more slowly, and that is all
    .venv/bin/paimon-features jars --quiet $archive || .venv/bin/paimon-features jars --quiet
fi
if [ "$profile" = test ]; then
    .venv/bin/paimon-features jars --quiet --group kafka-broker
fi
