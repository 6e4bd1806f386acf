# What every command of tests/cluster shares: places, messages, one run at a time. Sourced.

repository="$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)"
cluster_dir="$repository/tests/cluster"
# All that is kept and all that runs is under here.
cache="${XDG_CACHE_HOME:-$HOME/.cache}/millrace-ci/cluster"
mkdir -p "$cache/run" "$cache/log"

say() { printf 'cluster: %s\n' "$*" >&2; }

fail() {
  say "$*"
  exit 1
}

# Ends the whole command as skipped, not failed: this machine cannot do it.
skip() {
  say "skipped: $*"
  exit 77
}

# lock NAME: waits until no other shell has this lock; it is free again when this shell ends. What outlives the shell is
# started with 9>&-, or it would keep the lock.
lock() {
  exec 9>"$cache/$1.lock"
  flock --nonblock 9 || {
    say "waiting for another run"
    flock 9
  }
}

# logged NAME COMMAND...: runs quietly, says how long it took, and shows the end of the output where it fails.
logged() {
  local log="$cache/log/$1.log" start=$SECONDS
  # In the background, since bash ignores `set -e` in whatever a condition runs.
  (set -e && "${@:2}") >"$log" 2>&1 9>&- &
  wait $! || {
    tail -n 30 "$log" >&2
    fail "$1 failed; all of its output is in $log"
  }
  say "$1: $((SECONDS - start)) s"
}

# key PATH...: the content of files and folders of the repository as one short word.
key() {
  (cd "$repository" && find "$@" -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c 1-12)
}

# Is the process of this pid file alive, and the one we started? Its command line names a file in the cache.
ours() {
  local pid
  pid="$(cat "$1" 2>/dev/null)" && [[ -n $pid ]] && grep -qsF "$cache" "/proc/$pid/cmdline"
}

# stop FILE [SIGNAL]: ends the process of a pid file and waits for its end.
stop() {
  if ours "$1"; then
    kill -s "${2:-TERM}" "$(cat "$1")"
    while ours "$1"; do sleep 0.05; done
  fi
  rm -f "$1"
}
