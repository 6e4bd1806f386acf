# Shared by all commands of tests/cluster: paths, messages, and a lock for one run at a time. Sourced.

repository="$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)"
cluster_dir="$repository/tests/cluster"
# Contains all caches and the state of all running programs.
cache="${XDG_CACHE_HOME:-$HOME/.cache}/millrace-ci/cluster"
mkdir -p "$cache/run" "$cache/log"

say() { printf 'cluster: %s\n' "$*" >&2; }

fail() {
  say "$*"
  exit 1
}

# Exits with 77, which means skipped: this machine does not support it.
skip() {
  say "skipped: $*"
  exit 77
}

# lock NAME: waits for this lock, which is released when the shell ends. Background processes that outlive the shell are
# started with 9>&-, otherwise they would keep the lock.
lock() {
  exec 9>"$cache/$1.lock"
  flock --nonblock 9 || {
    say "waiting for another run"
    flock 9
  }
}

# logged NAME COMMAND...: runs it without output, prints its duration, and the end of its output if it fails.
logged() {
  local log="$cache/log/$1.log" start=$SECONDS
  # In the background, because bash ignores `set -e` in a command of a condition.
  (set -e && "${@:2}") >"$log" 2>&1 9>&- &
  wait $! || {
    tail -n 30 "$log" >&2
    fail "$1 failed; all of its output is in $log"
  }
  say "$1: $((SECONDS - start)) s"
}

# key PATH...: prints a short digest of the content of files and directories of the repository.
key() {
  (cd "$repository" && find "$@" -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c 1-12)
}

# Whether the process of this pid file is running and was started here: its command line names a file in the cache.
ours() {
  local pid
  pid="$(cat "$1" 2>/dev/null)" && [[ -n $pid ]] && grep -qsF "$cache" "/proc/$pid/cmdline"
}

# Whether the process of this pid file, a background job of this script, still runs. `ours` does not know it until it
# has executed its program, which takes seconds on a busy machine.
job_runs() { kill -0 "$(cat "$1")" 2>/dev/null; }

# stop FILE [SIGNAL]: stops the process of a pid file and waits for its end.
stop() {
  if ours "$1"; then
    kill -s "${2:-TERM}" "$(cat "$1")"
    while ours "$1"; do sleep 0.05; done
  fi
  rm -f "$1"
}
