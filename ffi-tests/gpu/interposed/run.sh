#!/bin/sh
# Programs that know nothing of libbfc, alone and under `bfc run`, on a real GPU: a program of nvcc's with the static
# runtime, CuPy, PyTorch and JAX. Each must print the same both times, and must have got its memory from the pool. It
# needs no Rust: bin/bfc and lib/ of an installed libbfc, and of nvcc, CuPy, PyTorch and JAX whatever is there.
#
#   run.sh                            the libbfc that lies above this folder (target/gpu/interposed/run.sh)
#   run.sh PREFIX                     another one: PREFIX/bin/bfc, PREFIX/lib/libbfc.so.0, PREFIX/lib/libbfc_preload.so
#   run.sh PREFIX NAME...             only some of: nvcc cupy torch jax
#   run.sh PREFIX -- PROGRAM ARGS...  a program of yours, judged in the same way
#
# A program ends with 0, or with 77 and one line that says why it cannot run here. A line `allocations: N` of its output
# is how many it makes at least. Variables: PYTHON (python3), SECONDS_EACH (300), OPTIONS (more of bfc run's, for all),
# SAXPY (saxpy.cu, compiled already: no nvcc is needed then).
set -u

here=$(cd "$(dirname "$0")" && pwd) || exit 2
prefix=${1:-$here/..}
[ $# -gt 0 ] && shift
bfc=$prefix/bin/bfc
python=${PYTHON:-python3}
seconds=${SECONDS_EACH:-300}
passed=0 failed=0 ignored=0

for file in "$bfc" "$prefix/lib/libbfc.so.0" "$prefix/lib/libbfc_preload.so"; do
  if [ ! -e "$file" ]; then
    echo "there is no $file: cargo xtask install --prefix $prefix" >&2
    exit 2
  fi
done
# Settings of whoever runs the tests are not those of the tests.
for name in $(env | sed -n 's/^\(BFC_[A-Z_]*\)=.*/\1/p'); do unset "$name"; done
unset LD_PRELOAD
export PYTHONDONTWRITEBYTECODE=1
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

# ---- Results, as cargo test prints them ----

ok() {
  echo "test $1 ... ok"
  passed=$((passed + 1))
}

# wrong NAME WHY [FILE]: the end of the file is what the program has said.
wrong() {
  echo "test $1 ... FAILED"
  echo "  $1: $2"
  [ $# -gt 2 ] && tail -n 25 "$3" | sed 's/^/  | /'
  failed=$((failed + 1))
}

skip() {
  echo "test $1 ... ignored, $2"
  ignored=$((ignored + 1))
}

# ---- One program, alone and under bfc run ----

# alone NAME COMMAND...: what it prints is what the others are compared with. Not 0: the result is said already.
alone() {
  what=$1
  shift
  timeout -k 10 "$seconds" "$@" >"$scratch/alone.out" 2>"$scratch/alone.err" </dev/null
  code=$?
  [ $code -eq 0 ] && return 0
  if [ $code -eq 77 ]; then
    why=$(tail -n 1 "$scratch/alone.out")
    skip "$what" "${why:-it did not say why}"
  else
    cat "$scratch/alone.err" >>"$scratch/alone.out"
    wrong "$what" "without the interposer it ended with $code" "$scratch/alone.out"
  fi
  return 1
}

# under NAME OPTION COMMAND...: the same with the interposer, after `alone`. OPTION is one of bfc run's, or nothing.
under() {
  what=$1${2:+ $2}
  options="${OPTIONS:-} $2"
  shift 2
  rm -f "$scratch/report"
  # They are words to be split.
  # shellcheck disable=SC2086
  timeout -k 10 "$seconds" "$bfc" run --report="$scratch/report" $options -- "$@" \
    >"$scratch/under.out" 2>"$scratch/under.err" </dev/null
  code=$?
  if [ $code -ne 0 ]; then
    cat "$scratch/under.err" >>"$scratch/under.out"
    wrong "$what" "with the interposer it ended with $code, without it well" "$scratch/under.out"
  elif ! cmp -s "$scratch/alone.out" "$scratch/under.out"; then
    diff "$scratch/alone.out" "$scratch/under.out" >"$scratch/diff"
    wrong "$what" "its output is another one with the interposer" "$scratch/diff"
  else
    judge_report "$what" "$@"
  fi
}

# judge_report NAME COMMAND...: all that the program allocated came from the pool, in all its processes together.
judge_report() {
  what=$1
  shift
  # The file has the counters; a program that never allocated has left none.
  "$bfc" report "$scratch/report" >"$scratch/summary" 2>/dev/null || : >"$scratch/summary"
  served=$(awk '$1 == "served" { n += $2 } END { print n + 0 }' "$scratch/summary")
  wanted=$(sed -n 's/^allocations: \([0-9][0-9]*\)$/\1/p' "$scratch/alone.out" | tail -n 1)
  if [ "$served" -eq 0 ]; then
    # shellcheck disable=SC2086
    timeout -k 10 "$seconds" "$bfc" run --check $options -- "$@" >/dev/null 2>"$scratch/check" </dev/null
    wrong "$what" "nothing was served from the pool; bfc run --check says" "$scratch/check"
  elif [ "$served" -lt "${wanted:-1}" ]; then
    wrong "$what" "of at least $wanted allocations only $served were served from the pool" "$scratch/summary"
  else
    ok "$what"
    awk -v name="$what" '
      $1 == "served" { served += $2 }
      $1 == "driver" && $2 == "calls" { saved += $3; all += $6 }
      END {
        percent = all ? 100 * saved / all : 0
        printf "  %s: %d allocations served, driver calls %d saved of %d (%.1f %%)\n", name, served, saved, all, percent
      }' "$scratch/summary"
  fi
}

# ---- The programs ----

# Not called nvcc: then `command -v` would find this function.
with_nvcc() {
  if [ -n "${SAXPY:-}" ]; then
    saxpy "$SAXPY"
    return
  fi
  compiler=$(command -v nvcc) || compiler=${CUDA_HOME:-/usr/local/cuda}/bin/nvcc
  if [ ! -x "$compiler" ]; then
    skip nvcc_static "there is no nvcc, in PATH or in /usr/local/cuda/bin"
    return
  fi
  # An old nvcc does not know `native`.
  for target in -arch=native ""; do
    # shellcheck disable=SC2086
    "$compiler" -O2 -cudart static $target -o "$scratch/saxpy" "$here/saxpy.cu" >"$scratch/compile" 2>&1 && break
  done
  if [ ! -x "$scratch/saxpy" ]; then
    wrong nvcc_static "$compiler does not compile saxpy.cu" "$scratch/compile"
    return
  fi
  saxpy "$scratch/saxpy"
}

# saxpy PROGRAM: the compiled one.
saxpy() {
  alone nvcc_static "$1" || return
  # Nothing, then a pool so small that what was freed is used again all the time, then other meanings of cudaFree.
  for option in "" --limit=64MiB --free=sync --async; do under nvcc_static "$option" "$1"; done
  # With a pool that does not wait its values must be wrong. Else the results above would say nothing of that.
  timeout -k 10 "$seconds" "$1" race >"$scratch/race" 2>&1 </dev/null
  code=$?
  if [ $code -eq 1 ] && grep -q '^failed: .* wrong values' "$scratch/race"; then
    ok nvcc_sees_a_race
  else
    wrong nvcc_sees_a_race "a pool that waits for nothing went unnoticed, code $code" "$scratch/race"
  fi
}

# script NAME FILE: one of the Python programs.
script() {
  if ! command -v "$python" >/dev/null; then
    skip "$1" "there is no $python"
    return
  fi
  alone "$1" "$python" "$here/$2" && under "$1" "" "$python" "$here/$2"
}

# ---- All of it ----

known() {
  case $1 in
    nvcc) with_nvcc ;;
    cupy) script cupy with_cupy.py ;;
    torch) script torch with_torch.py ;;
    jax) script jax with_jax.py ;;
    *) echo "no program is called $1: nvcc, cupy, torch, jax" >&2 && exit 2 ;;
  esac
}

info=$("$bfc" info) || exit 2
device=$(printf '%s\n' "$info" | sed -n 's/^ *cuda, device 0  *//p')
if [ "${1:-}" = -- ]; then
  shift
  alone program "$@" && under program "" "$@"
else
  [ $# -eq 0 ] && set -- nvcc cupy torch jax
  for name in "$@"; do
    if [ "$device" = yes ]; then known "$name"; else skip "$name" "no device: ${device#no: }"; fi
  done
fi

verdict=ok
[ $failed -gt 0 ] && verdict=FAILED
echo "test result: $verdict. $passed passed; $failed failed; $ignored ignored"
[ $failed -eq 0 ]
