# The Docker engine of the nodes: the machine's if it responds, else one from Debian's packages with its own socket and
# data, without changes to the machine's. Sourced after packages.sh.

engine_run="$cache/run/engine"
engine_data="$cache/engine-data"
own_engine_socket="unix://$engine_run/docker.sock"
# Files that dockerd creates and leaves behind. Those that did not exist before are removed.
engine_litter=(/run/docker /run/containerd/s /run/containerd/io.containerd.runtime.v2.task /run/containerd /lib/modules
  /opt/containerd/bin /opt/containerd/lib /opt/containerd)

# Ensures that an engine responds; sets own_engine to "yes" if it was started here.
engine() {
  own_engine=no
  # An engine of an earlier run comes first: it may run a cluster.
  if [[ ! -d $engine_run ]] && docker info >/dev/null 2>&1; then return; fi
  [[ $EUID = 0 ]] || skip "no Docker engine responds, and only root can start one"
  own_engine=yes
  export DOCKER_HOST="$own_engine_socket"
  packages engine docker.io iptables
  if ! ours "$engine_run/docker.pid" || ! docker info >/dev/null 2>&1; then own_engine_start; fi
}

own_engine_start() {
  local path
  stop "$engine_run/docker.pid"
  mkdir -p "$engine_run" "$engine_data"
  # Recorded once: files of an earlier run are not part of the machine's original state.
  if [[ ! -e $engine_run/before ]]; then
    for path in "${engine_litter[@]}"; do [[ -e $path ]] || echo "$path"; done >"$engine_run/litter"
    printf 'ip_forward=%s\nforward_policy=%s\n' "$(cat /proc/sys/net/ipv4/ip_forward)" \
      "$(iptables -S FORWARD | awk '$1 == "-P" { print $3 }')" >"$engine_run/before"
  fi
  own_engine_runtime >"$engine_run/runtime"
  chmod 755 "$engine_run/runtime"
  cat >"$engine_run/daemon.json" <<J
{"data-root": "$engine_data", "exec-root": "$engine_run/exec", "pidfile": "$engine_run/docker.pid",
 "hosts": ["$own_engine_socket"], "storage-driver": "overlay2", "bridge": "none", "oom-score-adjust": 0,
 "cgroup-parent": "/millrace-cluster", "exec-opts": ["native.cgroupdriver=cgroupfs"], "default-cgroupns-mode": "private",
 "runtimes": {"node": {"path": "$engine_run/runtime"}}, "default-runtime": "node"}
J
  # Mounts of the engine must propagate to its nodes, which a private mount of / prevents.
  setsid unshare --mount --propagation shared \
    dockerd --config-file "$engine_run/daemon.json" >"$cache/log/dockerd.log" 2>&1 </dev/null 9>&- &
  for _ in {1..300}; do
    if docker info >/dev/null 2>&1; then return; fi
    sleep 0.1
  done
  tail -n 30 "$cache/log/dockerd.log" >&2
  fail "the Docker engine did not start; its log is $cache/log/dockerd.log"
}

# The engine's runtime: runc. If this machine lacks CAP_SYS_RESOURCE, runc can't give it to privileged containers, so it
# is removed from their specifications, which Docker writes as JSON without spaces.
own_engine_runtime() {
  local effective strip=
  effective="0x$(awk '/^CapEff/ { print $2 }' /proc/self/status)"
  ((effective & 1 << 24)) || strip='s/"CAP_SYS_RESOURCE",//g; s/,"CAP_SYS_RESOURCE"//g'
  cat <<R
#!/bin/sh
before=
for argument in "\$@"; do
  case \$before in
    --bundle) specification="\$argument/config.json" ;;
    --process) specification="\$argument" ;;
    *) specification= ;;
  esac
  [ ! -f "\$specification" ] || sed -i '$strip' "\$specification"
  before="\$argument"
done
exec $(command -v runc) "\$@"
R
}

# Stops the engine that was started here and removes what it leaves on the machine. Its images stay in the cache.
own_engine_stop() {
  local path ip_forward forward_policy
  stop "$engine_run/docker.pid"
  own_engine_remove_chains
  . "$engine_run/before"
  echo "$ip_forward" >/proc/sys/net/ipv4/ip_forward
  [[ -z $forward_policy ]] || iptables -P FORWARD "$forward_policy"
  for path in /sys/fs/cgroup/millrace-cluster /sys/fs/cgroup/*/millrace-cluster; do
    [[ ! -d $path ]] || find "$path" -depth -type d -exec rmdir {} \;
  done
  while read -r path; do
    # /run/docker has empty mount points of removed namespaces. Other directories are removed only if they are empty.
    [[ $path != /run/docker ]] || find "$path" -depth -empty -delete
    rmdir --ignore-fail-on-non-empty "$path" 2>/dev/null || true
  done <"$engine_run/litter"
  rm -rf "$engine_run"
}

# Removes the iptables chains that Docker created, and the rules that jump to them.
own_engine_remove_chains() {
  local table change chain words
  for table in filter nat; do
    while read -r -a words; do
      iptables -t "$table" "${words[@]}"
    done < <(iptables -t "$table" -S | sed -n 's/^-A \([A-Z]* .*-j DOCKER.*\)/-D \1/p')
    for change in -F -X; do
      while read -r chain; do
        iptables -t "$table" "$change" "$chain"
      done < <(iptables -t "$table" -S | sed -n 's/^-N \(DOCKER.*\)/\1/p')
    done
  done
}
