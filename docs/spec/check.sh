#!/usr/bin/env bash
# Checks fence.pml with Spin, all of its states: the rules hold, and each mutant breaks the claim that is named here.
#
#   check.sh              the short list: less than two minutes on two cores
#   check.sh --long       the larger bounds and the relaxations as well
#   check.sh NAME...      these runs
#   check.sh list         the runs, what each must find, and its flags
#   check.sh trail NAME   a shortest counterexample to that run, step by step
#
# JOBS is the number of runs at a time (2). Exits 1 when a run is not what it must be, 2 when something is missing.
set -euo pipefail
export LC_ALL=C
spec=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/fence.pml
jobs=${JOBS:-2}

# List, name, what the search must find (O, D and E: a counterexample to that claim; W: a witness), flags. The bounds of
# a mutant are those of a rule that holds.
runs() {
  cat <<'EOT'
short order             nothing -DFMAX=3
short order-any-start   nothing -DFMAX=3 -DINITF=1
short order-n4          nothing -DFMAX=2 -DN=4
short order-n5          nothing -DFMAX=2 -DN=5 -DMAXG=1
short order-p3          nothing -DFMAX=3 -DP=3 -DMAXG=1 -DSEEDS=0
short extend            nothing -DFMAX=2 -DEXTEND=1
short extend-f3         nothing -DFMAX=3 -DEXTEND=1 -DMAXG=1
short forget            nothing -DFMAX=2 -DFORGET=1
short forget-f3         nothing -DFMAX=3 -DFORGET=1 -DMAXG=1 -DINITF=1
short forget-extend     nothing -DFMAX=2 -DFORGET=1 -DEXTEND=1 -DMAXG=1
long  order-f4          nothing -DFMAX=4
long  order-n4-f3       nothing -DFMAX=3 -DN=4
long  order-n5-g2       nothing -DFMAX=2 -DN=5
long  order-n5-f3       nothing -DFMAX=3 -DN=5 -DMAXG=1
long  order-p3-seeds    nothing -DFMAX=3 -DP=3 -DMAXG=1
long  extend-f3-g2      nothing -DFMAX=3 -DEXTEND=1
long  extend-n4         nothing -DFMAX=2 -DEXTEND=1 -DN=4 -DMAXG=1
long  extend-p3         nothing -DFMAX=2 -DEXTEND=1 -DP=3 -DMAXG=1
long  forget-f3-g2      nothing -DFMAX=3 -DFORGET=1
long  forget-twice      nothing -DFMAX=2 -DFORGET=2
long  forget-p3         nothing -DFMAX=2 -DFORGET=1 -DP=3 -DMAXG=1
short M_FASTQ1          D       -DFMAX=3
short M_HALF            D       -DFMAX=2 -DN=4
short M_NOCOUNT         D       -DFMAX=3
short M_NOINCR          D       -DFMAX=3
short M_SEEDALONE       O       -DFMAX=3 -DONLY_O
short M_COUNTREPLIES    D       -DFMAX=3
short M_NORAISE         O       -DFMAX=3 -DONLY_O
short M_NOOWNER         D       -DFMAX=3
short M_NOLE            D       -DFMAX=3
short M_REUSE           O       -DFMAX=3
short M_RELEASEF        O       -DFMAX=3 -DONLY_O
short M_EXTNOLE         E       -DFMAX=3 -DEXTEND=1 -DMAXG=1
short M_OLDVOTES        E       -DFMAX=2 -DEXTEND=1
short M_HEALNOLE        E       -DFMAX=2 -DEXTEND=1
short M_NOQUARANTINE    O       -DFMAX=2 -DFORGET=1 -DONLY_O
short M_SEEDABSENT      D       -DFMAX=3 -DFORGET=1 -DMAXG=1 -DINITF=1
short M_NOEXTQUARANTINE E       -DFMAX=2 -DFORGET=1 -DEXTEND=1 -DMAXG=1
short W1                W       -DFMAX=3
short W2                W       -DFMAX=3 -DP=3 -DMAXG=1 -DSEEDS=0
short W3                W       -DFMAX=2 -DEXTEND=1
short W4                W       -DFMAX=2 -DFORGET=1
short W5                W       -DFMAX=2
long  R_ANYTOKEN        nothing -DFMAX=3
long  R_REPEATCOUNTS    nothing -DFMAX=3
long  R_HEALANY         nothing -DFMAX=3 -DEXTEND=1 -DMAXG=1
long  R_NOWRITE         nothing -DFMAX=3 -DEXTEND=1 -DMAXG=1
long  R_ABSENT          nothing -DFMAX=2 -DFORGET=1 -DEXTEND=1 -DMAXG=1
EOT
}

die() {
  echo "check.sh: $*" >&2
  exit 2
}

# look NAME sets kind, must and flags.
look() {
  local name
  read -r _ name must flags < <(runs | awk -v name="$1" '$2 == name') || die "there is no run $1; check.sh list names them"
  case $name in
    M_*) kind=mutant flags="-D$name $flags" ;;
    R_*) kind=relaxation flags="-D$name $flags" ;;
    W*) kind=witness flags="-DW=${name#W} $flags" ;;
    *) kind=rule ;;
  esac
}

# search DIR FLAGS searches all states, breadth first: what it finds has a shortest trail, and no depth is too small.
search() {
  cd "$1"
  # shellcheck disable=SC2086 # the flags are words
  spin -a $2 "$spec" >log 2>&1 || return
  gcc "$optimize" -w -DSAFETY -DBFS -DNOREDUCE -DMEMLIM="$memory" -o pan pan.c >>log 2>&1 || return
  ./pan >out 2>&1 &
  child=$!
  wait "$child"
}

