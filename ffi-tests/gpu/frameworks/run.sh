#!/bin/sh
# Frameworks with libbfc in the place of their own allocators, by the Python package, on a real GPU: PyTorch trains to the
# same losses as natively, and how fast and in how much memory; CuPy and Numba compute what numpy does. It needs no Rust:
# lib/ and python/ of target/gpu, and of PyTorch, CuPy and Numba whatever is there.
#
#   run.sh                  with the libbfc that lies above this folder (target/gpu/frameworks/run.sh)
#   run.sh PREFIX           another one: PREFIX/lib/libbfc.so.0, PREFIX/include, PREFIX/python/bfc
#   run.sh PREFIX NAME...   only some of: torch cupy numba
#
# A program ends with 0, or with 77 and a last line that says why it cannot run here. Variables: PYTHON (python3),
# SECONDS_EACH (300), RESULTS (results, in this folder: what train.py wrote, and the table of it).
set -u

here=$(cd "$(dirname "$0")" && pwd) || exit 2
prefix=$(cd "${1:-$here/..}" && pwd) || exit 2
[ $# -gt 0 ] && shift
python=${PYTHON:-python3}
seconds=${SECONDS_EACH:-300}
results=${RESULTS:-$here/results}
passed=0 failed=0 ignored=0

for file in "$prefix/lib/libbfc.so.0" "$prefix/python/bfc/__init__.py"; do
  if [ ! -e "$file" ]; then
    echo "there is no $file: cargo xtask test --suite gpu builds target/gpu" >&2
    exit 2
  fi
done
# Settings of whoever runs the tests are not those of the tests.
for name in $(env | sed -n 's/^\(BFC_[A-Z_]*\)=.*/\1/p'); do unset "$name"; done
unset LD_PRELOAD
export BFC_LIBRARY="$prefix/lib/libbfc.so.0" PYTHONPATH="$prefix/python${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONDONTWRITEBYTECODE=1
mkdir -p "$results" || exit 2
# What an earlier run has left is not of this one.
rm -f "$results"/*.json "$results/table.md"

# ---- Results, as cargo test prints them ----

ok() {
  echo "test $1 ... ok"
  passed=$((passed + 1))
}

# wrong NAME WHY FILE: the end of the file is what the program has said.
wrong() {
  echo "test $1 ... FAILED"
  echo "  $1: $2"
  tail -n 25 "$3" | sed 's/^/  | /'
  failed=$((failed + 1))
}

skip() {
  echo "test $1 ... ignored, $2"
  ignored=$((ignored + 1))
}

# program NAME COMMAND...: a test. Its output stays in the results.
program() {
  what=$1
  said=$results/$1.log
  shift
  timeout -k 10 "$seconds" "$@" >"$said" 2>&1 </dev/null
  code=$?
  case $code in
    0) ok "$what" ;;
    77) skip "$what" "$(tail -n 1 "$said")" ;;
    *) wrong "$what" "it ended with $code" "$said" ;;
  esac
  return $code
}

# ---- The frameworks ----

# PyTorch, one process for each allocator; natively twice, for what is not the same then says nothing of libbfc.
with_torch() {
  files=
  for run in native native_again bfc bfc_vmm async; do
    if program "torch_$run" "$python" "$here/train.py" --allocator "${run%_again}" --out "$results/$run.json"; then
      files="$files $run.json"
    fi
    # Without it nothing can be compared, and nothing else will run.
    [ "$files" ] || break
  done
  case $files in
    " native.json "*) ;;
    *) skip torch_compared "there are no two runs to compare" && return ;;
  esac
  # They are words to be split.
  # shellcheck disable=SC2086
  if (cd "$results" && "$python" "$here/compare.py" $files >table.md 2>&1); then
    ok torch_compared
    sed 's/^/  /' "$results/table.md"
  else
    wrong torch_compared "the allocators' runs are not alike" "$results/table.md"
  fi
}

known() {
  case $1 in
    torch) with_torch ;;
    cupy)
      program cupy "$python" "$here/with_cupy.py"
      program cupy_by_anyone "$python" "$here/with_cupy.py" by_anyone
      ;;
    numba) program numba "$python" "$here/with_numba.py" ;;
    *) echo "no framework is called $1: torch, cupy, numba" >&2 && exit 2 ;;
  esac
}

[ $# -eq 0 ] && set -- torch cupy numba
if command -v "$python" >/dev/null; then
  for name in "$@"; do known "$name"; done
else
  for name in "$@"; do skip "$name" "there is no $python"; done
fi

verdict=ok
[ $failed -gt 0 ] && verdict=FAILED
echo "test result: $verdict. $passed passed; $failed failed; $ignored ignored"
[ $failed -eq 0 ]
