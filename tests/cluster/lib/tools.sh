# The Go tools, pinned in tools/*/go.mod and built by the ordinary go command. One module per tool: they want different
# versions of the same things. Sourced after common.sh.

# What the modules do not say of themselves: the linker sets it, and kubeadm and kind read it.
kubernetes_version=v1.35.4
containerd_version=2.3.4

# All tools of one set of pins are in one folder.
tools_dir="$cache/tools/$(key tests/cluster/tools tests/cluster/lib/tools.sh)"

# tools COMMAND...: builds those that are not there yet, and puts their folder at the head of PATH.
tools() {
  local command
  for command in "$@"; do
    [[ ! -e $tools_dir/$command ]] || continue
    command -v go >/dev/null || skip "there is no go command to build $command with; install Go 1.26 or newer"
    mkdir -p "$tools_dir"
    logged "build-$command" build_tool "$command"
  done
  export PATH="$tools_dir:$PATH"
}

build_tool() {
  local command=$1 module package flags='-s -w' version
  # Another run may have been at it meanwhile.
  lock "build-$command"
  [[ ! -e $tools_dir/$command ]] || return 0
  # A line of a go.mod names it, or the module has its name.
  module="$(dirname "$(grep -lE "^(tool |	)[^ ]*/$command\$" "$cluster_dir"/tools/*/go.mod || echo "$cluster_dir/tools/$command/go.mod")")"
  cd "$module"
  package="$(sed -nE "s|^(tool )?	?([^ ]*/$command)\$|\2|p; s|^tool (.*/v[0-9]+)\$|\1|p" go.mod)"
  case $(basename "$module") in
    kubernetes)
      for version in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
        flags+=" -X $version.gitVersion=$kubernetes_version -X $version.gitMajor=1 -X $version.gitMinor=35"
      done
      ;;
    containerd) flags+=" -X github.com/containerd/containerd/v2/version.Version=$containerd_version" ;;
  esac
  # Never half a command under its name.
  CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "$flags" -o "$tools_dir/$command.part" "$package"
  mv "$tools_dir/$command.part" "$tools_dir/$command"
}