# found OUT prints what a search came upon.
found() {
  local failure
  failure=$(grep '^pan:[0-9]*: ' "$1" || true)
  case $failure in
    '') echo nothing ;;
    *'(1!=1)'* | *'(2!=2)'* | *'(3!=3)'* | *'(4!=4)'* | *'(5!=5)'*) echo W ;;
    *'token[p]>before[p]'*) echo O ;;
    *'token[0]==token[p]'*) echo D ;;
    *'overtaken[p]'*) echo E ;;
    *) echo "$failure" ;;
  esac
}

claim() {
  case $1 in
    O) echo "a token that is not larger (O)" ;;
    D) echo "a token twice (D)" ;;
    E) echo "an extend that must not be confirmed (E)" ;;
    W) echo "what must be possible" ;;
    *) echo "$1" ;;
  esac
}

# judge DIR MUST prints what the search in DIR says, and fails if it must say something else.
judge() {
  local out=$1/out is gap
  if ! grep -q '^Full statespace search' "$out" 2>/dev/null || ! grep -q '^[[:space:]]assertion violations[[:space:]]+$' "$out"; then
    echo "NO SEARCH: $(cat "$1/log" "$out" 2>/dev/null | tail -1)"
    return 1
  fi
  is=$(found "$out")
  if [[ $is != "$2" && $is != nothing ]]; then
    echo "BROKEN: $(claim "$is")"
    return 1
  fi
  if [[ $is != nothing ]]; then
    echo "finds $(claim "$is")"
    compgen -G "$1/*.trail" >/dev/null
    return
  fi
  gap=$(grep -Eim 1 'too small|truncated|out of memory|MEMLIM|aborted|interrupted|hash-?compact|not completed' "$out" || true)
  if [[ -n $gap ]] || ! grep -q 'errors: 0$' "$out"; then
    echo "NOT EXHAUSTIVE: ${gap:-no end}"
    return 1
  fi
  if [[ $2 != nothing ]]; then
    echo "PASSES, and must find $(claim "$2")"
    return 1
  fi
  echo holds
}

# check NAME does one run and writes its line.
check() {
  local dir=$tmp/$1 start=$EPOCHREALTIME verdict end child=
  trap '[[ -z $child ]] || kill "$child" 2>/dev/null; exit 1' TERM
  mkdir "$dir"
  look "$1"
  search "$dir" "$flags" || true
  verdict=$(judge "$dir" "$must") || : >"$dir.bad"
  end=$EPOCHREALTIME
  printf '%-10s  %-17s  %10s  %7s  %s\n' "$kind" "$1" "$(awk '/states, stored/ { print $1; exit }' "$dir/out" 2>/dev/null || echo -)" \
    "$(awk "BEGIN { printf \"%.1f\", $end - $start }")" "$verdict" >"$dir.part"
  rm -rf "$dir"
  mv "$dir.part" "$dir.line"
}

# trail NAME tells what a search finds.
trail() {
  local dir=$tmp/trail child=
  mkdir "$dir"
  look "$1"
  (search "$dir" "$flags") || true
  echo "$1: spin $flags"
  if compgen -G "$dir/*.trail" >/dev/null; then
    # shellcheck disable=SC2086 # the flags are words
    (cd "$dir" && spin -t -k ./*.trail $flags "$spec") 2>/dev/null |
      sed -nE 's/^ +(instance [0-9].*)/    \1/p; s/^ +([A-C] .*)/\1/p'
  fi
  judge "$dir" "$must"
}

# --- main ---

lists=short
optimize=-O1 # half of a short run is compiling
memory=3000  # MB, for each run
command=check
names=()
for argument in "$@"; do
  case $argument in
    --long) lists='short|long' optimize=-O2 memory=8000 ;;
    list | trail) command=$argument ;;
    -*) die "no such option: $argument; the head of this file says what there is" ;;
    *) names+=("$argument") ;;
  esac
done

if [[ $command == list ]]; then
  runs
  exit
fi
((BASH_VERSINFO[0] >= 5)) || die "bash 5 is missing"
missing=
for tool in spin gcc awk; do
  command -v "$tool" >/dev/null || missing+=" $tool"
done
[[ -z $missing ]] || die "missing:$missing; on Debian: apt-get install spin gcc libc6-dev"
if ((${#names[@]} == 0)); then
  mapfile -t names < <(runs | awk -v lists="^($lists)\$" '$1 ~ lists { print $2 }')
fi
for name in "${names[@]}"; do look "$name"; done

tmp=$(mktemp -d)
clean() {
  local running
  running=$(jobs -pr)
  # shellcheck disable=SC2086 # process ids are words
  [[ -z $running ]] || kill $running 2>/dev/null || true
  wait
  rm -rf "$tmp"
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [[ $command == trail ]]; then
  ((${#names[@]} == 1)) || die "usage: check.sh trail NAME"
  trail "${names[0]}"
  exit
fi

# show prints the lines of the runs that have ended, in order.
shown=0
show() {
  while ((shown < ${#names[@]})) && [[ -e $tmp/${names[shown]}.line ]]; do
    cat "$tmp/${names[shown]}.line"
    shown=$((shown + 1))
  done
}

printf '%-10s  %-17s  %10s  %7s  %s\n' kind run states seconds verdict
for name in "${names[@]}"; do
  while (($(jobs -pr | wc -l) >= jobs)); do wait -n || true; done
  show
  check "$name" &
done
while [[ -n $(jobs -pr) ]]; do
  wait -n || true
  show
done
show

bad=$(($(find "$tmp" -name '*.bad' | wc -l) + ${#names[@]} - shown))
if ((bad > 0)); then
  echo "check.sh: $bad of ${#names[@]} runs are not what they must be ($SECONDS s)" >&2
  exit 1
fi
echo "${#names[@]} runs, each is what it must be ($SECONDS s)"
